"""The score table of a command: a line for each run, task and run that it is compared with, and for each mean.

The terminal, pages, data frames, W&B and plots show these lines.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, Literal

from moe_lab.reports.columns import Column, count, fixed, names, numbers, seconds, texts
from moe_lab.results.family import NO_COMPARISONS, Family
from moe_lab.results.marks import NOT_REPRODUCIBLE, PART
from moe_lab.results.measured import interval_text, number
from moe_lab.results.model import BASE, RunResult, compared_names
from moe_lab.results.score import BETTER, DIFFERENT, EQUAL_RUNS, NOT_SIGNIFICANT, WORSE, Score
from moe_lab.results.score_table import SeedGroup
from moe_lab.results.scores import shown_scores

NAMED_ELSEWHERE = ("model=", "method=", "task=", "task.metric=", "seed=", "seeds=")
PROFILE = re.compile(r"(?<=[=:])[^=:{},]*/([^/]+)/best\.yaml")

JUDGED: tuple[tuple[str, Literal["empty", "all_cut"]], ...] = (
    ("empty", "empty"),
    ("cut", "all_cut"),
)
"""Columns of judged scores with their numbers in `JudgeCounts`; one without any is not shown."""


@dataclass(frozen=True)
class ScoreLine:
    """A score in a view of a command: that of a run, or a mean over seeds."""

    score: Score
    label: str
    """The settings of the run."""
    results: Sequence[RunResult] = ()
    """The run, or one per seed."""

    @property
    def name(self) -> str:
        score, settings = self.score, f" ({self.label})" if self.label else ""
        return (
            f"{score.method} on {score.task}{settings}"
            if score.method
            else f"{self.label} on {score.task}"
        )

    def cost(self, key: str) -> float | None:
        """A number of `cost`, of several seeds the mean; None where one is missing."""
        values = []
        for result in self.results:
            value = getattr(result.cost, key)
            if value is None:
                return None
            values.append(float(value))
        return fmean(values) if values else None

    def of_judge(self, key: Literal["empty", "all_cut"]) -> float | None:
        """A number of the score's judge (`JudgeCounts`), of several seeds the mean; None where one is missing."""
        values = []
        for result in self.results:
            counts = result.judge_counts(self.score.task, self.score.metric)
            value = None if counts is None else getattr(counts, key)
            if value is None:
                return None
            values.append(value)
        return fmean(values) if values else None


@dataclass(frozen=True)
class CommandTable:
    """The scores of a command."""

    runs: Sequence[RunResult]
    """Each after the runs that it is compared with."""
    groups: Sequence[SeedGroup] = ()
    """The results by configuration; those with a summary are means over seeds."""
    family: Family = NO_COMPARISONS

    @cached_property
    def labels(self) -> list[str]:
        """The settings of each run."""
        return run_labels(self.runs)

    @cached_property
    def lines(self) -> list[ScoreLine]:
        """The scores of all runs, each compared with base and then with its other runs; then the means over seeds."""
        lines = [
            ScoreLine(self.family.correct(score), label, [run])
            for run, label in zip(self.runs, self.labels, strict=True)
            for other in (BASE, *run.compared)
            for score in shown_scores(run, other)
        ]
        means = [group for group in self.groups if group.summary is not None]
        labels = settings([group.results[0].overrides for group in means], [None] * len(means))
        return lines + [
            ScoreLine(self.family.correct(score), label, group.results)
            for group, label in zip(means, labels, strict=True)
            for other in (BASE, *compared_names(group.results))
            for score in group.scores(other)
            if score.value is not None  # predict_only computes no score
        ]

    @cached_property
    def shown(self) -> list[ScoreLine]:
        """The lines of a short table: a mean in the place of its seeds, a group in the place of its parts."""
        seeds = {run.run_id for group in self.groups if group.summary for run in group.results}
        return [
            line
            for line in self.lines
            if line.score.run_id not in seeds and PART not in line.score.marks
        ]

    def times_base(self, line: ScoreLine) -> float | None:
        """The tokens of a line's run, relative to those of its base model; None where one number is missing."""
        own, base = line.cost("tokens_in"), line.results[0].base_id or line.results[0].run_id
        of_base = next((run.cost.tokens_in for run in self.runs if run.run_id == base), None)
        return own / of_base if own is not None and of_base else None

    def columns(self, lines: Sequence[ScoreLine] | None = None) -> list[Column]:
        """The columns of `lines`, by default of those that are `shown`, with the cost of their runs."""
        lines = self.shown if lines is None else lines
        costly = [line if line.score.other == BASE else None for line in lines]  # each run once
        cost = [
            numbers(
                "time", [line and line.cost("wall_seconds") for line in costly], seconds, spare=5
            ),
            numbers("tokens", [line and line.cost("tokens_in") for line in costly], count, spare=6),
            numbers("× base", [line and self.times_base(line) for line in costly], fixed, spare=1),
        ]
        judged = []
        for heading, key in JUDGED:
            values = [line and line.of_judge(key) for line in costly]
            if any(values):
                judged.append(numbers(heading, values, "{:g}".format))
        *scores, notes = score_columns(lines)
        return [*scores, *judged, *cost, notes]


def score_columns(lines: Sequence[ScoreLine]) -> list[Column]:
    """The columns of scores: what they are of, value, difference, and notes last."""
    scores = [line.score for line in lines]
    others = [one.other.replace("_", " ") if one.difference is not None else "" for one in scores]
    return [
        *names(
            model=[score.model for score in scores],
            method=[score.method for score in scores],
            settings=[line.label for line in lines],
            task=[score.task for score in scores],
            metric=[score.metric for score in scores],
        ),
        *value_columns(scores),
        *[texts("against", others)] * bool({*others} - {BASE, ""}),
        *difference_columns(scores),
        texts("notes", [" ".join(score.marks) for score in scores]),
    ]


def value_columns(scores: Sequence[Score]) -> list[Column]:
    """The value of each score with its intervals, and what it is a mean over."""
    seeds = [None if score.value is None else score.seeds for score in scores]
    return [
        *[numbers("seeds", seeds, count, name=True)] * any(score.seeds > 1 for score in scores),
        numbers("n", [score.n for score in scores], count, name=True),
        numbers("value", [score.value for score in scores], number),
        interval_column("95% over documents", [score.interval for score in scores], spare=2),
        numbers("std", [score.std for score in scores], number, spare=4),
        interval_column("95% over seeds", [score.seed_interval for score in scores], spare=3),
    ]


def difference_columns(scores: Sequence[Score]) -> list[Column]:
    """The difference of each score, the interval and the p of its test, and the numbers of changed answers."""
    several = any((score.family or 1) > 1 for score in scores)
    p = numbers("p (Holm)" if several else "p", [score.p_holm for score in scores], number)
    changed = [
        "" if score.changed is None else f"+{score.changed[0]} -{score.changed[1]}"
        for score in scores
    ]
    return [
        numbers(
            "difference",
            [score.difference for score in scores],
            lambda value: number(value, sign=True),
        ),
        *(
            interval_column(
                f"95% over {over}",
                [score.tested_interval if score.tested_over == over else None for score in scores],
                sign=True,
            )
            for over in dict.fromkeys(
                score.tested_over for score in scores if score.tested_interval
            )
        ),
        p,
        Column(
            heading="changed",
            cells=changed,
            values=[score.changed and score.changed[0] for score in scores],
            spare=4,
        ),
    ]


def interval_column(
    heading: str, bounds: Sequence[Any], sign: bool = False, spare: int = 0
) -> Column:
    """A column of intervals, which a page sorts by their lower limits."""
    cells = [interval_text(one, sign) for one in bounds]
    return Column(
        heading=heading, cells=cells, values=[one and one[0] for one in bounds], spare=spare
    )


def plotted(lines: Sequence[ScoreLine]) -> list[ScoreLine]:
    """The lines whose difference has an interval, with the labels of a plot.

    These name the model if there are several, the method, its settings, and the other run unless it is base. A setting
    that a study found is named by the study only where two lines would have the same label otherwise.
    """
    several = len({line.score.model for line in lines}) > 1
    tested = [line for line in lines if line.score.tested_interval is not None]
    labels = [_plot_label(line, several, _settings_without_studies(line)) for line in tested]
    places = Counter(
        (line.score.task, line.score.metric, label)
        for line, label in zip(tested, labels, strict=True)
    )
    found = []
    for line, label in zip(tested, labels, strict=True):
        if places[line.score.task, line.score.metric, label] > 1:
            label = _plot_label(line, several, line.label)
        found.append(ScoreLine(line.score, label))
    return found


def _settings_without_studies(line: ScoreLine) -> str:
    """The settings of a line without those that are the name of the study of its runs."""
    studies = {result.tuning.get("study") for result in line.results}
    kept = [text for text in line.label.split(" ") if text.partition("=")[2] not in studies]
    return " ".join(kept)


def _plot_label(line: ScoreLine, several_models: bool, settings: str) -> str:
    score = line.score
    parts = [score.model * several_models, score.method, settings.replace("method.", "")]
    label = ", ".join(part for part in parts if part)
    if score.other == BASE:
        return label
    return f"{label}, minus {score.other.replace('_', ' ')}"


def difference_panels(lines: Iterable[ScoreLine]) -> list[list[ScoreLine]]:
    """The lines of each task and metric whose difference has an interval, the largest difference first."""
    known = [line for line in lines if line.score.tested_interval is not None]
    found: dict[tuple[str, str], list[ScoreLine]] = {}
    for line in sorted(known, key=lambda line: -abs(line.score.difference or 0.0)):
        found.setdefault((line.score.task, line.score.metric), []).append(line)
    return list(found.values())


def panel_title(lines: Sequence[ScoreLine]) -> str:
    """The task of a panel and its number of examples."""
    counts = "/".join(dict.fromkeys(f"{line.score.n:,}" for line in lines if line.score.n))
    task = lines[0].score.task
    return f"{task}, {counts} examples" if counts else task


# The settings of runs


def run_labels(results: Sequence[RunResult]) -> list[str]:
    """The settings of each run, with the form of its answers where runs of one task ask in two forms."""
    labels = settings([result.overrides for result in results], [result.seed for result in results])
    mixed = asked_in_two_forms(results)
    for place, result in enumerate(results):
        if asked := [name for name in result.task.names if name in mixed]:
            labels[place] = f"{labels[place]} task.answer={result.answer_form(asked[0])}".lstrip()
    return labels


def asked_in_two_forms(results: Sequence[RunResult]) -> set[str]:
    """The tasks that some runs ask by text and some by letters."""
    asked = {(name, result.answer_form(name)) for result in results for name in result.task.names}
    return {name for name, _ in asked if {(name, "text"), (name, "letters")} <= asked}


def settings(overrides: Sequence[Sequence[str]], seeds: Sequence[int | None]) -> list[str]:
    """For each run of a grid, the overrides that not all runs of its method share. Model and task are left out.

    In a grid of several methods the keys of a method are always shown, because one key may mean something else in
    another method. `seeds` are None for methods without randomness. Seeds are shown unless all are 0. A profile is
    shown by the name of its study, whose folder it lies in.
    """
    last = [{text.partition("=")[0]: text for text in typed} for typed in overrides]  # of each key
    overrides = [list(typed.values()) for typed in last]
    methods = [tuple(text for text in typed if text.startswith("method=")) for typed in overrides]
    several = len({*methods} - {(), ("method=base",)}) > 1
    shared = {
        own: set.intersection(
            *(set(typed) for typed, one in zip(overrides, methods, strict=True) if one == own)
        )
        for own in methods
    }
    labels = []
    for typed, own, seed in zip(overrides, methods, seeds, strict=True):
        shown = [
            text
            for text in typed
            if text not in shared[own] or (several and text.startswith("method."))
        ]
        shown = [PROFILE.sub(r"\1", text) for text in shown if not text.startswith(NAMED_ELSEWHERE)]
        labels.append(
            " ".join(shown if seed is None or not any(seeds) else [*shown, f"seed={seed}"])
        )
    return labels


# Comparisons in words

EXPLAINED = (
    "Differences are on the same documents. McNemar's exact test decides at 5%, and a paired permutation test where "
    "scores are not 0 or 1; p is corrected by Holm for the comparisons of the same question in the command that "
    "computed it; intervals are those of one comparison, not corrected. A mean over five seeds or more has one test "
    "over seeds and documents; with fewer seeds the larger p of a test over each decides. Expert metrics of one run "
    "have no test: the 95% interval of the difference decides, uncorrected."
)


def has_verdict(score: Score) -> bool:
    """Whether a difference is tested or judged by its interval.

    One of several seeds, a part of a group, and a run whose policy is not reproducible have no verdict.
    """
    if score.difference is None or PART in score.marks or NOT_REPRODUCIBLE in score.marks:
        return False
    one_of_several_seeds = score.p is not None and score.p_holm is None
    return not one_of_several_seeds


def sentence(line: ScoreLine, against: str | None = None) -> str:
    """The verdict on a difference: its outcome, size, interval and p.

    Args:
        against: the name of the run that it is compared with; by default the base model or `score.other`.
    """
    score = line.score
    against = against or (
        "the base model" if score.other == BASE else score.other.replace("_", " ")
    )
    if score.verdict == EQUAL_RUNS:
        return f"{line.name} equals {against} within rounding in every document ({score.metric})."
    outcome = {
        DIFFERENT: f"differs from {against}",
        NOT_SIGNIFICANT: f"does not differ significantly from {against}",
    }
    text = f"{line.name} {outcome.get(score.verdict, f'is {score.verdict} than {against}')}: {score.metric} "
    text += f"{number(score.difference, sign=True)}"
    if score.tested_interval is not None:
        text += f", 95% over {score.tested_over} {interval_text(score.tested_interval, sign=True)}"
    if score.p is not None:
        holm = (
            ""
            if score.p_holm is None or (score.family or 1) < 2
            else f", {score.p_holm:.2g} by Holm"
        )
        text += f", p {score.p:.2g}{holm}"
    if score.changed is not None:
        text += f"; changed answers +{score.changed[0]:,} -{score.changed[1]:,}"
    return text + "."


def by_outcome(lines: Iterable[ScoreLine]) -> dict[str, list[ScoreLine]]:
    """The lines by verdict; an outcome that has none is absent, but for better, worse and not significant."""
    every, order = list(lines), (BETTER, WORSE, DIFFERENT, EQUAL_RUNS, NOT_SIGNIFICANT)
    found = {kind: [line for line in every if line.score.verdict == kind] for kind in order}
    return {
        kind: own for kind, own in found.items() if own or kind in (BETTER, WORSE, NOT_SIGNIFICANT)
    }


def conclusion(lines: Sequence[ScoreLine], against: str | None = None) -> str:
    """One comparison as its sentence, several as the number of each outcome; empty without any."""
    if len(lines) < 2:
        return "".join(sentence(line, against) for line in lines)
    counts = ", ".join(f"{len(own)} {kind}" for kind, own in by_outcome(lines).items())
    others = {line.score.other for line in lines}
    against = against or (
        "the base model" if others == {BASE} else "the base model and its controls"
    )
    return f"Of {len(lines)} comparisons with {against}: {counts}."
