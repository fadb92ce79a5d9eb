"""The tables of results on the terminal, at the end of a run, a grid or a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moe_lab.config.terminal import one_line
from moe_lab.reports.scores import MARKS, Score, against, corrected, marks_of, scores_of, shown_scores
from moe_lab.reports.terminal.cost import COST_EXPLAINED, cost_table
from moe_lab.reports.terminal.formats import interval, number
from moe_lab.reports.terminal.stacks import Item, StackedTable, names, numbers, print_stacked, stacked_table
from moe_lab.results.folder import version_marks
from moe_lab.results.significance import ALPHA
from moe_lab.results.verdicts import unjudged_lines

INTERVAL = "95% interval"
P = "p"
HOLM = "p (Holm)"
NAMED_ELSEWHERE = ("model=", "method=", "task=", "seed=", "seeds=")


def print_outcomes(results: Sequence[dict[str, Any]], footnotes: Sequence[str]) -> None:
    """Print scores against the untouched model and what they cost, for one run or a whole grid, in 80 columns.

    `footnotes` are those of the runs' methods.
    """
    blocks = [result["moe_lab"] for result in results]
    for table, explanations in outcome_tables(results):
        print_stacked(table, explanations)
    for line in notes(blocks, footnotes):
        print(one_line(line))


def outcome_tables(results: Sequence[dict[str, Any]]) -> list[tuple[StackedTable, dict[str, str]]]:
    """The tables of scores, of comparisons with other runs than base, and of costs, with what their columns show."""
    blocks = [result["moe_lab"] for result in results]
    labels = settings(
        [block.get("overrides", []) for block in blocks], [block.get("seed") for block in blocks]
    )
    others = dict.fromkeys(name for block in blocks for name in block.get("compared", {}))
    return [
        (score_table(results, labels), explained("base")),
        *((compared_table(results, labels, other), explained(other.replace("_", " "))) for other in others),
        (cost_table(blocks, labels), COST_EXPLAINED),
    ]


def settings(overrides: Sequence[Sequence[str]], seeds: Sequence[int | None]) -> list[str]:
    """The overrides by which each run of a grid differs from the others of its method, model and task aside.

    `seeds` are None for methods without randomness; the others are shown unless all are 0.
    """
    methods = [tuple(text for text in typed if text.startswith("method=")) for typed in overrides]
    shared = {
        method: set.intersection(
            *(set(o) for o, other in zip(overrides, methods, strict=True) if other == method)
        )
        for method in methods
    }
    labels = []
    for typed, seed, method in zip(overrides, seeds, methods, strict=True):
        own = [text for text in typed if text not in shared[method] and not text.startswith(NAMED_ELSEWHERE)]
        labels.append(" ".join(own if seed is None or not any(seeds) else [*own, f"seed={seed}"]))
    return labels


def explained(other: str) -> dict[str, str]:
    """What a column shows, in a table that compares with another run."""
    return {
        "n": "documents.",
        "value": "the metric; rates are fractions.",
        "difference": f"value minus that of {other} on the same documents.",
        P: f"McNemar's test or, not of 0 and 1, by randomization; below {ALPHA} told from chance.",
        HOLM: f"the same, corrected for all rows; below {ALPHA} it is told from chance.",
        "flips": f"+ wrong in {other} and right here, - the other way round.",
    }


def score_table(results: Sequence[dict[str, Any]], labels: Sequence[str]) -> StackedTable:
    """One row per task and run: n, value with its interval, paired difference to base with its interval, p, and flips:
    how many documents base has wrong and the run right, and the other way round.

    p is corrected by Holm for the table where it has several. The page has p before the correction, too.
    """
    labelled = [
        (label, row) for result, label in zip(results, labels, strict=True) for row in shown_scores(result)
    ]
    labels, rows = [label for label, _ in labelled], corrected([row for _, row in labelled])
    common, own = split_marks([row.marks for row in rows])
    value = numbers(
        {"value": [number(row.value) for row in rows], INTERVAL: [interval(row.interval) for row in rows]}
    )
    n = Item(heading="n", cells=["-" if row.n is None else f"{row.n:,}" for row in rows], shared=True)
    stacks = [*_names(rows, labels, own), [n], value, *_comparison(rows)]
    return stacked_table("Results", stacks, common)


def compared_table(results: Sequence[dict[str, Any]], labels: Sequence[str], other: str) -> StackedTable:
    """One row per task and run that is compared with another one, as `score_table` compares it with base."""
    labelled = [
        (label, row)
        for result, label in zip(results, labels, strict=True)
        if other in result["moe_lab"].get("compared", {})
        for row in scores_of(against(result, other))
    ]
    labels, rows = [label for label, _ in labelled], corrected([row for _, row in labelled])
    name = other.replace("_", " ")
    values = numbers(
        {"value": [number(row.value) for row in rows], name: [number(row.baseline) for row in rows]}
    )
    return stacked_table(f"Compared with {name}", [*_names(rows, labels), values, *_comparison(rows)])


def split_marks(marks: Sequence[Sequence[str]]) -> tuple[list[str], list[str]]:
    """The marks that all rows have, and the cells with the other marks of each row."""
    common = [mark for mark in MARKS if all(mark in row for row in marks)]
    own = [" ".join(mark for mark in row if mark not in common) for row in marks]
    return common, [f"({each})" if each else "" for each in own]


def _names(rows: Sequence[Score], labels: Sequence[str], marks: Sequence[str] = ()) -> list[list[Item]]:
    """What the rows are of: the run, and the task with its metric."""
    run = {"model": [row.model for row in rows], "method": [row.method for row in rows], "settings": labels}
    marked = {"marks": marks} if marks else {}
    task = {"task": [row.task for row in rows], "metric": [row.metric for row in rows]}
    return [names(run | marked), names(task)]


def _comparison(rows: Sequence[Score]) -> list[list[Item]]:
    several = sum(row.p is not None for row in rows) > 1
    p_values = [row.p_holm if several else row.p for row in rows]
    flips = ["-" if row.flips is None else f"+{row.flips[0]} -{row.flips[1]}" for row in rows]
    difference = {
        "difference": [number(row.difference, sign=True) for row in rows],
        INTERVAL: [interval(row.difference_interval, sign=True) for row in rows],
    }
    test = {HOLM if several else P: list(map(number, p_values)), "flips": flips}
    return [numbers(difference), numbers(test)]


def notes(blocks: Sequence[dict[str, Any]], footnotes: Sequence[str]) -> list[str]:
    """What the marks mean, for those that appear, and the methods' footnotes."""
    seen = {mark for block in blocks for mark in marks_of(block)}
    lines = [text for mark, text in MARKS.items() if mark in seen]
    lines += sorted({line for block in blocks for line in [*version_marks(block), *unjudged_lines(block)]})
    return [*lines, *footnotes]
