"""The tables over seeds on the terminal, from the files of `moe_lab.runs.summaries`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from moe_lab.reports.scores import headline, marks_of
from moe_lab.reports.terminal.formats import interval, number
from moe_lab.reports.terminal.results import settings, split_marks
from moe_lab.reports.terminal.stacks import Item, StackedTable, names, numbers, print_stacked, stacked_table
from moe_lab.results.stored_files import read_mapping

DOCUMENTS = "95% over documents"
SEEDS = "95% over seeds"
BOTH = "95% over both"
EXPLAINED = {
    "std": "standard deviation over seeds.",
    "mean": "of the metric over seeds; its intervals are over documents and over seeds.",
    "difference": "mean minus that of base.",
    "p": "of one test over seeds and documents, from five seeds on.",
}
"""What a column shows."""
ONE_STUDY = (
    "1 study: all seeds have its temperatures, so the spread is that of the evaluation's routing noise alone; "
    "tuning.seeds= repeats the study, too."
)

Line = tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]
"""Names, scores of the headline metric, summary."""


def print_summaries(files: Sequence[Path]) -> None:
    """Print the summaries over seeds, each row's interval over documents and over seeds, and the files' paths."""
    lines = list(summary_lines([summary for file in files if (summary := read_mapping(file)) is not None]))
    if lines:
        print()
        print_stacked(_table(lines), EXPLAINED)
    for other in dict.fromkeys(other for _, score, _ in lines for other in score.get("compared", {})):
        print_stacked(_compared_table(lines, other), {})
    if any(len(summary.get("studies", [])) == 1 for _, _, summary in lines):
        print(ONE_STUDY)
    for file in files:
        print(file)


def summary_lines(summaries: Sequence[dict[str, Any]]) -> Iterator[Line]:
    """A line for each task of each summary: names, scores of the headline metric, and the summary."""
    labels = settings([summary["overrides"] for summary in summaries], [0] * len(summaries))
    for summary, label in zip(summaries, labels, strict=True):
        for task, scores in summary["scores"].items():
            metric = headline(scores, summary["task"]["metric"])
            if metric in scores:  # predict_only computes no score
                names = (summary["model"]["name"], summary["method"]["name"], task, label, metric)
                yield names, scores[metric], summary


def _table(lines: Sequence[Line]) -> StackedTable:
    scores = [score for _, score, _ in lines]
    spread = {
        "seeds": [count_seeds(summary) for _, _, summary in lines],
        "std": [number(score["std"]) for score in scores],
        "base": [number(score.get("base")) for score in scores],
    }
    mean = {
        "mean": [number(score["mean"]) for score in scores],
        DOCUMENTS: [interval(score["ci95_documents"]) for score in scores],
        SEEDS: [interval(score["ci95_seeds"]) for score in scores],
    }
    common, own = split_marks([marks_of(summary) for _, _, summary in lines])
    stacks = [*_names(lines, own), numbers(spread), numbers(mean), _difference(scores)]
    return stacked_table("Over seeds", stacks, common)


def count_seeds(summary: dict[str, Any]) -> str:
    """The number of seeds; for tuned runs the number of studies, too."""
    studies = len(summary.get("studies", []))
    of_studies = f" ({studies} {'study' if studies == 1 else 'studies'})" if studies else ""
    return f"{len(summary['seeds'])}{of_studies}"


def _compared_table(lines: Sequence[Line], other: str) -> StackedTable:
    """The lines that are compared with another run of each seed."""
    name = other.replace("_", " ")
    compared = [line for line in lines if other in line[1].get("compared", {})]
    scores = [score["compared"][other] for _, score, _ in compared]
    means = {
        "mean": [number(score["mean"]) for _, score, _ in compared],
        name: [number(score["mean"]) for score in scores],
    }
    stacks = [*_names(compared), numbers(means), _difference(scores)]
    return stacked_table(f"Over seeds, compared with {name}", stacks)


def _names(lines: Sequence[Line], marks: Sequence[str] = ()) -> list[list[Item]]:
    """What the lines are of: the run, and the task with its metric."""
    model, method, task, label, metric = (
        list(cells) for cells in zip(*(line[0] for line in lines), strict=True)
    )
    run = {"model": model, "method": method, "settings": label} | ({"marks": marks} if marks else {})
    return [names(run), names({"task": task, "metric": metric})]


def _difference(scores: Sequence[dict[str, Any]]) -> list[Item]:
    limits = {
        heading: [interval(score.get(f"difference_ci95_{over}"), sign=True) for score in scores]
        for heading, over in ((DOCUMENTS, "documents"), (SEEDS, "seeds"), (BOTH, "both"))
        if over != "both" or any("difference_ci95_both" in score for score in scores)
    }
    tested = [number(score.get("difference_p_both")) for score in scores]
    p = {"p": tested} if any("difference_p_both" in score for score in scores) else {}
    return numbers(
        {"difference": [number(score.get("difference"), sign=True) for score in scores]} | limits | p
    )
