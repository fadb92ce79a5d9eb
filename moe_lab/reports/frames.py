"""The score table of a command as a data frame."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moe_lab.reports.confidence import confidence_of
from moe_lab.reports.confidence import logged_values as logged_confidence
from moe_lab.reports.config_settings import settings_by_run, with_counts
from moe_lab.reports.expert import expert_metrics_of, logged_values
from moe_lab.reports.score_line import ScoreLine
from moe_lab.reports.scores import CommandTable
from moe_lab.results.model import RunResult
from moe_lab.results.score import NO_SCORE

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from moe_lab.config.schema import Config

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


def score_frame(
    table: CommandTable,
    configs: Mapping[str, Config],
    asked: Sequence[Config],
    all_settings: bool = False,
) -> pd.DataFrame:
    """The score table of a command. `moe_lab.Results.frame` documents its columns.

    Args:
        configs: the configuration of each run of the table, by id.
        asked: the configurations of the command's own runs.
        all_settings: a column for every setting, not only for those that differ.
    """
    settings = settings_by_run(table.runs, configs, asked, all_settings)
    metrics = {config.metrics for config in asked}
    measurements = {run.run_id: _measurements(run, metrics) for run in table.runs}
    summary_files = {group.results[0].run_id: group.file for group in table.groups}

    rows = []
    for line in table.lines:
        run_id = line.results[0].run_id
        columns = line.score.columns()
        row = {"model": columns.pop("model"), "method": columns.pop("method")}
        row |= settings[run_id]
        row |= columns
        if len(line.results) > 1:
            row |= _place_of_mean(summary_files[run_id])
        else:
            row |= _place_of_run(line) | measurements[run_id]
        rows.append(row)
    return typed_frame(rows, settings.values())


def _measurements(run: RunResult, metrics: Collection[str]) -> dict[str, Any]:
    """The cost of a run, as `cost/<key>`, and what `metrics=` measured, as loggers name it."""
    measurements = {}
    for key, value in run.cost.known().items():
        if value is not None:
            measurements[f"cost/{key}"] = value
    if "expert" in metrics:
        expert_metrics = expert_metrics_of(run)
        if expert_metrics is not None:
            measurements |= logged_values(expert_metrics)
    if "confidence" in metrics:
        confidence = confidence_of(run)
        if confidence is not None:
            measurements |= logged_confidence(confidence)
    return measurements


def _place_of_run(line: ScoreLine) -> dict[str, Any]:
    """`seed` and `run` (the name of its folder) of the line of a single run."""
    result = line.results[0]
    return {"seed": result.seed, "run": result.stored_in.name}


def _place_of_mean(summary_file: Path | None) -> dict[str, Any]:
    """`seed` (None) and `run` (the name of its summary; None without one) of a mean over seeds."""
    summary = None if summary_file is None else summary_file.stem
    return {"seed": None, "run": summary}


def typed_frame(
    rows: Sequence[Mapping[str, Any]], settings: Collection[Mapping[str, Any]] = ()
) -> pd.DataFrame:
    """Rows of scores as a frame, with one type per column.

    A column of numbers is Int64 or float64, even if all its values are missing.

    Args:
        settings: the settings of each run, which are columns of `rows`. Those that are integers
            become Int64, too.
    """
    import pandas as pd

    types = dict.fromkeys(WHOLE, "Int64") | dict.fromkeys(NUMBERS, "float64")
    frame = with_counts(pd.DataFrame(rows), settings)
    return frame.astype({name: kind for name, kind in types.items() if name in frame})
