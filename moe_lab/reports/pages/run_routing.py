"""The routing of runs on a page: temperatures, what methods report, and figures of traces."""

from collections.abc import Sequence
from dataclasses import dataclass

from moe_lab.reports.columns import Column, numbers, texts
from moe_lab.reports.pages.page import pictures_in
from moe_lab.results.model import RunResult


@dataclass(frozen=True)
class RunRouting:
    """The routing of one run."""

    label: str
    facts: dict[str, str | int | float]
    """Its study, and the single numbers and words of the method's report in results.json."""
    temperatures: tuple[float, ...]
    """One per MoE layer; empty for a method without."""
    pictures: list[tuple[str, str]]
    """Name and data URI of the figures in the run's folder."""


def routing_of(run: RunResult, label: str) -> RunRouting | None:
    """The routing of a run; None if nothing about it is stored."""
    reported = {"study": run.tuning.get("study"), **run.report}
    facts = {key: value for key, value in reported.items() if isinstance(value, str | int | float)}
    pictures = pictures_in(run.stored_in)
    if not facts and not pictures:
        return None
    temperatures = tuple(run.report.get("temperatures") or ())
    return RunRouting(label, facts, temperatures, pictures)


def profiles_of(routings: Sequence[RunRouting]) -> dict[tuple[float, ...], list[str]]:
    """The labels of the runs with the same temperatures, by these temperatures (one per MoE layer).

    Runs without temperatures are left out.
    """
    labels: dict[tuple[float, ...], list[str]] = {}
    for routing in routings:
        if routing.temperatures:
            labels.setdefault(routing.temperatures, []).append(routing.label)
    return labels


def facts_columns(routings: Sequence[RunRouting]) -> list[Column]:
    """What the methods report, a row per run that reports something."""
    shown = [routing for routing in routings if routing.facts]
    columns = [texts("run", [routing.label for routing in shown])]
    names: dict[str, None] = {}
    for routing in shown:
        names |= dict.fromkeys(routing.facts)
    for name in names:
        facts = [routing.facts.get(name) for routing in shown]
        columns.append(numbers(name.replace("_", " "), facts, _fact_text))
    return columns


def _fact_text(value: str | int | float) -> str:
    """A reported word as it is, a number with six digits."""
    if isinstance(value, str | bool):
        return str(value)
    return f"{value:.6g}"
