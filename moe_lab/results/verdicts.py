"""What a stored results.json says about its judges: how many answers of each task they judged."""

from __future__ import annotations

from typing import Any


def waiting(results: dict[str, Any] | None) -> int:
    """How many answers of a results.json a judge could not be asked about."""
    judges = (results or {"moe_lab": {}})["moe_lab"].get("judges", {})
    return sum(counts["waiting"] for judge in judges.values() for counts in judge["tasks"].values())


def judges_in(block: dict[str, Any]) -> list[dict[str, Any]]:
    """What the `moe_lab` part of a results.json tells of each judge; nothing where there is none."""
    return list(block.get("judges", {}).values())


def judged_documents(block: dict[str, Any], task: str, metric: str) -> int | None:
    """How many documents of a task have this metric; None where no judge gives it."""
    found = [judge["tasks"].get(task) for judge in judges_in(block) if metric in judge["metrics"]]
    return found[0]["judged"] if found and found[0] else None


def all_judged(judge: dict[str, Any], task: str | None) -> bool:
    """Whether all answers of a task, or of all tasks, have a verdict."""
    counts = [one for name, one in judge["tasks"].items() if task in (None, name)]
    return all(one["judged"] == one["documents"] for one in counts)


def unjudged_lines(block: dict[str, Any]) -> list[str]:
    """One line per task and judge that did not judge all answers: how many, and why not."""
    lines = []
    for name, judge in block.get("judges", {}).items():
        for task, counts in judge["tasks"].items():
            if all_judged(judge, task):
                continue
            why = [f"{number} {reason}" for reason, number in counts["failed"].items()]
            why += [f"{counts['waiting']} wait for the same command"] * bool(counts["waiting"])
            told = f"{task}, {name}: judged {counts['judged']:,} of {counts['documents']:,} answers"
            lines.append(f"{told} ({'; '.join(why)})")
    return lines
