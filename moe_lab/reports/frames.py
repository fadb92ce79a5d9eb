"""The results of a command as data frames: the score table, and the examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moe_lab.config.recorded import recorded
from moe_lab.reports.expert import expert_metrics_of, logged_values
from moe_lab.reports.pages.answers import answer_of
from moe_lab.reports.papers.table import Table
from moe_lab.results.model import BASE, RunResult
from moe_lab.results.samples import Sample, metric_values, read_samples
from moe_lab.results.score_table import Family, SeedGroup, flat
from moe_lab.results.scores import Score, headline, shown_scores

if TYPE_CHECKING:
    import pandas as pd

    from moe_lab.config.schema import Config

SHOWN_ELSEWHERE = ("model.name", "method.name", "task.name", "task.metric", "seed", "seeds", "overrides")
"""Settings that are columns already, or that repeat others."""
WHOLE = ("seed", "seeds", "examples", "family", "to_right", "to_wrong")
"""Columns of whole numbers, of which some may be missing."""
VALUES = ("value", "low", "high", "stderr", "std", "seed_low", "seed_high")
DIFFERENCES = ("difference", "difference_low", "difference_high")
OF_CELLS = (
    *("metric", "seeds", "examples", *VALUES, "compared_with", *DIFFERENCES),
    *("difference_over", "test", "p", "p_holm", "question", "family", "notes"),
)
"""Columns of the score table that a cell of an experiment's table has."""


def settings_of(
    configs: Sequence[Config], asked: Sequence[Config], every: bool = False
) -> list[dict[str, Any]]:
    """The settings of each configuration by `group.key`: those whose values differ among `asked`, or every one.

    A key of `model`, `method` or `task` differs if two configurations with the same option have other values of it:
    what only follows from another option is no setting of its own.
    """
    flat = [_flat(recorded(config)) for config in asked]
    keys = [key for key in dict.fromkeys(key for one in flat for key in one) if key not in SHOWN_ELSEWHERE]
    if not every:
        options = {key: f"{key.partition('.')[0]}.name" if "." in key else "" for key in keys}
        found = {
            (key, repr(one.get(options[key])), repr(one[key])) for one in flat for key in keys if key in one
        }
        counts = Counter((key, option) for key, option, _ in found)
        keys = [key for key in keys if any(counts[key, repr(one.get(options[key]))] > 1 for one in flat)]
    return [{key: one.get(key) for key in keys} for one in map(_flat, map(recorded, configs))]


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """By `group.key`, and `group.key.key` where a key has keys of its own."""
    nested = {
        f"{group}.{key}": value
        for group, section in values.items()
        if isinstance(section, dict)
        for key, value in _flat(section).items()
    }
    return {key: value for key, value in values.items() if not isinstance(value, dict)} | nested


# The score table


def score_frame(
    results: Sequence[RunResult],
    configs: Sequence[Config],
    asked: Sequence[Config],
    groups: Sequence[SeedGroup],
    family: Family,
    every: bool = False,
) -> pd.DataFrame:
    """The score table of a command: the frame of `moe_lab.Results.frame`, which documents its columns.

    Args:
        results: of the command's runs and of those that they are compared with.
        configs: the configuration of each result.
        asked: the configurations of the command's own runs.
        groups: the results by configuration; those with a summary are means over seeds.
        every: a column for every setting, not only for those that differ.
    """
    import pandas as pd

    settings = settings_by_run(results, configs, asked, every)
    measured = any(config.metrics != "none" for config in asked)
    rows = []
    for result in results:
        more = {f"cost/{name}": value for name, value in result.cost.items() if value is not None}
        if measured and (content := expert_metrics_of(result)) is not None:
            more |= logged_values(content)
        for score in (score for other in (BASE, *result.compared) for score in shown_scores(result, other)):
            row = _row(family.correct(score), settings[result.run_id], result.seed, result.stored_in.name)
            rows.append(row | more)
    for group in groups:
        if group.summary is not None and group.file is not None:
            first = group.results[0]
            scores = (score for other in (BASE, *first.compared) for score in group.scores(other))
            rows += [
                _row(family.correct(score), settings[first.run_id], run=group.file.stem) for score in scores
            ]
    # all of these may be missing in every row
    types = dict.fromkeys(WHOLE, "Int64") | dict.fromkeys((*VALUES, *DIFFERENCES, "p", "p_holm"), "float64")
    return with_counts(pd.DataFrame(rows), settings.values()).astype(types)


def settings_by_run(
    results: Sequence[RunResult], configs: Sequence[Config], asked: Sequence[Config], every: bool = False
) -> dict[str, dict[str, Any]]:
    """The settings of each result's configuration (`settings_of`) by run id."""
    found = settings_of(configs, asked, every)
    return {result.run_id: own for result, own in zip(results, found, strict=True)}


def with_counts(frame: pd.DataFrame, settings: Collection[Mapping[str, Any]]) -> pd.DataFrame:
    """The frame with whole numbers in the columns of settings that are whole numbers wherever they are given."""
    names = next(iter(settings), {})
    known = {name: [value for one in settings if (value := one[name]) is not None] for name in names}
    whole = [name for name, values in known.items() if values and all(type(value) is int for value in values)]
    return frame.astype(dict.fromkeys(whole, "Int64"))


def _row(
    score: Score, settings: Mapping[str, Any], seed: int | None = None, run: str | None = None
) -> dict[str, Any]:
    columns, difference = flat(score), score.tested_interval or (None, None)
    right, wrong = score.flips or (None, None)
    return {
        "model": score.model,
        "method": score.method,
        **settings,
        "task": score.task,
        "metric": score.metric,
        "seed": seed,
        "seeds": score.seeds,
        "examples": score.n,
        **{name: columns[name] for name in VALUES},
        "compared_with": None if score.difference is None else score.other,
        **dict(zip(DIFFERENCES, (score.difference, *difference), strict=True)),
        "difference_over": score.tested_over if score.tested_interval else None,
        "test": score.test,
        "p": score.p,
        "p_holm": score.p_holm,
        "question": score.question,
        "family": score.family,
        "to_right": right,
        "to_wrong": wrong,
        "notes": " ".join(score.marks),
        "run": run,
    }


# The tables of experiments


def table_frame(table: Table) -> pd.DataFrame:
    """One row per cell, average and run that it is compared with; a cell without a result has the reason alone.

    Columns: the coordinates of the cell, the numbers of `score_frame`, `published` (the paper's number, a fraction
    where the score is one) and `problem`.
    """
    import pandas as pd

    rows = []
    for row in table.shown:
        paper = {"published": row.published and row.published.fraction, "problem": row.problem}
        for score in [row.score, *row.compared.values()] if row.score or row.compared else [None]:
            numbers = _row(score, {}) if score else {}
            rows.append(row.coordinates | {name: numbers[name] for name in OF_CELLS if score} | paper)
    return pd.DataFrame(rows)


# The examples


def example_frame(results: Sequence[RunResult], settings: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """The frame of `Results.examples`; `settings` are those of each run, by run id. Raises DamagedError."""
    import pandas as pd

    rows = []
    for result in results:
        run = {"model": result.model, "method": result.method, **settings[result.run_id], "seed": result.seed}
        for task, lines in read_samples(result).items():
            rows += [run | row | {"run": result.stored_in.name} for row in _examples(result, task, lines)]
    return with_counts(pd.DataFrame(rows), settings.values()).astype({"seed": "Int64"})


def _examples(result: RunResult, task: str, samples: Sequence[Sample]) -> Iterator[dict[str, Any]]:
    """One row per example, by the filter of the task's headline metric."""
    key = headline(result.scores(task), result.metric)
    metric, _, filter_name = key.partition(",")
    values = metric_values(list(samples)).get(key, {})
    for sample in samples:
        if sample.filter == filter_name or key == "-":
            place = {"task": task, "document": sample.document}
            yield place | _texts(sample, metric) | {"score": values.get(sample.document), "metric": key}


def _texts(sample: Sample, metric: str) -> dict[str, Any]:
    """Prompt, answer and target of a sample as texts; of choices the chosen one and the right one."""
    answer = answer_of(sample, metric)
    if answer is None:  # a text that is scored as a whole
        prompt = sample.requests[0][0] if sample.requests else None
        return {"prompt": prompt, "answer": None, "target": str(sample.target)}
    if answer.text is not None:
        return {"prompt": answer.prompt, "answer": answer.text, "target": str(sample.target)}
    chosen = None if answer.picked is None else answer.choices[answer.picked].strip()
    return {"prompt": answer.prompt, "answer": chosen, "target": answer.target(sample)}
