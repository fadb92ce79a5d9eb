"""The routing at flips (answers that changed between right and wrong). It is recorded by repeating their passes."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moe_lab.config.progress import Progress
from moe_lab.reports.pages.answers import AnswerPair, answer_pairs
from moe_lab.results.model import RunResult
from moe_lab.results.samples import (
    FILE,
    MOST_ROUTED,
    Flip,
    Routing,
    read_flips,
    read_samples,
    rounded,
    write_flips,
)
from moe_lab.results.stored_files import DamagedError
from moe_lab.runs.evaluation.run_lm_eval import load_for

if TYPE_CHECKING:
    from moe_lab.engine.choices import Choices, Place
    from moe_lab.engine.lm import EngineLM
    from moe_lab.models.memory import ModelPool
    from moe_lab.runs.run import Run

logger = logging.getLogger("moe_lab")
Flipped = tuple[str, AnswerPair]
"""A task and a document's answers."""


def unstored_flips(
    run: Run,
    header: Mapping[str, Any],
    result: RunResult,
    before: Mapping[str, dict[str, Any]],
) -> list[Flipped] | None:
    """The answers that flip. None if `flips.jsonl` has them already, or does not belong to the run.

    Removes a `flips.jsonl` with other flips.

    Args:
        header: the header of the run's answers.
        before: as in `moe_lab_block`.
    """
    if not run.tells_flips:
        return None
    samples = read_samples(result)
    earlier = before["baseline"]["samples"]
    flips = [
        (task, pair)
        for task, lines in samples.items()
        for pair in answer_pairs(result, task, earlier[task], lines)
        if pair.flipped
    ]
    if _stored(run, header) == [(task, pair.number) for task, pair in flips]:
        return None
    (run.folder / FILE).unlink(missing_ok=True)
    return flips


def store_flips(run: Run, models: ModelPool, header: Mapping[str, Any], flips: Sequence[Flipped]) -> None:
    """Write `flips.jsonl`, with the routing of at most MOST_ROUTED flips. Loads the model if there are flips."""
    start = time.perf_counter()
    routed, others = flips[:MOST_ROUTED], flips[MOST_ROUTED:]
    lines = _routed_lines(run, models, routed) if routed else []
    write_flips(run.folder, header, lines + [_line(flip) for flip in others])
    logger.info("routing of %d flips: %.2f s", len(routed), time.perf_counter() - start)


def _stored(run: Run, header: Mapping[str, Any]) -> list[tuple[str, int]] | None:
    if run.config.rerun:
        return None
    try:
        stored = read_flips(run.folder, header)
    except DamagedError as error:
        print(f"{error.problem}. It is written again.", file=sys.stderr)
        return None
    return None if stored is None else [(flip.task, flip.document) for flip in stored]


def _routed_lines(run: Run, models: ModelPool, flips: Sequence[Flipped]) -> list[Flip]:
    from moe_lab.engine.choices import plain_choices

    print(f"{run.folder.name}: {_said(len(flips))}", file=sys.stderr)
    with run.method.open(*load_for(run, models, None)) as lm:
        places = [_place(lm, pair) for _, pair in flips]
        known = [place for place in places if place is not None]
        after = _counted(lm.choices(known), len(known), "routing at flips")
        words = [[_word(lm, token) for token in place.tokens] for place in known]
    assert run.baseline is not None
    model = load_for(run.baseline, models, None)[0].model
    before = _counted(
        (plain_choices(model, own.read) for own in after), len(known), "base routing at changed answers"
    )
    routing = map(_routing, words, before, after)
    return [
        _line(flip) if place is None else replace(_line(flip), routing=next(routing))
        for flip, place in zip(flips, places, strict=True)
    ]


def _said(count: int) -> str:
    return f"the routing at {count:,} answer{'' if count == 1 else 's'} that turned right or wrong"


def _counted(choices: Iterable[Choices], total: int, what: str) -> list[Choices]:
    """The choices as a list, computed with a progress bar."""
    counted = []
    with Progress(total, what, "answer") as progress:
        for choice in choices:
            counted.append(choice)
            progress.update()
    return counted


def _line(flip: Flipped) -> Flip:
    task, pair = flip
    return Flip(task, pair.number, "to_right" if pair.right == (False, True) else "to_wrong")


def _routing(tokens: list[str | None], before: Choices, after: Choices) -> Routing:
    return Routing(tokens, len(after.read) - 1, after.numbers, rounded(before.layers), rounded(after.layers))


def _place(lm: EngineLM, pair: AnswerPair) -> Place | None:
    """The token at which the two answers first differ.

    None if they differ before the first answered token, or if one of them picked no choice.
    """
    from moe_lab.engine.choices import place_of
    from moe_lab.engine.hf import Request

    text, options = pair.sample.requests[0]
    if pair.after.text is not None:
        assert pair.before.text is not None
        answers = [
            tuple(lm.tok_encode(answer, add_special_tokens=False))
            for answer in (pair.before.text, pair.after.text)
        ]
        return place_of(text, None, lm.encode_request(Request((text, options))), *answers)
    before, after = pair.before.picked, pair.after.picked
    if before is None or after is None or text != pair.after.prompt:
        return None  # a prompt of its own for each choice (WinoGrande) has no common one
    picked = [pair.after.choices[number] for number in (before, after)]
    pairs = [lm.encode_pair(text, choice) for choice in picked]
    return place_of(text, pair.after.choices[0], pairs[1][0], pairs[0][1], pairs[1][1])


def _word(lm: EngineLM, token: int | None) -> str | None:
    """The token's text; None for the end of an answer."""
    return None if token is None else lm.tok_decode([token], skip_special_tokens=False)
