"""What a command prints at its end: one table of scores, the verdict, the notes that occur, and studies."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moe_lab.config.terminal import one_line, print_line
from moe_lab.reports.columns import Column, count, fixed, names, numbers, print_table, texts
from moe_lab.reports.scores import (
    CommandTable,
    ScoreLine,
    asked_in_two_forms,
    conclusion,
    difference_columns,
    has_verdict,
)
from moe_lab.results.comparisons.comparison import Comparison
from moe_lab.results.marks import PART
from moe_lab.results.measured import number
from moe_lab.results.score_table import explained_marks
from moe_lab.results.stored_files import read_mapping

TWO_FORMS = (
    "task.answer: letters asks for the letter of the right choice, text scores the text of each choice, as lm-eval "
    "does. With task.answer=text or letters for all runs, their scores can be compared."
)
NOT_COMPARED = "Not compared with one another; for runs with the same prompts: mode=compare a=<folder> b=<folder>."
ONE_STUDY = (
    "1 study: all seeds have its temperatures, so the spread is that of the evaluation's routing noise alone; "
    "tuning.seeds= repeats the study, too."
)


def print_scores(table: CommandTable, footnotes: Sequence[str] = ()) -> None:
    """Print the scores of a command, its verdict, and what the notes mean; `footnotes` are of the runs' methods."""
    lines = table.shown
    lower = {line.score.metric: line.score.lower_is_better for line in lines}
    # metrics are named if the table also has some for which higher is better
    named = (
        "" if all(lower.values()) else f": {', '.join(metric for metric in lower if lower[metric])}"
    )
    print_table(
        f"Results{f' (lower is better{named})' if any(lower.values()) else ''}", table.columns()
    )
    for line in [*notes(table), *footnotes]:
        print_line(line)


def notes(table: CommandTable) -> list[str]:
    """The verdict, the correction of its p, the meanings of the notes that occur, and what else a reader must know."""
    compared = [line for line in table.shown if has_verdict(line.score)]
    lines = []
    if compared:
        lines.append(conclusion(compared))
    elif len({(line.score.task, line.score.metric) for line in table.shown}) < len(table.shown):
        lines.append(NOT_COMPARED)
    if table.family.note:
        lines.append(
            f"p is corrected by Holm for the comparisons of the same question ({table.family.note})."
        )
    lines += explained_marks(
        mark for line in table.lines for mark in line.score.marks if mark != PART
    )
    lines += sorted({line for run in table.runs for line in [*run.version_notes, *run.unjudged]})
    if parts := {line.score.task for line in table.lines if PART in line.score.marks}:
        lines.append(
            f"Parts of groups are on the page: {len(parts)} tasks and groups, without tests of their own."
        )
    if asked_in_two_forms(table.runs):
        lines.append(TWO_FORMS)
    summaries = [group.summary for group in table.groups if group.summary is not None]
    if any(len(summary.studies) == 1 for summary in summaries):
        lines.append(ONE_STUDY)
    return lines


def print_studies(folders: Sequence[Path]) -> None:
    """Print a row per study with a profile: the scores on the tuning documents; then the profiles' paths."""
    files = [folder / "best.yaml" for folder in dict.fromkeys(folders)]
    profiles = {file: profile for file in files if (profile := read_mapping(file)) is not None}
    if not profiles:
        return
    print_table(
        "Tuning, on documents that are excluded from the test",
        study_columns(list(profiles.values())),
    )
    for file in profiles:
        print_line(str(file))
    print()


def study_columns(profiles: Sequence[Mapping[str, Any]]) -> list[Column]:
    """One row per profile (best.yaml): the base model, the base model at its best logit scale, the best trial."""
    scales = [profile.get("logit_scale", 1) for profile in profiles]
    given = [
        ", ".join(f"{k}={v}" for k, v in (one.get("settings") or {}).items()) for one in profiles
    ]
    return [
        *names(
            model=[one["model"] for one in profiles],
            task=[one["task"] for one in profiles],
            metric=[f"{one['metric']} ({one['split']})" for one in profiles],
        ),
        numbers(
            "documents",
            [sum(map(len, one["samples"].values())) for one in profiles],
            count,
            spare=3,
        ),
        numbers("trials", [one["trials"] for one in profiles], count, spare=2),
        numbers("best trial", [one["trial"] for one in profiles], count, spare=4),
        numbers("trial 0", [one["untuned_score"] for one in profiles], number),
        numbers("calibrated", [one.get("calibrated_score") for one in profiles], number),
        numbers("tuned", [one["score"] for one in profiles], number),
        *[numbers("logit scale", scales, fixed)] * any(scale != 1 for scale in scales),
        texts("at bound", [", ".join(one.get("at_bound", [])) for one in profiles]),
        texts(
            "temperature per MoE layer",
            [" ".join(map(fixed, one["temperature"])) for one in profiles],
        ),
        texts("settings", given),
    ]


# mode=compare


def print_comparison(comparison: Comparison) -> None:
    """Print the evaluations, a row per evaluation, task and metric, and the notes."""
    for evaluation in comparison.evaluations:
        print_line(f"{evaluation.key}: {evaluation.label}, {one_line(evaluation.file)}")
        if below := "  ".join([*filter(None, [evaluation.settings]), *evaluation.marks]):
            print_line(f"   {below}")
    print_table("Compared with a", comparison_columns(comparison))
    marks = explained_marks(
        mark for evaluation in comparison.evaluations for mark in evaluation.marks
    )
    lines = [ScoreLine(score, score.run_id) for score in comparison.scores]
    for line in [conclusion(lines, "a"), *marks, *comparison.notes]:
        print_line(line)


def comparison_columns(comparison: Comparison) -> list[Column]:
    """One row per evaluation, task and metric; p corrected by Holm where there are several rows."""
    scores = comparison.scores
    return [
        *names(
            **{"with": [score.run_id for score in scores]},
            task=[score.task for score in scores],
            metric=[score.metric for score in scores],
        ),
        numbers("n", [score.n for score in scores], count, name=True),
        numbers("a", [score.baseline for score in scores], number),
        numbers("other", [score.value for score in scores], number),
        *difference_columns(scores),
        texts("verdict", [score.verdict for score in scores]),
    ]
