"""The experts that one token takes in every MoE layer, in the base model and in an ensemble.

N = noisy tokens of a pass, K = experts per token.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import takewhile

import torch
from torch import nn

from moe_lab.engine.engine import Engine
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.scoring import ScoringRequest
from moe_lab.routing import GumbelTopK, Router, Routing, document_key
from moe_lab.routing.record import record

Layer = dict[int, float]
"""A number for each chosen expert of a MoE layer, the largest first."""
WEIGHT, SHARE = "weight", "share of samples"
"""The expert's weight, or the share of routing samples that take it."""


@dataclass(frozen=True)
class Place:
    """The token at which two answers to one prompt first differ. All token ids."""

    text: str
    """The prompt's text."""
    choice: str | None
    """One of the prompt's choices; None for a generated answer."""
    prompt: tuple[int, ...]
    shared: tuple[int, ...]
    """The tokens with which both answers begin."""
    tokens: tuple[int | None, int | None]
    """The first token that differs, of each answer; None where an answer has ended."""

    @property
    def read(self) -> tuple[int, ...]:
        """The tokens before those that differ."""
        return self.prompt + self.shared


@dataclass(frozen=True)
class Choices:
    """The experts of one token."""

    read: tuple[int, ...]
    """The tokens up to and including that one."""
    layers: list[Layer]
    """By MoE layer."""
    numbers: str = WEIGHT
    """The meaning of the numbers: WEIGHT or SHARE."""


def place_of(
    text: str, choice: str | None, prompt: tuple[int, ...], *answers: tuple[int, ...]
) -> Place | None:
    """The first difference of two answers; None if they are the same tokens."""
    first, second = answers
    if first == second:
        return None
    length = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))
    tokens = tuple(answer[length] if length < len(answer) else None for answer in answers)
    return Place(text, choice, tuple(prompt), tuple(first[:length]), (tokens[0], tokens[1]))


@torch.inference_mode()
def plain_choices(model: nn.Module, read: tuple[int, ...]) -> Choices:
    """The weights of the last token's experts in one pass over all tokens, with the model as it is."""
    body = model.get_decoder()
    with record(body) as routes:
        body(input_ids=torch.tensor([read], device=next(model.parameters()).device), use_cache=False)
    last = zip(routes.indices, routes.weights, strict=True)
    return Choices(read, [weights_of(index_TK[-1], weights_TK[-1]) for index_TK, weights_TK in last])


def weights_of(index_K: torch.Tensor, weights_K: torch.Tensor) -> Layer:
    """The weight of each expert, the largest first."""
    pairs = zip(index_K.tolist(), weights_K.float().tolist(), strict=True)
    return dict(sorted(pairs, key=lambda pair: -pair[1]))


def sampled_choices(model: nn.Module, engine: Engine, ensemble: Ensemble, place: Place) -> Choices:
    """The share of routing samples that take each expert, for the last token that both answers share.

    The engine scores one token after it, with the answer's own noise keys, so that the samples are those of the answer.
    """
    assert isinstance(ensemble.routing, GumbelTopK)
    seen = _Seen(ensemble.routing, len(place.read) - 1, ensemble.first_noisy)
    # with prefill=clean the prompt is read without noise, and only generated tokens have noisy samples
    prompt, rest = (place.prompt, place.shared) if ensemble.prefill == "clean" else (place.read, ())
    engine.set_ensemble(replace(ensemble, routing=seen))
    try:
        engine.score(
            [ScoringRequest(prompt, [(*rest, 0)], document_key(place.prompt))], lambda index, scores: None
        )
    finally:
        engine.set_ensemble(ensemble)
    clean = plain_choices(model, place.read)
    layers = [seen.shares(layer, own) for layer, own in enumerate(clean.layers)]
    return Choices(place.read, layers, SHARE)


class _Seen(GumbelTopK):
    """Counts the noisy samples that take each expert at one position, from the first MoE layer on that they pass."""

    def __init__(self, of: GumbelTopK, position: int, first: int):
        super().__init__(**of.settings)
        self.position, self.first = position, first
        self.counts: dict[int, Counter[int]] = {}

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        changed = super().__call__(router, routing)
        if self._tokens is not None and router.layer >= self.first:
            at_N = self._tokens.index[self._tokens.position == self.position]
            taken_NK = (changed or routing).index_TK[at_N.to(routing.index_TK.device)]
            self.counts.setdefault(router.layer, Counter()).update(taken_NK.flatten().tolist())
        return changed

    def shares(self, layer: int, clean: Layer) -> Layer:
        """Shares among all samples of the token. Layers before the first noisy one have the clean sample's experts."""
        if layer not in self.counts:
            return dict.fromkeys(clean, 1.0)
        counts = Counter(dict.fromkeys(clean, 1)) + self.counts[layer]
        n = counts.total() / len(clean)
        return {expert: count / n for expert, count in counts.most_common()}
