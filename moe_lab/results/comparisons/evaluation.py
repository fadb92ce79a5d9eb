"""One stored evaluation, of this package or of lm-eval: its scores and its sample logs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from moe_lab.config.terminal import one_line, without_secrets
from moe_lab.errors import ConfigError
from moe_lab.results.comparisons.files import lm_eval_samples, results_file
from moe_lab.results.lm_eval_results import LmEvalResults
from moe_lab.results.marks import marks_of
from moe_lab.results.model import RunResult
from moe_lab.results.reading import stored_results
from moe_lab.results.rounding import Rounding
from moe_lab.results.samples import Sample, read_samples, samples_file, samples_of
from moe_lab.results.stored_files import damaged, read_lines, read_mapping

MOVED = "Evaluate again, or give another result."
FIELDS = frozenset({"doc_id", "doc_hash", "prompt_hash", "target_hash", "filter", "metrics"})
"""What a line of a sample log needs."""


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
    results: LmEvalResults
    """lm-eval's part of the file."""
    rounding: Rounding
    """Which values of it and of another evaluation are equal within rounding."""
    samples: dict[str, list[Sample]]
    """The lines of each task's sample log."""
    lm_eval_version: str | None
    run_id: str | None = None
    """Of a run of this package."""
    marks: tuple[str, ...] = ()
    """The notes of a run of this package."""

    def to_json(self) -> dict[str, object]:
        """Where it comes from."""
        return {
            "key": self.key,
            "label": self.label,
            "settings": self.settings,
            "file": str(self.file.absolute()),
            "samples": {task: str(file.absolute()) for task, file in self.samples_files.items()},
            "run_id": self.run_id,
            "lm_eval_version": self.lm_eval_version,
            "task_versions": self.results.task_versions,
            "marks": self.marks,
        }


def read_evaluation(key: str, path: Path) -> Evaluation:
    """The evaluation that `<key>=<path>` means.

    Raises ConfigError if there is none or its samples are missing, and DamagedError if a file
    cannot be read.
    """
    file = results_file(key, path)
    results = read_mapping(file, MOVED) or {}
    if not all(isinstance(results.get(part), dict) for part in ("results", "configs")):
        raise ConfigError(
            f"{key}={one_line(file)} is no result of lm-eval or moe_lab. Give the folder of a run, "
            "in runs/."
        )
    if "moe_lab" not in results:
        results = results | {"config": _without_secrets(results.get("config"))}
    stored = stored_results(results, file, MOVED)
    if isinstance(stored, RunResult):
        return _of_run(key, file, stored)
    return _of_lm_eval(key, file, stored)


def _of_run(key: str, file: Path, run: RunResult) -> Evaluation:
    """The evaluation of a run of this package."""
    tasks = [task for task in run.lm_eval.configs if task in run.lm_eval.results]
    return Evaluation(
        key=key,
        label=one_line(f"{run.model.name}-{run.method.name}"),
        settings=one_line(" ".join(run.overrides)),
        file=file,
        samples_files={task: samples_file(file.parent, task) for task in tasks},
        results=run.lm_eval,
        rounding=run.equality,
        samples=read_samples(run),
        lm_eval_version=run.versions.get("lm_eval"),
        run_id=run.run_id,
        marks=marks_of(run),
    )


def _of_lm_eval(key: str, file: Path, results: LmEvalResults) -> Evaluation:
    """An evaluation by lm-eval itself."""
    tasks = [task for task in results.configs if task in results.results]
    files = {task: lm_eval_samples(file, task) for task in tasks}
    settings = (results.config or {}).get("model_args") or ""
    if isinstance(settings, dict):
        settings = _joined(settings)
    return Evaluation(
        key=key,
        label=one_line(results.model_name or "lm-eval").rstrip("/").rpartition("/")[2],
        settings=one_line(settings),
        file=file,
        samples_files=files,
        results=results,
        rounding=results.rounding,
        samples={task: _lines(files[task]) for task in tasks},
        lm_eval_version=results.lm_eval_version,
    )


def _without_secrets(config: object) -> object:
    """lm-eval's `config` of a foreign file, whose `model_args` may have keys of an API and
    passwords in URLs."""
    if not isinstance(config, dict):
        return config
    arguments = config.get("model_args")
    if isinstance(arguments, dict):
        return config | {"model_args": without_secrets(arguments)}
    if isinstance(arguments, str):
        values = {}
        for argument in arguments.split(","):
            name, _, value = argument.partition("=")
            values[name] = value
        return config | {"model_args": _joined(without_secrets(values))}
    return config


def _joined(arguments: Mapping[str, object]) -> str:
    """lm-eval's text of arguments, `name=value,name=value`."""
    return ",".join(f"{name}={value}" for name, value in arguments.items())


def _lines(file: Path) -> list[Sample]:
    """The lines of lm-eval's sample log. Raises DamagedError for one without lines, or that lacks
    fields."""
    lines = read_lines(file, MOVED) or []
    lacking: set[str] = set()
    for line in lines:
        lacking |= FIELDS - line.keys()
    if lacking:
        raise damaged(
            file,
            f"lines lack {', '.join(sorted(lacking))}, which lm-eval 0.4.7 and later write",
            MOVED,
        )
    if not lines:
        raise damaged(file, "it is empty", MOVED)
    return samples_of(lines, file, MOVED)
