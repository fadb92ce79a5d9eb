"""The judges of a run, and the number of judged answers of each task."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from moe_lab.results.judge_counts import JudgeCounts, JudgeVerdicts
from moe_lab.results.samples import Log
from moe_lab.tasks.judges import Judge
from moe_lab.tasks.judges.toy import ToyJudge


def verdicts_of(judges: Sequence[Judge], samples: Log) -> dict[str, JudgeVerdicts]:
    """The verdicts of each judge by its name; a task whose answers are not judged is left out."""
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
    """The number of answers of a task by what the judge said of them."""
    judged = 0
    empty = 0
    failed: Counter[str] = Counter()
    cut: Counter[str] = Counter()
    for line in lines:
        verdict = line["filtered_resps"][0][judge]
        if "scores" in verdict:
            judged += 1
        if "empty" in verdict:
            empty += 1
        if "failed" in verdict:
            failed[verdict["failed"]] += 1
        if "cut" in verdict:
            cut[verdict["cut"]] += 1
    return JudgeCounts(
        documents=len(lines), judged=judged, failed=dict(failed), empty=empty, cut=dict(cut)
    )
