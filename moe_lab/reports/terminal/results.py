"""The tables of results on the terminal, at the end of a run, a grid or a report: scores, means over seeds, costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from moe_lab.config.terminal import one_line
from moe_lab.reports.terminal.layout import (
    Column,
    TextTable,
    count,
    mebibytes,
    names,
    numbers,
    percent,
    print_text_table,
    seconds,
    text_table,
)
from moe_lab.results.measured import interval, number
from moe_lab.results.model import BASE, RunResult, compared_names
from moe_lab.results.score_table import Family, SeedGroup
from moe_lab.results.scores import EQUAL, MARKS, PART, Score, marks_of, scores_of, shown_scores
from moe_lab.results.significance import ALPHA

# The table of costs

COST_EXPLAINED = {
    "time": "seconds of answering.",
    "load": "seconds of loading the model, which the time does not include.",
    "tokens in": "all tokens that went through the model for this run, a method's extra samples included.",
    "tokens out": "generated.",
    "tokens/s": "tokens in, per second of the time.",
    "peak memory": "of the device; on a CPU of the whole process.",
    "experts": "mean number of experts of a token in a layer, if the method changes it.",
    "near ties": "greedy tokens whose runner-up was within the dtype's rounding; other batch shapes may choose it. "
    "method=roe method.temperature=0 shows the effect of rounding alone.",
}


def cost_table(results: Sequence[RunResult], labels: Sequence[str]) -> TextTable:
    """One row per run: time without loading, tokens, peak memory, and the share of routing that the method changed.

    `labels` are the settings of each run.
    """
    costs = [result.cost for result in results]
    run = {
        "model": [result.model for result in results],
        "method": [result.method for result in results],
        "settings": labels,
        "task": [",".join(result.requested) for result in results],
    }
    time = {
        "time": [seconds(cost.seconds) for cost in costs],
        "load": [seconds(cost.load_seconds) for cost in costs],
    }
    tokens = {
        "tokens in": [count(cost.tokens_in) for cost in costs],
        "tokens out": [count(cost.tokens_out) for cost in costs],
    }
    routing = {
        "re-routed": [percent(result.report.get("changed_fraction")) for result in results],
        "near ties": [count(cost.near_ties) if cost.near_ties else "" for cost in costs],
    }
    experts = [result.report.get("experts_per_token") for result in results]
    if any(value is not None for value in experts):
        routing = {"experts": ["" if value is None else f"{value:.2f}" for value in experts]} | routing
    speed = {
        "tokens/s": [count(cost.tokens_per_second) for cost in costs],
        "peak memory": [mebibytes(cost.peak_memory_bytes) for cost in costs],
    }
    device = Column(heading="device", cells=[cost.device or "-" for cost in costs], shared=True)
    return text_table("Cost", [*names(run), *numbers(time | tokens | speed), device, *numbers(routing)])


# The tables of results on the terminal, at the end of a run, a grid or a report

INTERVAL = "95% interval"
P = "p"
HOLM = "p (Holm)"
TWO_FORMS = (
    "task.answer: letters asks for the letter of the right choice, text scores the text of each choice, as lm-eval "
    "does. With task.answer=text or letters for all runs, their scores can be compared."
)
NOT_CORRECTED = "that of one comparison, not corrected for their number"
OF_ONE_RUN = "McNemar's exact test for 0/1 scores, else a paired permutation test"
"""The test of a row of one run. Means over seeds have `TEST`."""
NAMED_ELSEWHERE = ("model=", "method=", "task=", "seed=", "seeds=")


def print_outcomes(results: Sequence[RunResult], footnotes: Sequence[str], family: Family) -> None:
    """Print scores, their differences to the base model and their costs, for one run or a whole grid.

    `footnotes` are those of the runs' methods, `family` that of the command's comparisons.
    """
    labels = run_labels(results)
    for other in [BASE, *compared_names(results)]:
        print_text_table(score_table(results, labels, family, other), explained(other, family))
    print_text_table(cost_table(results, labels), COST_EXPLAINED)
    for line in notes(results, footnotes):
        print(one_line(line))


def run_labels(results: Sequence[RunResult]) -> list[str]:
    """The settings of each run, with the form of its answers where runs of one task ask in two forms."""
    labels = settings([result.overrides for result in results], [result.seed for result in results])
    mixed = _asked_in_two_forms(results)
    for place, result in enumerate(results):
        if names := [name for name in result.requested if name in mixed]:
            labels[place] = f"{labels[place]} task.answer={result.answer_form(names[0])}".lstrip()
    return labels


def _asked_in_two_forms(results: Sequence[RunResult]) -> set[str]:
    """The tasks that some runs ask by text and some by letters."""
    asked = {(name, result.answer_form(name)) for result in results for name in result.requested}
    return {name for name, _ in asked if {(name, "text"), (name, "letters")} <= asked}


def settings(overrides: Sequence[Sequence[str]], seeds: Sequence[int | None]) -> list[str]:
    """For each run of a grid, the overrides that not all runs of its method share. Model and task are left out.

    In a grid of several methods the keys of a method are always shown, because one key may mean something else in
    another method. `seeds` are None for methods without randomness. Seeds are shown unless all are 0.
    """
    methods = [tuple(text for text in typed if text.startswith("method=")) for typed in overrides]
    several = len({*methods} - {(), ("method=base",)}) > 1
    shared = {
        method: set.intersection(
            *(set(o) for o, other in zip(overrides, methods, strict=True) if other == method)
        )
        for method in methods
    }
    labels = []
    for typed, seed, method in zip(overrides, seeds, methods, strict=True):
        own = [
            text
            for text in typed
            if (text not in shared[method] or (several and text.startswith("method.")))
            and not text.startswith(NAMED_ELSEWHERE)
        ]
        labels.append(" ".join(own if seed is None or not any(seeds) else [*own, f"seed={seed}"]))
    return labels


def corrected_for(family: Family) -> str:
    """What p (Holm) is corrected for."""
    return f"corrected by Holm for the comparisons of the same question ({family.note})"


def explained(other: str, family: Family) -> dict[str, str]:
    """The meaning of the columns in a table that compares with another run."""
    other = other.replace("_", " ")
    return {
        "n": "documents.",
        "value": "the metric; rates are fractions. Intervals are over documents.",
        "difference": f"value minus that of {other} on the same documents. Its interval is {NOT_CORRECTED}.",
        P: f"{OF_ONE_RUN}. Significant below {ALPHA}.",
        HOLM: f"{OF_ONE_RUN}; {corrected_for(family)}. Significant below {ALPHA}.",
        "changed": f"answers, + wrong in {other} and right here, - the other way round.",
    }


def score_table(
    results: Sequence[RunResult], labels: Sequence[str], family: Family, other: str = BASE
) -> TextTable:
    """One row per task and run: n, value and interval, paired difference to `other` and interval, p, and flips.

    Flips are the numbers of documents that only the run, and only the other one, has right. p is corrected by Holm if
    the command has several comparisons; the page also has the p before the correction. A single one of several seeds
    has no p, because the mean over seeds is tested. If `other` is not base, the table has the runs that are compared
    with it, and its values.
    """
    found = [
        (result, label, row)
        for result, label in zip(results, labels, strict=True)
        if other == BASE or other in result.compared
        for row in (shown_scores(result) if other == BASE else scores_of(result, other=other))
        if PART not in row.marks
    ]
    labels, rows = [label for _, label, _ in found], [family.correct(row) for *_, row in found]
    value = {"value": [number(row.value) for row in rows]}
    compared = comparison_columns(rows)
    lower = _lower_is_better(found)
    if other != BASE:
        name = other.replace("_", " ")
        values = numbers(value | {name: [number(row.baseline) for row in rows]})
        return text_table(f"Compared with {name}", [*_names(rows, labels), *values, *compared], lower)
    common, own = split_marks([row.marks for row in rows])
    values = numbers(value | {INTERVAL: [interval(row.interval) for row in rows]})
    n = Column(heading="n", cells=["" if row.n is None else f"{row.n:,}" for row in rows], shared=True)
    return text_table("Results", [*_names(rows, labels, own), n, *values, *compared], [*lower, *common])


def _lower_is_better(found: Sequence[tuple[RunResult, str, Score]]) -> list[str]:
    """The note in the title. It names the metrics if the table also has metrics for which higher is better."""
    lower = {row.metric: result.lower_is_better(row.task, row.metric) for result, _, row in found}
    if not any(lower.values()):
        return []
    named = "" if all(lower.values()) else f": {', '.join(metric for metric in lower if lower[metric])}"
    return [f"(lower is better{named})"]


def split_marks(marks: Sequence[Sequence[str]]) -> tuple[list[str], list[str]]:
    """The notes that all rows share, and the cells with each row's other notes."""
    common = [mark for mark in MARKS if all(mark in row for row in marks)]
    own = [" ".join(mark for mark in row if mark not in common) for row in marks]
    return common, [f"({each})" if each else "" for each in own]


def _names(rows: Sequence[Score], labels: Sequence[str], marks: Sequence[str] = ()) -> list[Column]:
    """The run of each row, and its task with the metric."""
    run = {"model": [row.model for row in rows], "method": [row.method for row in rows], "settings": labels}
    marked = {"notes": marks} if marks else {}
    task = {"task": [row.task for row in rows], "metric": [row.metric for row in rows]}
    return names(run | marked | task)


def comparison_columns(rows: Sequence[Score]) -> list[Column]:
    """The difference of each row, with its interval, its p and the changed answers."""
    flips = ["" if row.flips is None else f"+{row.flips[0]} -{row.flips[1]}" for row in rows]
    return [*_differences(rows, {INTERVAL: "difference_interval"}), *numbers({"changed": flips})]


def _differences(rows: Sequence[Score], intervals: Mapping[str, str]) -> list[Column]:
    """The difference, its intervals (the attribute of each heading), and p, corrected if there are several."""
    columns = {"difference": [number(row.difference, sign=True) for row in rows]}
    for heading, name in intervals.items():
        columns[heading] = [interval(getattr(row, name), sign=True) for row in rows]
    several = any((row.family or 1) > 1 for row in rows)
    p = [EQUAL if row.equal else number(row.p_holm) for row in rows]
    return numbers(columns | {HOLM if several else P: p})


def notes(results: Sequence[RunResult], footnotes: Sequence[str]) -> list[str]:
    """The meanings of the notes that appear, and the methods' footnotes."""
    seen = {mark for result in results for mark in marks_of(result)}
    seen |= {
        EQUAL
        for result in results
        for other in (BASE, *result.compared)
        for row in shown_scores(result, other)
        if row.equal
    }
    lines = [text for mark, text in MARKS.items() if mark in seen]
    lines += sorted({line for result in results for line in [*result.version_notes, *result.unjudged]})
    if parts := {row.task for result in results for row in shown_scores(result) if PART in row.marks}:
        lines.append(
            f"Parts of groups are on the page: {len(parts)} tasks and groups, without tests of their own."
        )
    if _asked_in_two_forms(results):
        lines.append(TWO_FORMS)
    return [*lines, *footnotes]


# The tables of means over seeds on the terminal

DOCUMENTS = "95% over documents"
SEEDS = "95% over seeds"
BOTH = "95% over both"
TEST = "one test over seeds and documents; with fewer than five seeds the larger p of a test over each"
EXPLAINED = {
    "std": "standard deviation over seeds.",
    "mean": "of the metric over seeds; its intervals are over documents and over seeds.",
    "difference": f"mean minus that of the other runs. An interval is {NOT_CORRECTED}.",
    P: f"{TEST}. Significant below {ALPHA}.",
    BOTH: "seeds and documents together, from five seeds on: the interval that belongs to p.",
}
"""The meanings of columns."""
ONE_STUDY = (
    "1 study: all seeds have its temperatures, so the spread is that of the evaluation's routing noise alone; "
    "tuning.seeds= repeats the study, too."
)


@dataclass(frozen=True)
class SeedLine:
    """The mean over the seeds of a run, compared with one other run."""

    score: Score
    label: str
    """The settings of the run."""
    seeds: str
    """The number of seeds, and of studies."""


def print_summaries(groups: Sequence[SeedGroup], files: Sequence[Path], family: Family) -> None:
    """Print the means over seeds, each with its interval over documents and over seeds, and the summaries' paths."""
    for other in [BASE, *compared_names(result for group in groups for result in group.results)]:
        if lines := seed_lines(groups, family, other):
            print()
            print_text_table(
                _table(lines, other),
                EXPLAINED | {HOLM: f"{TEST}; {corrected_for(family)}. Significant below {ALPHA}."},
            )
    if any(len((group.summary or {}).get("studies", [])) == 1 for group in groups):
        print(ONE_STUDY)
    for file in files:
        print(file)


def seed_lines(groups: Sequence[SeedGroup], family: Family, other: str = BASE) -> list[SeedLine]:
    """A line for each task and shown metric of each group that has several seeds and is compared with `other`."""
    summaries = [group.summary or {} for group in groups]
    labels = settings([summary["overrides"] for summary in summaries], [0] * len(summaries))
    lines = []
    for group, summary, label in zip(groups, summaries, labels, strict=True):
        if other != BASE and other not in compared_names(group.results):
            continue
        studies = len(summary.get("studies", []))
        of_studies = f" ({studies} {'study' if studies == 1 else 'studies'})" if studies else ""
        for score in map(family.correct, group.scores(other)):
            if score.value is not None and PART not in score.marks:  # predict_only computes no score
                lines.append(SeedLine(score, label, f"{len(summary['seeds'])}{of_studies}"))
    return lines


def _table(lines: Sequence[SeedLine], other: str) -> TextTable:
    scores = [line.score for line in lines]
    spread = {
        "seeds": [line.seeds for line in lines],
        "std": [number(score.std) for score in scores],
        other.replace("_", " "): [
            "" if score.value is None or score.difference is None else number(score.value - score.difference)
            for score in scores
        ],
    }
    mean = {
        "mean": [number(score.value) for score in scores],
        DOCUMENTS: [interval(score.interval) for score in scores],
        SEEDS: [interval(score.seed_interval) for score in scores],
    }
    common, own = split_marks([score.marks for score in scores])
    columns = [
        *_names(scores, [line.label for line in lines], own),
        *numbers(spread | mean),
        *_differences(
            scores,
            {
                DOCUMENTS: "difference_interval",
                SEEDS: "difference_seed_interval",
                BOTH: "difference_both_interval",
            },
        ),
    ]
    title = "Over seeds" if other == BASE else f"Over seeds, compared with {other.replace('_', ' ')}"
    return text_table(title, columns, common)
