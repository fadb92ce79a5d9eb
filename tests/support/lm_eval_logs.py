"""Results and sample logs as lm-eval's own tracker writes them, made by hand."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moe_lab.results.comparisons.evaluation import Evaluation, read_evaluation

DATE = "2026-01-02T03-04-05.678901"
LATER = "2026-01-02T03-04-06"
"""Without microseconds, as lm-eval writes it once in a million."""


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def sample(number: int, *, text: str = "", filter: str = "none", **metrics: Any) -> dict[str, Any]:
    """A line of a sample log. `text` is the document's, which is `document <number>` otherwise."""
    text = text or f"document {number}"
    line = {
        "doc_id": number,
        "doc": {"question": text},
        "target": f"target of {text}",
        "arguments": {"gen_args_0": {"arg_0": f"Question: {text}", "arg_1": {"until": ["\n"]}}},
        "resps": [[f"answer {metrics}"]],
        "filtered_resps": [f"answer {metrics}"],
        "filter": filter,
        "metrics": list(metrics),
        "doc_hash": hash_of(text),
        "prompt_hash": hash_of(f"Question: {text}"),
        "target_hash": hash_of(f"target of {text}"),
    }
    return line | metrics


def samples_of(filter: str = "none", **metrics: Sequence[Any]) -> list[dict[str, Any]]:
    """One line per document; each metric has a value per document."""
    samples = []
    for number, values in enumerate(zip(*metrics.values(), strict=True)):
        samples.append(sample(number, filter=filter, **dict(zip(metrics, values, strict=True))))
    return samples


def write_log(
    folder: Path,
    samples: Mapping[str, Sequence[dict[str, Any]]],
    *,
    scores: Mapping[str, Mapping[str, Any]] | None = None,
    date: str = DATE,
    **changes: Any,
) -> Path:
    """The results file of an evaluation, with its sample logs next to it.

    Args:
        scores: the score of each task and group by `metric,filter`.
            A task that is not given has the means of its samples.
        changes: other keys of the results file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    all_scores: dict[str, dict[str, Any]] = {}
    for task, lines in samples.items():
        all_scores[task] = {"alias": task, **means(lines)}
    for name, given_scores in (scores or {}).items():
        all_scores[name] = dict(given_scores)
    results = {
        "results": all_scores,
        "group_subtasks": {},
        "configs": {task: {"task": task, "metric_list": [{"metric": "acc"}]} for task in samples},
        "versions": dict.fromkeys(samples, 1),
        "n-shot": dict.fromkeys(samples, 0),
        "higher_is_better": {task: {"acc": True} for task in samples},
        "n-samples": {},
        "model_name": "org/model",
        "lm_eval_version": "0.4.13",
    } | changes
    file = folder / f"results_{date}.json"
    file.write_text(json.dumps(results))
    for task, lines in samples.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"samples_{task}_{date}.jsonl").write_text(text)
    return file


def means(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The mean of each metric that is a number, by `metric,filter`."""
    values_of: dict[str, list[float]] = {}
    for line in lines:
        for metric in line["metrics"]:
            value = line[metric]
            if isinstance(value, int | float):
                values_of.setdefault(f"{metric},{line['filter']}", []).append(value)
    return {metric: sum(values) / len(values) for metric, values in values_of.items()}


def evaluation(
    folder: Path, key: str, samples: Mapping[str, Sequence[Any]], **options: Any
) -> Evaluation:
    """A written and read evaluation; `options` go to `write_log`."""
    return read_evaluation(key, write_log(folder / key, samples, **options))
