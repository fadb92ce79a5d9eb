"""The results of a command as data frames: the score table, and the examples."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from moe_lab.reports.expert import expert_metrics_of, logged_values
from moe_lab.reports.pages.answers import answer_of
from moe_lab.reports.scores import CommandTable
from moe_lab.results.model import RunResult
from moe_lab.results.run_parts import flat
from moe_lab.results.samples import Sample, metric_values, read_samples
from moe_lab.results.score import NO_SCORE
from moe_lab.results.scores import headline

if TYPE_CHECKING:
    import pandas as pd

    from moe_lab.config.schema import Config

SHOWN_ELSEWHERE = (
    "model.name",
    "method.name",
    "task.name",
    "task.metric",
    "seed",
    "seeds",
    "overrides",
)
"""Settings that are columns already, or that repeat others."""
WHOLE = ("seed", "seeds", "examples", "family", "to_right", "to_wrong")
"""Columns of whole numbers, of which some may be missing."""
TEXTS = (
    "model",
    "method",
    "task",
    "metric",
    "compared_with",
    "difference_over",
    "test",
    "question",
    "notes",
)
NUMBERS = [name for name in NO_SCORE.columns() if name not in (*WHOLE, *TEXTS)]


def settings_of(
    configs: Sequence[Config], asked: Sequence[Config], every: bool = False
) -> list[dict[str, Any]]:
    """The settings of each configuration by `group.key`: those whose values differ among `asked`, or every one.

    A key of `model`, `method` or `task` differs if two configurations with the same option have other values of it:
    what only follows from another option is no setting of its own.
    """
    asked_for = [flat(asdict(config)) for config in asked]
    keys = [
        key
        for key in dict.fromkeys(key for one in asked_for for key in one)
        if key not in SHOWN_ELSEWHERE
    ]
    if not every:
        values: dict[tuple[str, str], set[str]] = {}
        for one in asked_for:
            for key, value in one.items():
                option = one.get(f"{key.partition('.')[0]}.name") if "." in key else None
                values.setdefault((key, repr(option)), set()).add(repr(value))
        differing = {key for (key, _), found in values.items() if len(found) > 1}
        keys = [key for key in keys if key in differing]
    return [
        {key: one.get(key) for key in keys} for one in (flat(asdict(config)) for config in configs)
    ]


# The score table


def score_frame(
    table: CommandTable, configs: Mapping[str, Config], asked: Sequence[Config], every: bool = False
) -> pd.DataFrame:
    """The score table of a command: the frame of `moe_lab.Results.frame`, which documents its columns.

    Args:
        configs: the configuration of each run of the table, by id.
        asked: the configurations of the command's own runs.
        every: a column for every setting, not only for those that differ.
    """
    settings = settings_by_run(table.runs, configs, asked, every)
    measured = any(config.metrics != "none" for config in asked)
    more: dict[str, dict[str, Any]] = {}
    for run in table.runs:
        costs = {
            f"cost/{name}": value for name, value in run.cost.known().items() if value is not None
        }
        content = expert_metrics_of(run) if measured else None
        more[run.run_id] = costs | (logged_values(content) if content is not None else {})
    files = {group.results[0].run_id: group.file for group in table.groups}
    rows = []
    for line in table.lines:
        columns, run = line.score.columns(), line.results[0]
        names = {name: columns.pop(name) for name in ("model", "method")}
        own = {"seed": run.seed, "run": run.stored_in.name} | more[run.run_id]
        if len(line.results) > 1:
            file = files[run.run_id]
            own = {"seed": None, "run": file and file.stem}
        rows.append(names | settings[run.run_id] | columns | own)
    return typed_frame(rows, settings.values())


def typed_frame(
    rows: Sequence[Mapping[str, Any]], settings: Collection[Mapping[str, Any]] = ()
) -> pd.DataFrame:
    """Rows of scores as a frame, in which numbers are numbers also where all are missing."""
    import pandas as pd

    types = dict.fromkeys(WHOLE, "Int64") | dict.fromkeys(NUMBERS, "float64")
    frame = with_counts(pd.DataFrame(rows), settings)
    return frame.astype({name: kind for name, kind in types.items() if name in frame})


def settings_by_run(
    results: Sequence[RunResult],
    configs: Mapping[str, Config],
    asked: Sequence[Config],
    every: bool = False,
) -> dict[str, dict[str, Any]]:
    """The settings of each result's configuration (`settings_of`) by run id."""
    ids = [result.run_id for result in results]
    return dict(
        zip(ids, settings_of([configs[run_id] for run_id in ids], asked, every), strict=True)
    )


def with_counts(frame: pd.DataFrame, settings: Collection[Mapping[str, Any]]) -> pd.DataFrame:
    """The frame with whole numbers in the columns of settings that are whole numbers wherever they are given."""
    names = next(iter(settings), {})
    known = {
        name: [value for one in settings if (value := one[name]) is not None] for name in names
    }
    whole = [
        name
        for name, values in known.items()
        if values and all(type(value) is int for value in values)
    ]
    return frame.astype(dict.fromkeys(whole, "Int64"))


# The examples


def example_frame(
    results: Sequence[RunResult], settings: Mapping[str, Mapping[str, Any]]
) -> pd.DataFrame:
    """The frame of `Results.examples`; `settings` are those of each run, by run id. Raises DamagedError."""
    import pandas as pd

    rows = []
    for result in results:
        run = {
            "model": result.model.name,
            "method": result.method.name,
            **settings[result.run_id],
            "seed": result.seed,
        }
        for task, lines in read_samples(result).items():
            rows += [
                run | row | {"run": result.stored_in.name}
                for row in example_rows(result, task, lines)
            ]
    return with_counts(pd.DataFrame(rows), settings.values()).astype({"seed": "Int64"})


def example_rows(
    result: RunResult, task: str, samples: Sequence[Sample]
) -> Iterator[dict[str, Any]]:
    """One row per example, by the filter of the task's headline metric."""
    key = headline(result.lm_eval.scores(task), result.metric)
    metric, _, filter_name = key.partition(",")
    values = metric_values(list(samples)).get(key, {})
    for sample in samples:
        if sample.filter == filter_name or key == "-":
            place = {"task": task, "document": sample.document}
            yield (
                place
                | _texts(sample, metric)
                | {"score": values.get(sample.document), "metric": key}
            )


def _texts(sample: Sample, metric: str) -> dict[str, Any]:
    """Prompt, answer and target of a sample as texts; of choices the chosen one and the right one."""
    answer = answer_of(sample, metric)
    if answer is None:  # a text that is scored as a whole
        prompt = sample.requests[0][0] if sample.requests else None
        return {"prompt": prompt, "answer": None, "target": str(sample.target)}
    if answer.text is not None:
        return {"prompt": answer.prompt, "answer": answer.text, "target": str(sample.target)}
    chosen = None if answer.picked is None else answer.choices[answer.picked].strip()
    return {"prompt": answer.prompt, "answer": chosen, "target": answer.target}
