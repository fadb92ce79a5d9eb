"""The routes of given texts: the scores of every token under each routing sample of an `EngineLM`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moe_lab.engine.kv_engine import KVEngine
from moe_lab.engine.scoring.route_scores import RouteScores, score_routes
from moe_lab.errors import ConfigError
from moe_lab.progress import Progress

if TYPE_CHECKING:
    from moe_lab.engine.hf import Request
    from moe_lab.engine.lm import EngineLM
    from moe_lab.engine.scoring.scoring import ScoringRequest


def text_routes(lm: EngineLM, requests: Sequence[tuple[str, Request]]) -> list[RouteScores]:
    """The scores of each request's tokens, in the order of the text. The noise is that of the LM's own answers.

    Args:
        lm: its ensemble has n > 1 samples over a clean history.
        requests: "loglikelihood" or "loglikelihood_rolling", and the request.

    Raises ConfigError for a model without a `KVEngine`.
    """
    if not isinstance(lm.engine, KVEngine):
        raise ConfigError(
            f"Routes of {type(lm.model).__name__} cannot be scored apart: its layers remember more than keys and "
            "values. Leave metrics=counterfactual out."
        )
    pieces: list[ScoringRequest] = []
    pieces_of: list[list[int]] = []
    for kind, request in requests:
        own = lm.scored_pieces(kind, request)
        pieces_of.append(list(range(len(pieces), len(pieces) + len(own))))
        pieces += own
    found: dict[int, RouteScores] = {}
    with Progress(len(pieces), "routes", "text", shown=lm.progress) as progress:

        def on_routes(index: int, scores: RouteScores) -> None:
            found[index] = scores
            progress.update()

        if pieces:
            score_routes(lm.model, lm.ensemble, pieces, lm.budget, on_routes)
    return [RouteScores.joined([found[i] for i in own], lm.ensemble.n) for own in pieces_of]
