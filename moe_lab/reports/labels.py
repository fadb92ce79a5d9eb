"""The labels of runs in tables: the settings in which the runs of a command differ."""

import re
from collections.abc import Sequence

from moe_lab.results.model import RunResult

NAMED_ELSEWHERE = ("model=", "method=", "task=", "task.metric=", "seed=", "seeds=")
"""Beginnings of overrides that other columns show."""
PROFILE = re.compile(r"(?<=[=:])[^=:{},]*/([^/]+)/best\.yaml")
"""The path of a study's profile in an override; its group is the name of the study."""


def run_labels(results: Sequence[RunResult]) -> list[str]:
    """The label of each run (`settings`): the overrides in which the runs differ.

    If some runs of a task ask for answers by text and some by letters, the labels say which.
    """
    labels = settings([result.overrides for result in results], [result.seed for result in results])
    mixed_tasks = asked_in_two_forms(results)
    for place, result in enumerate(results):
        tasks = [name for name in result.task.names if name in mixed_tasks]
        if tasks:
            form = f"task.answer={result.answer_form(tasks[0])}"
            labels[place] = f"{labels[place]} {form}".lstrip()
    return labels


def asked_in_two_forms(results: Sequence[RunResult]) -> set[str]:
    """The tasks that some runs ask by text and some by letters."""
    forms: dict[str, set[str]] = {}
    for result in results:
        for task in result.task.names:
            forms.setdefault(task, set()).add(result.answer_form(task))
    return {task for task, forms_of_task in forms.items() if len(forms_of_task) == 2}


def settings(overrides: Sequence[Sequence[str]], seeds: Sequence[int | None]) -> list[str]:
    """The label of each run of a grid: the overrides that not all runs of its method share.

    Model and task are left out. In a grid of several methods the keys of a method are always shown,
    because one key may mean something else in another method. Seeds are shown unless all are 0. A
    profile is shown by the name of its study, whose folder it lies in.

    Args:
        overrides: those of each run, such as "method.n=4".
        seeds: of each run; None for methods without randomness.
    """
    effective = [_last_of_each_key(run_overrides) for run_overrides in overrides]
    methods = [_method_override(run_overrides) for run_overrides in effective]
    shared = _shared_by_method(effective, methods)
    several_methods = len(set(methods) - {None, "method=base"}) > 1
    shows_seeds = any(seeds)

    labels = []
    for run_overrides, method, seed in zip(effective, methods, seeds, strict=True):
        shown = []
        for override in run_overrides:
            if override.startswith(NAMED_ELSEWHERE):
                continue
            is_of_method = several_methods and override.startswith("method.")
            if is_of_method or override not in shared[method]:
                shown.append(PROFILE.sub(r"\1", override))
        if shows_seeds and seed is not None:
            shown.append(f"seed={seed}")
        labels.append(" ".join(shown))
    return labels


def _last_of_each_key(overrides: Sequence[str]) -> list[str]:
    """The overrides without those that a later one of the same key replaces."""
    return list({override.partition("=")[0]: override for override in overrides}.values())


def _method_override(overrides: Sequence[str]) -> str | None:
    """The override `method=<name>`; None without one."""
    for override in overrides:
        if override.startswith("method="):
            return override
    return None


def _shared_by_method(
    overrides: Sequence[Sequence[str]], methods: Sequence[str | None]
) -> dict[str | None, set[str]]:
    """By method, the overrides that all of its runs have."""
    shared: dict[str | None, set[str]] = {}
    for run_overrides, method in zip(overrides, methods, strict=True):
        if method in shared:
            shared[method] &= set(run_overrides)
        else:
            shared[method] = set(run_overrides)
    return shared
