"""The tables on the terminal at the end of a run, a grid or a report: scores, means over seeds, costs, studies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moe_lab.config.terminal import one_line
from moe_lab.reports.provenance import not_shared
from moe_lab.reports.terminal.layout import (
    Cells,
    Column,
    TextTable,
    cells_of,
    count,
    fixed,
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
from moe_lab.results.score_table import Family, ScoreLine, SeedGroup
from moe_lab.results.scores import EQUAL, MARKS, PART, Score, marks_of, scores_of, shown_scores
from moe_lab.results.significance import ALPHA
from moe_lab.results.stored_files import read_mapping

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
COST_COLUMNS: Cells = {
    "time": lambda run: seconds(run.cost.get("wall_seconds")),
    "load": lambda run: seconds(run.cost.get("load_seconds")),
    "tokens in": lambda run: count(run.cost.get("tokens_in")),
    "tokens out": lambda run: count(run.cost.get("tokens_out")),
    "tokens/s": lambda run: count(run.cost.get("tokens_per_second")),
    "peak memory": lambda run: mebibytes(run.cost.get("peak_memory_bytes")),
    "device": lambda run: run.cost.get("device") or "-",
    "experts": lambda run: fixed(run.report.get("experts_per_token")),
    "re-routed": lambda run: percent(run.report.get("changed_fraction")),
    "near ties": lambda run: count(run.cost.get("near_ties") or None),
}


def cost_table(results: Sequence[RunResult], labels: Sequence[str]) -> TextTable:
    """One row per run: time without loading, tokens, peak memory, and the share of routing that the method changed.

    `labels` are the settings of each run.
    """
    named = {
        "model": [run.model for run in results],
        "method": [run.method for run in results],
        "settings": labels,
        "task": [",".join(run.requested) for run in results],
    }
    return text_table("Cost", [*names(named), *numbers(cells_of(results, COST_COLUMNS), shared=["device"])])


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
    labels = []
    for typed, own, seed in zip(overrides, not_shared(overrides, methods), seeds, strict=True):
        shown = [text for text in typed if text in own or (several and text.startswith("method."))]
        shown = [text for text in shown if not text.startswith(NAMED_ELSEWHERE)]
        labels.append(" ".join(shown if seed is None or not any(seeds) else [*shown, f"seed={seed}"]))
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
    lines = [
        ScoreLine(family.correct(score), label)
        for run, label in zip(results, labels, strict=True)
        if other == BASE or other in run.compared
        for score in (shown_scores(run) if other == BASE else scores_of(run, other=other))
        if PART not in score.marks
    ]
    # the title names the metrics if the table also has metrics for which higher is better
    lower = {line.score.metric: line.score.lower_is_better for line in lines}
    named = "" if all(lower.values()) else f": {', '.join(metric for metric in lower if lower[metric])}"
    marks = [f"(lower is better{named})"] if any(lower.values()) else []
    values: Cells = {"value": lambda score: number(score.value)}
    if other != BASE:
        name = other.replace("_", " ")
        values |= {name: lambda score: number(score.baseline)}
        return _table(f"Compared with {name}", lines, values, marks, with_notes=False)
    values = {"n": documents} | values | {INTERVAL: lambda score: interval(score.interval)}
    return _table("Results", lines, values, marks)


def documents(score: Score) -> str:
    return "" if score.n is None else f"{score.n:,}"


def _table(
    title: str,
    lines: Sequence[ScoreLine],
    values: Cells,
    marks: Sequence[str] = (),
    intervals: Mapping[str, str] | None = None,
    with_notes: bool = True,
) -> TextTable:
    """A row per line: its run, notes, task and metric, the values, and the comparison; `intervals` are its."""
    scores = [line.score for line in lines]
    common = [mark for mark in MARKS if with_notes and all(mark in score.marks for score in scores)]
    own = [" ".join(mark for mark in score.marks if mark not in common) for score in scores]
    run = {"model": [score.model for score in scores], "method": [score.method for score in scores]}
    run["settings"] = [line.label for line in lines]
    run |= {"notes": [f"({each})" if each else "" for each in own]} if with_notes else {}
    run |= {"task": [score.task for score in scores], "metric": [score.metric for score in scores]}
    seeds = {"seeds": [line.seeds for line in lines]}
    columns = [*names(run), *numbers(seeds | cells_of(scores, values), shared=["n"])]
    return text_table(title, [*columns, *comparison_columns(scores, intervals)], [*marks, *common])


def comparison_columns(scores: Sequence[Score], intervals: Mapping[str, str] | None = None) -> list[Column]:
    """The difference of each score, its intervals, p, corrected if there are several, and the changed answers.

    Args:
        intervals: the attribute of `Score` by heading; by default the interval over documents.
    """
    several = any((score.family or 1) > 1 for score in scores)
    limits = {
        heading: [interval(getattr(score, name), sign=True) for score in scores]
        for heading, name in (intervals or {INTERVAL: "difference_interval"}).items()
    }
    p = {HOLM if several else P: [EQUAL if score.equal else number(score.p_holm) for score in scores]}
    changed = ["" if score.flips is None else f"+{score.flips[0]} -{score.flips[1]}" for score in scores]
    differences = {"difference": [number(score.difference, sign=True) for score in scores]}
    return numbers(differences | limits | p | {"changed": changed})


def notes(results: Sequence[RunResult], footnotes: Sequence[str]) -> list[str]:
    """The meanings of the notes that appear, and the methods' footnotes."""
    seen = {mark for result in results for mark in marks_of(result)}
    compared = [(result, other) for result in results for other in (BASE, *result.compared)]
    seen |= {EQUAL for result, other in compared for row in shown_scores(result, other) if row.equal}
    lines = [text for mark, text in MARKS.items() if mark in seen]
    lines += sorted({line for result in results for line in [*result.version_notes, *result.unjudged]})
    if parts := {row.task for result in results for row in shown_scores(result) if PART in row.marks}:
        counted = f"{len(parts)} tasks and groups"
        lines.append(f"Parts of groups are on the page: {counted}, without tests of their own.")
    if _asked_in_two_forms(results):
        lines.append(TWO_FORMS)
    return [*lines, *footnotes]


# The tables of means over seeds on the terminal

DOCUMENTS = "95% over documents"
SEEDS = "95% over seeds"
BOTH = "95% over both"
SEED_INTERVALS = {
    DOCUMENTS: "difference_interval",
    SEEDS: "difference_seed_interval",
    BOTH: "difference_both_interval",
}
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


def print_summaries(groups: Sequence[SeedGroup], files: Sequence[Path], family: Family) -> None:
    """Print the means over seeds, each with its interval over documents and over seeds, and the summaries' paths."""
    for other in [BASE, *compared_names(result for group in groups for result in group.results)]:
        if lines := seed_lines(groups, family, other):
            print()
            holm = f"{TEST}; {corrected_for(family)}. Significant below {ALPHA}."
            print_text_table(_seed_table(lines, other), EXPLAINED | {HOLM: holm})
    if any(len((group.summary or {}).get("studies", [])) == 1 for group in groups):
        print(ONE_STUDY)
    for file in files:
        print(file)


def seed_lines(groups: Sequence[SeedGroup], family: Family, other: str = BASE) -> list[ScoreLine]:
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
                lines.append(ScoreLine(score, label, f"{len(summary['seeds'])}{of_studies}"))
    return lines


def _seed_table(lines: Sequence[ScoreLine], other: str) -> TextTable:
    def other_mean(score: Score) -> str:
        value, difference = score.value, score.difference
        return "" if value is None or difference is None else number(value - difference)

    values: Cells = {
        "std": lambda score: number(score.std),
        other.replace("_", " "): other_mean,
        "mean": lambda score: number(score.value),
        DOCUMENTS: lambda score: interval(score.interval),
        SEEDS: lambda score: interval(score.seed_interval),
    }
    title = "Over seeds" if other == BASE else f"Over seeds, compared with {other.replace('_', ' ')}"
    return _table(title, lines, values, intervals=SEED_INTERVALS)


# The table of studies

STUDY_EXPLAINED = {
    "documents": "the number of tuning documents.",
    "at bound": "tuned values at the bound of their search; better values may lie beyond it.",
    "trial 0": "the metric before tuning: the base model's, or with the given temperatures.",
    "calibrated": "the metric at temperature 0 and its best logit scale (docs/routing_methods.md).",
    "tuned": "the metric with the values of the best trial.",
}
"""The meanings of columns."""


def print_studies(folders: Sequence[Path]) -> None:
    """Print a row per study with a profile: the first and the best score on the tuning documents; then the files."""
    files = [folder / "best.yaml" for folder in dict.fromkeys(folders)]
    profiles = {file: profile for file in files if (profile := read_mapping(file)) is not None}
    if not profiles:
        return
    print_text_table(study_table(list(profiles.values())), STUDY_EXPLAINED)
    for file in profiles:
        print(file)
    print()


def study_table(profiles: Sequence[dict[str, Any]]) -> TextTable:
    """One row per profile (best.yaml)."""
    task: Cells = {
        "model": lambda profile: profile["model"],
        "task": lambda profile: profile["task"],
        "metric": lambda profile: f"{profile['metric']} ({profile['split']})",
    }
    scaled = any(profile.get("logit_scale", 1) != 1 for profile in profiles)
    found: Cells = {
        "documents": lambda profile: f"{sum(map(len, profile['samples'].values())):,}",
        "trials": lambda profile: str(profile["trials"]),
        "best trial": lambda profile: str(profile["trial"]),
        "calibrated": lambda profile: number(profile.get("calibrated_score")),
        "trial 0": lambda profile: number(profile["untuned_score"]),
        "tuned": lambda profile: number(profile["score"]),
        "logit scale": lambda profile: f"{profile.get('logit_scale', 1):.3g}" if scaled else "",
        "at bound": lambda profile: ", ".join(profile.get("at_bound", [])),
        "temperature per MoE layer": lambda profile: " ".join(map(fixed, profile["temperature"])),
        "settings": lambda profile: ", ".join(f"{k}={v}" for k, v in (profile.get("settings") or {}).items()),
    }
    columns = [*names(cells_of(profiles, task)), *numbers(cells_of(profiles, found))]
    return text_table("Tuning, on documents that are excluded from the test", columns)
