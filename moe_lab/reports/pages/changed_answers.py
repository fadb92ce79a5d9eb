"""The documents whose answer a run changed: from wrong to right, from right to wrong, or without consequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from moe_lab.reports.pages.answer import Answer, side_by_side
from moe_lab.reports.pages.answer_pairs import AnswerPair, answer_pairs
from moe_lab.reports.pages.confidence import Paired, confidence
from moe_lab.reports.pages.page import UNEXPECTED, left_out
from moe_lab.reports.pages.stored_run import Samples, StoredRun
from moe_lab.results.flips import MOST_ROUTED, read_flips
from moe_lab.results.stored_files import DamagedError

TO_RIGHT, TO_WRONG = "wrong to right", "right to wrong"
STILL_RIGHT, STILL_WRONG = "right, with another answer", "wrong, with another answer"
CHANGED = "changed"
KINDS = (TO_RIGHT, TO_WRONG, STILL_RIGHT, STILL_WRONG, CHANGED)
MOST = 20_000
"""Changed answers on one page."""
ROUTING = ("tokens", "position", "numbers", "before", "after")
"""What a page shows of a flip's routing."""


@dataclass
class ChangedAnswers:
    """What a page shows of them."""

    answers: list[dict[str, Any]] = field(default_factory=list)
    documents: int = 0
    """Documents that were compared."""
    left_out: int = 0
    """Changed answers beyond MOST."""
    problems: list[str] = field(default_factory=list)
    """Why the answers of a run cannot be compared."""
    unrouted: int = 0
    """Flips beyond MOST_ROUTED, whose routing is not shown."""
    pairs: dict[str, list[Paired]] = field(default_factory=dict)
    """By run: all questions with choices that are right or wrong."""


def changed_answers(runs: Sequence[StoredRun], labels: Sequence[str]) -> ChangedAnswers:
    """The changed answers of all runs that are compared with a baseline, beside the baseline's answers.

    Args:
        labels: a name for each run.
    """
    found, read = ChangedAnswers(), dict[str, Samples]()
    for run, label in zip(runs, labels, strict=True):
        if not run.block.get("baseline"):
            continue
        baseline = run.baseline()
        if baseline is None:
            found.problems.append(f"{label}: the run of the untouched model is not stored here.")
            continue
        try:
            own = run.samples()
            if baseline.run_id not in read:
                read[baseline.run_id] = baseline.samples()
        except DamagedError as error:
            found.problems.append(f"{label}: {error.problem}")
            continue
        try:
            of_run = ChangedAnswers()
            for task, lines in own.items():
                _add(of_run, run, label, task, read[baseline.run_id].get(task, []), lines)
        except UNEXPECTED as error:
            found.problems.append(f"{label}: {left_out(run.folder, error)}")
            continue
        found.answers += of_run.answers
        found.documents += of_run.documents
        found.pairs |= of_run.pairs
        _add_routing(found, run, label)
    found.answers.sort(key=lambda each: KINDS.index(each["kind"]))
    found.left_out = max(0, len(found.answers) - MOST)
    del found.answers[MOST:]
    return found


def _add(
    found: ChangedAnswers,
    run: StoredRun,
    label: str,
    task: str,
    before: Sequence[dict[str, Any]],
    after: Sequence[dict[str, Any]],
) -> None:
    """Add the changed answers to the documents of one task."""
    for pair in answer_pairs(run.results, task, before, after):
        found.documents += 1
        sure = confidence(pair.before)
        if sure is not None and pair.right is not None:
            found.pairs.setdefault(label, []).append(Paired(sure, *pair.right))
        if _same(pair.before, pair.after) and pair.scores[0] == pair.scores[1]:
            continue
        place = {"run": label, "task": task, "document": pair.number, "kind": _kind(pair)}
        shown = side_by_side(pair.before, pair.after, str(pair.line["target"]), pair.scores)
        found.answers.append(place | shown)


def _add_routing(found: ChangedAnswers, run: StoredRun, label: str) -> None:
    """Add to a run's answers what routing changed there, where that is stored."""
    try:
        flips = read_flips(run.folder) or []
    except DamagedError as error:
        found.problems.append(f"{label}: {error.problem}")
        return
    found.unrouted += len(flips[MOST_ROUTED:])
    places = {(flip["task"], flip["document"]): flip for flip in flips[:MOST_ROUTED] if "after" in flip}
    for answer in (each for each in found.answers if each["run"] == label):
        flip = places.get((answer["task"], answer["document"]))
        if flip is not None:
            answer["routing"] = {key: flip[key] for key in ROUTING}


def _same(before: Answer, after: Answer) -> bool:
    return before.text == after.text and before.picked == after.picked


def _kind(pair: AnswerPair) -> str:
    """One of KINDS."""
    if pair.right is None:
        return CHANGED
    before, after = pair.right
    if before is after:
        return STILL_RIGHT if after else STILL_WRONG
    return TO_RIGHT if after else TO_WRONG
