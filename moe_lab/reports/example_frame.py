"""The examples of runs as a data frame: prompt, answer, target and score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moe_lab.reports.config_settings import with_counts
from moe_lab.reports.pages.answers import answer_of
from moe_lab.results.model import RunResult
from moe_lab.results.samples import Sample, metric_values, read_samples
from moe_lab.results.scores import headline

if TYPE_CHECKING:
    import pandas as pd


def example_frame(
    results: Sequence[RunResult], settings: Mapping[str, Mapping[str, Any]]
) -> pd.DataFrame:
    """The frame of `Results.examples`; `settings` are those of each run, by run id.

    Raises DamagedError.
    """
    import pandas as pd

    rows = []
    for result in results:
        run_columns = {
            "model": result.model.name,
            "method": result.method.name,
            **settings[result.run_id],
            "seed": result.seed,
        }
        for task, samples in read_samples(result).items():
            for example in example_rows(result, task, samples):
                rows.append(run_columns | example | {"run": result.stored_in.name})
    return with_counts(pd.DataFrame(rows), settings.values()).astype({"seed": "Int64"})


def example_rows(
    result: RunResult, task: str, samples: Sequence[Sample]
) -> Iterator[dict[str, Any]]:
    """One row per example, by the filter of the task's headline metric.

    Keys: `task`, `document`, `prompt`, `answer`, `target`, `score` and `metric`. With predict_only
    the score is None, the metric a dash, and every filter has rows.
    """
    key = headline(result.lm_eval.scores(task), result.metric)
    metric, _, filter_name = key.partition(",")
    scores = metric_values(list(samples)).get(key, {})
    for sample in samples:
        if sample.filter != filter_name and key != "-":
            continue
        yield {
            "task": task,
            "document": sample.document,
            **_texts(sample, metric),
            "score": scores.get(sample.document),
            "metric": key,
        }


def _texts(sample: Sample, metric: str) -> dict[str, Any]:
    """`prompt`, `answer` and `target` of a sample as texts.

    For choices, the answer is the chosen one (None if the metric's rule is not known) and the
    target the right one. A text that is scored as a whole has no answer (None).
    """
    answer = answer_of(sample, metric)
    if answer is None:  # a text that is scored as a whole
        prompt = sample.requests[0][0] if sample.requests else None
        return {"prompt": prompt, "answer": None, "target": str(sample.target)}
    if answer.text is not None:
        return {"prompt": answer.prompt, "answer": answer.text, "target": str(sample.target)}

    chosen = None
    if answer.picked is not None:
        chosen = answer.choices[answer.picked].strip()
    return {"prompt": answer.prompt, "answer": chosen, "target": answer.target}
