"""The engine for models whose layers keep more than keys and values: it copies the model's own
cache.

A recurrent state cannot be cropped, and has no slots that a mask could hide. So each routing sample
of a token gets a copy of the state. One request is read at a time, so that there is no padding, and
one token at a time after the prompt, which every model of transformers supports.

R = batch entries (1, or the ensemble's n), S = new tokens, n = routing samples, V = vocabulary.
"""

import copy
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from moe_lab.engine.engine import Engine
from moe_lab.engine.forward.batch import TokenTree
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.layers import output_head
from moe_lab.engine.forward.rotary import RotaryHooks
from moe_lab.engine.sampling import Decoding, GenerationState
from moe_lab.engine.scoring import OnScores, ScoringRequest, TokenScores
from moe_lab.errors import RoutingError
from moe_lab.routing import routed
from moe_lab.routing.samples import NoisyTokens
from moe_lab.routing.tokens import KeyedTokens, told


@dataclass
class RecurrentState:
    """The model's cache after the tokens read so far, with an entry for each routing sample."""

    entries: int
    noise_key: int
    sample_index: int
    prompt_length: int
    length: int = 0
    cache: Cache | None = None
    """The model's own; None before the first token."""

    def take(self, entries: list[int]) -> None:
        """Keep these entries, in this order. An entry may be repeated."""
        index = torch.tensor(entries)
        if self.cache is not None:
            self.cache.reorder_cache(index)
            # MiniMax keeps its recurrent states outside of its layers, where `reorder_cache` does
            # not reorder them.
            for layer, state in enumerate(getattr(self.cache, "linear_cache", [])):
                if isinstance(state, Tensor):
                    self.cache.linear_cache[layer] = state[index.to(state.device)]
        self.entries = len(entries)


class BegunPrompt(NamedTuple):
    """A prompt that is read in part."""

    state: RecurrentState
    """After the tokens that were read."""
    rest: Sequence[int]
    """The other tokens of the prompt, at least one."""


class RecurrentForward:
    """A causal language model that reads tokens after a `RecurrentState`, for an ensemble of
    routing samples.

    with RecurrentForward(model, ensemble) as forward:
        state, rest = forward.begin(prompt, noise_key)
        logits_nV = forward.step(state, rest)
    """

    def __init__(self, model: Any, ensemble: Ensemble):
        self.model = model
        self.ensemble = ensemble
        self.device = next(model.parameters()).device
        self.rotary = RotaryHooks(model)
        self.tokens_in = 0
        """Tokens put through the model so far, routing samples included."""
        # Positions are passed on, since not all caches know their length (a first layer may have no
        # slots).
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._stack.enter_context(torch.inference_mode())
        head = output_head(self.model)
        if head is not None:
            self._stack.callback(head.register_forward_pre_hook(_last_position).remove)
        self.rotary.install(self._stack)
        if self.ensemble.routing:
            self._stack.enter_context(routed(self.model, self.ensemble.routing))
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.close()

    def expect(self, length: int) -> None:
        """Set the number of tokens of the text that the next tokens belong to."""
        self.rotary.expect([length])

    def begin(self, prompt: Sequence[int], noise_key: int, sample_index: int = 0) -> BegunPrompt:
        """Read the tokens of a prompt that are read before samples fork.

        These are all but the last one; none where samples read the prompt with noise.
        """
        if self.ensemble.own_history and self.ensemble.prefill == "noisy":
            state = RecurrentState(self.ensemble.n, noise_key, sample_index, len(prompt))
            return BegunPrompt(state, prompt)
        state = RecurrentState(1, noise_key, sample_index, len(prompt))
        if len(prompt) > 1:
            self._read(state, prompt[:-1], noise=False)
        if self.ensemble.own_history:
            state.take([0] * self.ensemble.n)
        return BegunPrompt(state, prompt[-1:])

    def step(self, state: RecurrentState, ids: Sequence[int]) -> Tensor:
        """Logits [n, V] after the last of `ids`, the clean sample first.

        `state` then holds these tokens too; with a clean history, those of the clean sample only.
        """
        if self.ensemble.own_history:
            return self._read(state, ids)
        state.take([0] * self.ensemble.n)
        logits_nV = self._read(state, ids)
        state.take([0])
        return logits_nV

    def _read(self, state: RecurrentState, ids: Sequence[int], noise: bool = True) -> Tensor:
        """Logits [R, V] after the last of `ids`. With `noise` all entries but the first are
        noisy."""
        if state.length == 0:
            return self._pass(state, ids, noise)
        for token in ids:
            logits_RV = self._pass(state, [token], noise)
        return logits_RV

    def _pass(self, state: RecurrentState, ids: Sequence[int], noise: bool) -> Tensor:
        """`_read` in one pass of the model."""
        if self.ensemble.routing:
            noisy_tokens = self._noisy_tokens(state, len(ids)) if noise else None
            self.ensemble.routing.expect(noisy_tokens)
        inputs = {"input_ids": torch.tensor(ids, device=self.device).expand(state.entries, -1)}
        if self._takes_positions:
            position_S = torch.arange(state.length, state.length + len(ids), device=self.device)
            inputs["position_ids"] = position_S.expand(state.entries, -1)
        first_noisy = self.ensemble.first_noisy
        with told(self.model, lambda: [self._keyed(state, len(ids))], shared_layers=first_noisy):
            output = self.model(**inputs, cache=state.cache, use_cache=True)
        if output.cache is None:
            raise RoutingError(f"{type(self.model).__name__} returns no cache. Use method=base.")
        state.cache = output.cache
        state.length += len(ids)
        self.tokens_in += state.entries * len(ids)
        return output.logits[:, -1]

    def _noisy_tokens(self, state: RecurrentState, count: int) -> NoisyTokens:
        """The next `count` tokens of all entries but the first, entry by entry."""
        index = torch.arange(count, state.entries * count, device=self.device)
        return NoisyTokens(
            index=index,
            document=torch.full_like(index, state.noise_key),
            repeat=torch.full_like(index, state.sample_index),
            row=index // count,
            position=state.length + index % count,
        )

    def _keyed(self, state: RecurrentState, count: int) -> KeyedTokens:
        """The next `count` tokens of all entries, entry by entry, as a policy knows them."""
        index_T = torch.arange(state.entries * count, device=self.device)
        position_T = state.length + index_T % count
        return KeyedTokens(
            real_T=torch.ones_like(index_T, dtype=torch.bool),
            sequence_T=torch.zeros_like(index_T),
            position_T=position_T,
            new_T=position_T >= state.prompt_length,
            document_T=torch.full_like(index_T, state.noise_key),
            repeat_T=torch.full_like(index_T, state.sample_index),
            sample_T=index_T // count,
        )


def _last_position(head: nn.Module, args: tuple) -> tuple:
    """The output head's input, [R, S, hidden] -> [R, 1, hidden]."""
    return args[0][:, -1:], *args[1:]


class RecurrentEngine(Engine):
    """Runs one request at a time. Nothing is cached between calls."""

    def __init__(self, forward: RecurrentForward):
        self.forward = forward

    @property
    def tokens_in(self) -> int:
        return self.forward.tokens_in

    def set_ensemble(self, ensemble: Ensemble) -> None:
        forward = RecurrentForward(self.forward.model, ensemble)
        forward.tokens_in = self.forward.tokens_in
        self.forward = forward

    def score(self, requests: list[ScoringRequest], on_scores: OnScores) -> None:
        """Score the requests one after the other."""
        with self.forward as forward:
            for i, request in enumerate(requests):
                tree = TokenTree(
                    request.context, request.continuations, noise_key=request.noise_key
                )
                forward.expect(tree.length)
                logits = _after_nodes(forward, request, tree)
                scores = TokenScores([tree]).after(forward.ensemble, logits)
                on_scores(i, scores.summed()[0])

    def generate(
        self,
        states: list[GenerationState],
        decoding: Decoding,
        on_done: Callable[[GenerationState], None],
    ) -> None:
        """Continue the prompts one after the other."""
        with self.forward as forward:
            for state in states:
                _generate(forward, state, decoding)
                on_done(state)


def _after_nodes(
    forward: RecurrentForward, request: ScoringRequest, tree: TokenTree
) -> Iterator[Tensor]:
    """Logits [1, n, V] after each logit node, in order.

    The state after a node is copied for each of its children but the last one, which takes it over.
    """
    context_end, *branch_nodes = tree.logit_nodes
    unread_children = Counter(tree.parents[node] for node in branch_nodes)
    state, rest = forward.begin(request.context, request.noise_key)
    yield forward.step(state, rest)[None]
    state_after: dict[int, RecurrentState] = {context_end: state}
    for node in branch_nodes:
        parent = tree.parents[node]
        unread_children[parent] -= 1
        is_last_child = unread_children[parent] == 0
        if is_last_child:
            state = state_after.pop(parent)
        else:
            state = copy.deepcopy(state_after[parent])
        yield forward.step(state, [tree.ids[node]])[None]
        if unread_children[node]:
            state_after[node] = state


def _generate(forward: RecurrentForward, state: GenerationState, decoding: Decoding) -> None:
    """Continue one prompt until it ends."""
    forward.expect(len(state.prompt))
    read, ids = forward.begin(state.prompt, state.noise_key, state.sample_index)
    while True:
        logits_nV = forward.step(read, ids)
        decoding.extend([state], forward.ensemble.next_scores(logits_nV[None]))
        if decoding.ended([state])[0]:
            return
        ids = state.generated[-1:]
        length = state.position + 1
        forward.expect(length)
        if forward.ensemble.cache == "none" or forward.rotary.reads_again(length):
            read, rest = forward.begin(state.prompt, state.noise_key, state.sample_index)
            ids = [*rest, *state.generated]
