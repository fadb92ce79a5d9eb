"""A paper's table as data: `<stem>.json` beside its Markdown, from which pages are made."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from moe_lab.reports.figure_kinds import TABLES
from moe_lab.reports.papers.average import averages
from moe_lab.reports.papers.cell import TableCell, compared_names, published_of
from moe_lab.reports.papers.experiment import Experiment, Published
from moe_lab.reports.papers.ranking import Ranked, ranking, ranks
from moe_lab.reports.papers.stated import Stated, stated_numbers
from moe_lab.reports.papers.table_files import file_stem, title
from moe_lab.reports.papers.told_apart import Place, corrected_scores, place_of
from moe_lab.reports.scores import Score
from moe_lab.results.atomic import write_json, writing
from moe_lab.results.stored_files import warn_once, whole_mapping

RECORD_VERSION = [3, *(field.name for field in fields(Score))]
"""Changes with the fields of a score."""


def write_record(experiment: Experiment, scale: str, cells: Sequence[TableCell], folder: Path) -> Path:
    """Write `<stem>.json` (`file_stem`) of a table and return its path. Raises ResultsError."""
    path = record_path(experiment, scale, folder)
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(path, table_record(experiment, scale, cells, stated_numbers(experiment, scale, folder)))
    return path


def record_path(experiment: Experiment, scale: str, folder: Path) -> Path:
    return folder / f"{file_stem(experiment, scale)}.json"


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The records of all tables in a folder, by file name.

    Damaged ones, and those of another version, are named on stderr and left out.
    """
    found = []
    for path in sorted(folder.glob("*.json")):
        record = whole_mapping(path)
        if record is not None and record.get("version") != RECORD_VERSION:
            warn_once(f"{path} is of another version. Its table's command with mode=report writes it again.")
        elif record is not None and record.get("stem") != path.stem:  # the page reads the files of this name
            warn_once(f"{path} is the record of another table. It is left out.")
        elif record is not None:
            found.append(record)
    return found


def has_numbers(path: Path) -> bool:
    """Whether a record exists and has a measured cell."""
    return path.exists() and any(cell.get("score") for cell in (whole_mapping(path) or {}).get("cells", []))


def table_record(
    experiment: Experiment, scale: str, cells: Sequence[TableCell], stated: Sequence[Stated] = ()
) -> dict[str, Any]:
    """All that a page says of a table.

    `cells` have coordinates, the score as `scores.Score`, the published number and the reason for an empty cell;
    averages come after them, and last what the paper's text states for the figure. `ranking` has pre-trained designs by
    held-out loss, `unmatched` published numbers without a cell, `runs` the runs of the cells by id.
    """
    others = compared_names(cells)
    shown = [cell for cell in [*cells, *averages(experiment, cells)] if _applies(cell)]
    scores = corrected_scores(shown)
    matched = [id(published_of(experiment, cell)) for cell in shown] + [id(each.published) for each in stated]
    return {
        "version": RECORD_VERSION,
        "name": experiment.name,
        "paper": experiment.name.partition("/")[0],
        "stem": file_stem(experiment, scale),
        "title": title(experiment, scale),
        "source": experiment.source,
        "scale": scale,
        "command": command(
            [f"experiment={experiment.name}", f"scale={scale}", *experiment.typed], experiment.config_dirs
        ),
        "axes": experiment.keys,
        "figure": experiment.figure,
        "of_settings": experiment.figure in TABLES,
        "compared": others,
        "cells": [_cell(experiment, cell, others, scores) for cell in shown] + [*map(_stated, stated)],
        "ranking": _ranking(experiment, cells),
        "unmatched": [_published(each) for each in experiment.paper if id(each) not in matched],
        "runs": {
            each["moe_lab"]["run_id"]: run_record(each["moe_lab"]) for cell in cells for each in cell.results
        },
    }


def command(overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> str:
    """The command line of some overrides, quoted for a shell; `config_dirs` are the folders of `--config-dir`."""
    flags = [part for folder in config_dirs for part in ("--config-dir", folder)]
    return shlex.join(["python", "-m", "moe_lab", *flags, *overrides])


def run_record(block: dict[str, Any]) -> dict[str, Any]:
    """Where a run's numbers come from; `block` is the `moe_lab` part of its results.json."""
    return {
        "run_id": block["run_id"],
        "command": command(block.get("overrides", [])),
        "seed": block.get("seed"),
        "versions": block["versions"],
        "documents": {task: ranges(numbers) for task, numbers in block["samples"].items()},
    }


def ranges(numbers: Sequence[int]) -> str:
    """Document numbers as `0-4, 7`."""
    parts: list[list[int]] = []
    for each in sorted(numbers):
        if parts and each == parts[-1][1] + 1:
            parts[-1][1] = each
        else:
            parts.append([each, each])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _applies(cell: TableCell) -> bool:
    """False for a number of a training that its design does not have: the leak of token choice, say."""
    score = cell.score() if cell.of_training else None
    return score is None or score.value is not None


def _cell(
    experiment: Experiment, cell: TableCell, others: Sequence[str], scores: Mapping[Place, Score]
) -> dict[str, Any]:
    score, published = scores.get(place_of(cell)), published_of(experiment, cell)
    return {
        "coordinates": cell.coordinates,
        "metric": cell.metric,
        "shows": cell.shows(),
        "lower_is_better": lower_is_better(cell.results[0], score) if cell.results and score else False,
        "average": bool(cell.parts),
        "score": None if score is None else asdict(score),
        "compared": {
            other: asdict(scores[place]) for other in others if (place := place_of(cell, other)) in scores
        },
        "published": None if published is None else _published(published),
        "problem": cell.problem,
        "runs": [each["moe_lab"]["run_id"] for each in cell.results],
        "studies": [study.name for study in cell.studies],
    }


def _stated(each: Stated) -> dict[str, Any]:
    """A cell of a number that the paper's text states, with the figure's own quantity as its score."""
    places = dict(zip(("model", "task"), each.where.split(", "), strict=False)) if each.where else {}
    score = Score(model="", method="", task="", metric=each.quantity, run_id="", value=each.measured)
    return {
        "coordinates": (places or each.published.cell) | {"quantity": each.quantity},
        "metric": each.quantity,
        "shows": None,
        "lower_is_better": False,
        "average": False,
        "score": None if each.measured is None else asdict(score),
        "compared": {},
        "published": _published(each.published),
        "problem": None,
        "absent": each.why_absent,
        "runs": [],
        "studies": [],
    }


def _ranking(experiment: Experiment, cells: Sequence[TableCell]) -> list[dict[str, Any]]:
    ranked = ranking(experiment, cells)
    return [_ranked(one, rank) for one, rank in zip(ranked, ranks(ranked), strict=True)]


def _ranked(one: Ranked, rank: int) -> dict[str, Any]:
    """A line of the ranking by held-out loss."""
    return {
        "rank": rank,
        "design": one.name,
        "loss": asdict(one.loss),
        "difference": one.difference,
        "interval": one.interval,
        "p": one.p,
        "accuracy": None if one.accuracy is None else asdict(one.accuracy),
        "chance": one.chance,
    }


def lower_is_better(results: dict[str, Any], score: Score) -> bool:
    """Whether lm-eval says so of the metric of a score of a run."""
    better = results.get("higher_is_better", {}).get(score.task, {})
    return better.get(score.metric.partition(",")[0]) is False


def _published(published: Published) -> dict[str, Any]:
    return asdict(published) | {"fraction": published.fraction}
