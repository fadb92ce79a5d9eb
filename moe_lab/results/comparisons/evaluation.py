"""One stored evaluation: its scores and its sample logs, whoever wrote them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe_lab.config.terminal import one_line
from moe_lab.errors import ConfigError
from moe_lab.results.comparisons.files import lm_eval_samples, results_file
from moe_lab.results.samples import odd_values, read_samples, samples_file
from moe_lab.results.shapes import LM_EVAL_LINE, lm_eval_misfit, misfit, results_misfit
from moe_lab.results.stored_files import damaged, read_lines, read_mapping

MOVED = "Evaluate again, or give another result."
FIELDS = frozenset({"doc_id", "doc_hash", "prompt_hash", "target_hash", "filter", "metrics"})
"""What a line of a sample log needs."""

Line = dict[str, Any]
"""One document and filter in a sample log."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What `results_*.json` and `samples_*.jsonl` hold."""

    key: str
    """The name in tables: `a`, `b`, or `b1`, `b2` where several are compared with `a`."""
    label: str
    """The model's name, and the method's for a run of this package."""
    settings: str
    """The overrides of a run of this package, else lm-eval's `model_args`."""
    file: Path
    """The results file."""
    samples_files: dict[str, Path]
    """The sample log of each task."""
    results: dict[str, Any]
    """lm-eval's result dictionary."""
    samples: dict[str, list[Line]]
    """The lines of each task's sample log."""

    def scores(self, name: str) -> dict[str, Any]:
        """The scores of a task or a group by `metric,filter`."""
        return dict(self.results["results"].get(name, {}))

    def higher_is_better(self, task: str, metric: str) -> bool | None:
        """Whether a higher value of a `metric,filter` is better; None if the file does not say."""
        better = self.results.get("higher_is_better", {}).get(task, {}).get(metric.partition(",")[0])
        return better if isinstance(better, bool) else None


def read_evaluation(key: str, path: Path) -> Evaluation:
    """The evaluation that `<key>=<path>` means.

    Raises ConfigError if there is none or its samples are missing, and DamagedError if a file cannot be read.
    """
    file = results_file(key, path)
    results = read_mapping(file, MOVED) or {}
    if isinstance(results.get("run_ids"), list) and "scores" in results:
        ids = " ".join(f"*-{str(run_id)[:8]}" for run_id in results["run_ids"])
        raise ConfigError(
            f"{key}={one_line(file)} is a summary over seeds, which has no documents. Give the folder of one of its "
            f"runs in runs/: {ids}"
        )
    if not all(isinstance(results.get(part), dict) for part in ("results", "configs")):
        raise ConfigError(
            f"{key}={one_line(file)} is no result of lm-eval or moe_lab: it has no results and configs."
        )
    own = isinstance(results.get("moe_lab"), dict)
    if (problem := results_misfit(results) if own else lm_eval_misfit(results)) is not None:
        raise damaged(file, problem, MOVED)
    tasks = [task for task in results["configs"] if task in results["results"]]
    files = {task: samples_file(file.parent, task) if own else lm_eval_samples(file, task) for task in tasks}
    samples = read_samples(file.parent, results) if own else {task: _lines(files[task]) for task in tasks}
    return Evaluation(
        key=key,
        label=_label(results, own),
        settings=_settings(results, own),
        file=file,
        samples_files=files,
        results=results,
        samples=samples,
    )


def _label(results: dict[str, Any], own: bool) -> str:
    if own:
        block = results["moe_lab"]
        return one_line(f"{block['model']['name']}-{block['method']['name']}")
    return one_line(results.get("model_name") or "lm-eval").rstrip("/").rpartition("/")[2]


def _settings(results: dict[str, Any], own: bool) -> str:
    if own:
        return one_line(" ".join(results["moe_lab"].get("overrides") or []))
    given = (results.get("config") or {}).get("model_args") or ""
    return one_line(
        ",".join(f"{key}={value}" for key, value in given.items()) if isinstance(given, dict) else given
    )


def _lines(file: Path) -> list[Line]:
    """The lines of lm-eval's sample log. Raises DamagedError for one without lines, or that lacks fields."""
    lines = read_lines(file, MOVED) or []
    lacking = set().union(*(FIELDS - line.keys() for line in lines))
    if lacking:
        raise damaged(
            file, f"lines lack {', '.join(sorted(lacking))}, which lm-eval 0.4.7 and later write", MOVED
        )
    if not lines:
        raise damaged(file, "it is empty", MOVED)
    seen: set[tuple[str, int]] = set()
    for line in lines:
        problem = misfit(line, LM_EVAL_LINE) or odd_values(line)
        if problem is None and (line["filter"], line["doc_id"]) in seen:
            problem = f"document {line['doc_id']} stands there twice"
        if problem is not None:
            raise damaged(file, problem, MOVED)
        seen.add((line["filter"], line["doc_id"]))
    return lines
