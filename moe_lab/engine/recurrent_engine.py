"""The engine for models whose layers keep more than keys and values. It copies the model's own cache.

n = routing samples, V = vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from moe_lab.engine.engine import Engine
from moe_lab.engine.forward.batch import TokenTree
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.recurrent import RecurrentForward, RecurrentState
from moe_lab.engine.generation.prefill import GenerationState
from moe_lab.engine.generation.sampling import Decoding
from moe_lab.engine.scoring.scoring import ScoringRequest
from moe_lab.engine.scoring.token_scores import Scores, TokenScores


class RecurrentEngine(Engine):
    """Runs one request at a time, and keeps nothing between calls."""

    def __init__(self, forward: RecurrentForward):
        self.forward = forward

    @property
    def tokens_in(self) -> int:
        return self.forward.tokens_in

    def set_ensemble(self, ensemble: Ensemble) -> None:
        forward = RecurrentForward(self.forward.model, ensemble)
        forward.tokens_in = self.forward.tokens_in
        self.forward = forward

    def score(self, requests: list[ScoringRequest], on_scores: Callable[[int, Scores], None]) -> None:
        with self.forward as forward:
            for i, request in enumerate(requests):
                tree = TokenTree(request.context, request.continuations, noise_key=request.noise_key)
                scores = TokenScores([tree])
                for place, logits_1nV in enumerate(_after_nodes(forward, request, tree)):
                    scores.put(forward.ensemble.first(logits_1nV.shape[1]), torch.tensor([place]), logits_1nV)
                on_scores(i, scores.summed()[0])

    def generate(
        self,
        states: list[GenerationState],
        decoding: Decoding,
        on_done: Callable[[GenerationState], None],
    ) -> None:
        with self.forward as forward:
            for state in states:
                _generate(forward, state, decoding)
                on_done(state)


def _after_nodes(forward: RecurrentForward, request: ScoringRequest, tree: TokenTree) -> Iterator[Tensor]:
    """Logits [1, n, V] after each logit node, in order."""
    first, *others = tree.logit_nodes
    children = Counter(tree.parents[node] for node in others)
    state, rest = forward.begin(request.context, request.noise_key)
    yield forward.step(state, rest)[None]
    states: dict[int, RecurrentState] = {first: state}
    for node in others:
        parent = tree.parents[node]
        children[parent] -= 1
        state = states[parent].copied() if children[parent] else states.pop(parent)
        yield forward.step(state, [tree.ids[node]])[None]
        if children[node]:
            states[node] = state


def _generate(forward: RecurrentForward, state: GenerationState, decoding: Decoding) -> None:
    cache, ids = forward.begin(state.prompt, state.noise_key, state.sample_index)
    while True:
        logits_nV = forward.step(cache, ids)
        decoding.extend([state], forward.ensemble.first(len(logits_nV)).next_scores(logits_nV[None]))
        if decoding.ends(state):
            return
        ids = state.generated[-1:]
        if forward.ensemble.cache == "none":
            cache, ids = forward.begin(state.prompt, state.noise_key, state.sample_index)
            ids = [*ids, *state.generated]
