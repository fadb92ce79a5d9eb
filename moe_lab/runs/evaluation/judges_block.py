"""The `judges` block of results.json: who judged, and how many answers of each task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moe_lab.tasks.judges.judge import Judge


def judges_block(judges: Sequence[Judge], samples: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """{"judges": {name: {"identity", "metrics", "tasks": {task: counts}}}}; nothing where there are no judges.

    Counts are {"documents", "judged", "waiting", "failed": {reason: count}}: waiting ones had no verdict this time, and
    are asked for again by the same command.
    """
    if not judges:
        return {}
    from moe_lab.tasks.judges.toy import ToyJudge

    block = {}
    for judge in judges:
        tasks = {task: _counts(judge.name, lines) for task, lines in samples.items() if _judged(lines)}
        block[judge.name] = {
            "identity": judge.identity,
            "toy": isinstance(judge, ToyJudge),
            "metrics": [f"{metric},none" for metric in judge.metrics],
            "tasks": tasks,
        }
    return {"judges": block}


def _judged(lines: list[dict[str, Any]]) -> bool:
    return isinstance(lines[0]["filtered_resps"][0], dict)


def _counts(judge: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    verdicts = [line["filtered_resps"][0][judge] for line in lines]
    failed = Counter(verdict["failed"] for verdict in verdicts if verdict and "failed" in verdict)
    return {
        "documents": len(verdicts),
        "judged": sum(bool(verdict) and "scores" in verdict for verdict in verdicts),
        "waiting": verdicts.count(None),
        "failed": dict(failed),
    }
