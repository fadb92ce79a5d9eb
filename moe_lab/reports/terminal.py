"""What a command prints at its end: a table of scores, the verdict, notes, and studies."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moe_lab.config.terminal import print_line
from moe_lab.reports.columns import Column, count, fixed, names, numbers, print_table, texts
from moe_lab.reports.labels import asked_in_two_forms
from moe_lab.reports.scores import CommandTable
from moe_lab.reports.verdicts import conclusion, has_verdict
from moe_lab.results.marks import PART
from moe_lab.results.measured import number
from moe_lab.results.score_table import explained_marks
from moe_lab.results.stored_files import read_mapping

TWO_FORMS = (
    "task.answer: letters asks for the letter of the right choice, text scores the text of each "
    "choice, as lm-eval does. With task.answer=text or letters for all runs, their scores can be "
    "compared."
)
NOT_COMPARED = (
    "Not compared with one another; for runs with the same prompts: mode=compare a=<folder> "
    "b=<folder>."
)
ONE_STUDY = (
    "1 study: all seeds have its temperatures, so the spread is that of the evaluation's routing "
    "noise alone; tuning.seeds= repeats the study, too."
)


def print_scores(table: CommandTable, footnotes: Sequence[str] = ()) -> None:
    """Print the scores of a command, its verdict, and what the notes mean.

    `footnotes` are of the runs' methods.
    """
    print_table(_title(table), table.columns())
    for line in [*notes(table), *footnotes]:
        print_line(line)


def _title(table: CommandTable) -> str:
    """The title of the scores: "Results", "Results (lower is better)", or with the names of the
    metrics of which lower is better, if there are others."""
    lower_is_better = {line.score.metric: bool(line.score.lower_is_better) for line in table.shown}
    if not any(lower_is_better.values()):
        return "Results"
    if all(lower_is_better.values()):
        return "Results (lower is better)"
    metrics = [metric for metric, is_lower in lower_is_better.items() if is_lower]
    return f"Results (lower is better: {', '.join(metrics)})"


def notes(table: CommandTable) -> list[str]:
    """The verdict, the correction of its p, the meanings of notes, and what else to know."""
    lines = _verdict(table)
    if table.family.note:
        lines.append(
            "p is corrected by Holm for the comparisons of the same question "
            f"({table.family.note})."
        )

    lines += explained_marks(mark for mark in table.marks if mark != PART)

    run_notes: set[str] = set()
    for run in table.runs:
        run_notes.update(run.version_notes)
        run_notes.update(run.unjudged)
    lines += sorted(run_notes)

    parts = {line.score.task for line in table.lines if PART in line.score.marks}
    if parts:
        lines.append(
            f"Parts of groups are on the page: {len(parts)} tasks and groups, without tests of "
            "their own."
        )
    if asked_in_two_forms(table.runs):
        lines.append(TWO_FORMS)
    if _has_mean_of_one_study(table):
        lines.append(ONE_STUDY)
    return lines


def _verdict(table: CommandTable) -> list[str]:
    """The conclusion of the comparisons, one line.

    Without comparisons: NOT_COMPARED if several runs have a score of one task, else no line.
    """
    compared = [line for line in table.shown if has_verdict(line.score)]
    if compared:
        return [conclusion(compared)]
    questions = {(line.score.task, line.score.metric) for line in table.shown}
    if len(questions) < len(table.shown):
        return [NOT_COMPARED]
    return []


def _has_mean_of_one_study(table: CommandTable) -> bool:
    """Whether a mean over seeds is of runs that one study tuned."""
    summaries = [group.summary for group in table.groups if group.summary is not None]
    return any(len(summary.studies) == 1 for summary in summaries)


def print_studies(folders: Sequence[Path]) -> None:
    """Print a row per study with a profile: the scores on the tuning documents. Then the profiles'
    paths. Prints nothing if no study has a profile.

    Args:
        folders: those of studies; one that is listed twice has one row.
    """
    profiles = {}
    for folder in dict.fromkeys(folders):
        file = folder / "best.yaml"
        profile = read_mapping(file)
        if profile is not None:
            profiles[file] = profile
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
    """One row per profile (the content of a best.yaml), with three scores of the tuning documents.

    "trial 0" is the base model, "calibrated" the base model at its best logit scale (empty if the
    study did not search it), "tuned" the best trial.
    """
    metrics = [f"{profile['metric']} ({profile['split']})" for profile in profiles]
    documents = [_tuning_documents(profile) for profile in profiles]
    calibrated = [profile.get("calibrated_score") for profile in profiles]
    logit_scales = [profile.get("logit_scale", 1) for profile in profiles]
    at_bound = [", ".join(profile.get("at_bound", [])) for profile in profiles]
    temperatures = [" ".join(map(fixed, profile["temperature"])) for profile in profiles]
    method_settings = [_settings(profile) for profile in profiles]

    def of_profiles(key: str) -> list[Any]:
        """The values of a key that all profiles have."""
        return [profile[key] for profile in profiles]

    columns = names(model=of_profiles("model"), task=of_profiles("task"), metric=metrics)
    columns += [
        numbers("documents", documents, count, spare=3),
        numbers("trials", of_profiles("trials"), count, spare=2),
        numbers("best trial", of_profiles("trial"), count, spare=4),
        numbers("trial 0", of_profiles("untuned_score"), number),
        numbers("calibrated", calibrated, number),
        numbers("tuned", of_profiles("score"), number),
    ]
    if any(scale != 1 for scale in logit_scales):
        columns.append(numbers("logit scale", logit_scales, fixed))
    columns += [
        texts("at bound", at_bound),
        texts("temperature per MoE layer", temperatures),
        texts("settings", method_settings),
    ]
    return columns


def _tuning_documents(profile: Mapping[str, Any]) -> int:
    """The number of documents of all tasks."""
    return sum(len(documents) for documents in profile["samples"].values())


def _settings(profile: Mapping[str, Any]) -> str:
    """The settings of the method that a study found, `key=value` joined by commas; empty for a
    study of temperatures."""
    settings = profile.get("settings") or {}
    return ", ".join(f"{key}={value}" for key, value in settings.items())
