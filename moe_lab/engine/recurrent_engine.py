"""The engine for models whose layers keep more than keys and values. It copies the model's own cache.

n = routing samples, V = vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from torch import Tensor

from moe_lab.engine.engine import Engine
from moe_lab.engine.forward.batch import TokenTree
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.recurrent import NoiseKey, RecurrentForward, RecurrentState
from moe_lab.engine.generation.prefill import GenerationState
from moe_lab.engine.generation.sampling import Sampler, StoppingCriteria
from moe_lab.engine.scoring.scoring import Scores, ScoringRequest, read_scores


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
                logits = _after_nodes(forward, request, tree)
                on_scores(i, read_scores(forward.ensemble, [tree], logits)[0])

    def generate(
        self,
        states: list[GenerationState],
        sampler: Sampler,
        stop: StoppingCriteria,
        max_new_tokens: int,
        on_done: Callable[[GenerationState], None],
    ) -> None:
        with self.forward as forward:
            for state in states:
                _generate(forward, state, sampler, stop, max_new_tokens)
                on_done(state)


def _after_nodes(forward: RecurrentForward, request: ScoringRequest, tree: TokenTree) -> Iterator[Tensor]:
    """Logits [1, n, V] after each logit node, in order."""
    key = NoiseKey(request.noise_key)
    first, *others = tree.logit_nodes
    children = Counter(tree.parents[node] for node in others)
    state, rest = forward.begin(request.context)
    yield forward.step(state, rest, key)[None]
    states: dict[int, RecurrentState] = {first: state}
    for node in others:
        parent = tree.parents[node]
        children[parent] -= 1
        state = states[parent].copied() if children[parent] else states.pop(parent)
        yield forward.step(state, [tree.ids[node]], key)[None]
        if children[node]:
            states[node] = state


def _generate(
    forward: RecurrentForward,
    state: GenerationState,
    sampler: Sampler,
    stop: StoppingCriteria,
    max_new_tokens: int,
) -> None:
    key = NoiseKey(state.noise_key, state.sample_index)
    cache, ids = forward.begin(state.prompt)
    while True:
        logits_nV = forward.step(cache, ids, key)
        state.generated += sampler(forward.ensemble.next_scores(logits_nV[None]), [state])
        if len(state.generated) >= max_new_tokens or stop(state.generated):
            return
        ids = state.generated[-1:]
        if forward.ensemble.cache == "none":
            cache, ids = forward.begin(state.prompt)
            ids = [*ids, *state.generated]
