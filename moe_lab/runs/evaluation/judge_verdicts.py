"""The judges of a run, and the number of judged answers of each task."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from moe_lab.results.judge_counts import JudgeCounts, JudgeVerdicts
from moe_lab.results.samples import Log
from moe_lab.tasks.judges import Judge
from moe_lab.tasks.judges.toy import ToyJudge


def verdicts_of(judges: Sequence[Judge], samples: Log) -> dict[str, JudgeVerdicts]:
    """The verdicts of each judge by its name."""
    verdicts: dict[str, JudgeVerdicts] = {}
    for judge in judges:
        counts: dict[str, JudgeCounts] = {}
        for task, lines in samples.items():
            is_judged = isinstance(lines[0]["filtered_resps"][0], dict)
            if is_judged:
                counts[task] = _counts(judge.name, lines)
        verdicts[judge.name] = JudgeVerdicts(
            identity=judge.identity,
            toy=isinstance(judge, ToyJudge),
            metrics=[f"{metric},none" for metric in judge.metrics],
            tasks=counts,
        )
    return verdicts


def _counts(judge: str, lines: Sequence[Mapping[str, Any]]) -> JudgeCounts:
    verdicts = [line["filtered_resps"][0][judge] for line in lines]
    failed = Counter(verdict["failed"] for verdict in verdicts if "failed" in verdict)
    cut = Counter(verdict["cut"] for verdict in verdicts if "cut" in verdict)
    return JudgeCounts(
        documents=len(verdicts),
        judged=sum("scores" in verdict for verdict in verdicts),
        failed=dict(failed),
        empty=sum("empty" in verdict for verdict in verdicts),
        cut=dict(cut),
    )
