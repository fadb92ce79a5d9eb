"""Counts of judged answers in a results.json."""

from __future__ import annotations

from typing import Any


def waiting(results: dict[str, Any] | None) -> int:
    """The number of answers that wait for a judge which could not be reached."""
    judges = (results or {"moe_lab": {}})["moe_lab"].get("judges", {})
    return sum(counts["waiting"] for judge in judges.values() for counts in judge["tasks"].values())


def judges_in(block: dict[str, Any]) -> list[dict[str, Any]]:
    """The entry of each judge in the `moe_lab` block of results.json."""
    return list(block.get("judges", {}).values())


def judged_documents(block: dict[str, Any], task: str, metric: str) -> int | None:
    """The number of a task's documents that have this metric; None if no judge gives it."""
    counts = [judge["tasks"].get(task) for judge in judges_in(block) if metric in judge["metrics"]]
    return counts[0]["judged"] if counts and counts[0] else None


def all_judged(judge: dict[str, Any], task: str | None) -> bool:
    """Whether all answers of a task, or of all tasks, have a verdict."""
    counts = [one for name, one in judge["tasks"].items() if task in (None, name)]
    return all(one["judged"] == one["documents"] for one in counts)


def unjudged_lines(block: dict[str, Any]) -> list[str]:
    """One line per task and judge with unjudged answers: how many were judged, and why the others were not."""
    lines = []
    for name, judge in block.get("judges", {}).items():
        for task, counts in judge["tasks"].items():
            if all_judged(judge, task):
                continue
            why = [f"{number} {reason}" for reason, number in counts["failed"].items()]
            why += [f"{counts['waiting']} wait for the same command"] * bool(counts["waiting"])
            judged = f"{task}, {name}: judged {counts['judged']:,} of {counts['documents']:,} answers"
            lines.append(f"{judged} ({'; '.join(why)})")
    return lines
