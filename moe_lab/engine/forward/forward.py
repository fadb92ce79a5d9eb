"""Forward passes over a KV cache, with an ensemble of routing samples at each logit position.

    with EnsembleForward(model, ensemble) as forward:
        scores_MV = ensemble.next_scores(forward(tokens, cache))

transformers' own model runs. Hooks, which are removed on exit, fork the samples and restrict the
output head to the logit positions.

B = sequences, S = new tokens, T = cached slots, M = logit positions, n = routing samples of each, V
= vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor, nn

from moe_lab.engine.forward.batch import Tokens
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.histories import CleanHistory, OwnHistory
from moe_lab.engine.forward.kv_cache import KVCache
from moe_lab.engine.forward.layers import (
    FULL,
    LayerMasks,
    WindowHooks,
    decoder_layers,
    fork_layer,
    layer_inputs,
)
from moe_lab.engine.forward.rotary import RotaryHooks
from moe_lab.routing import Policy, Router, Routing, routed
from moe_lab.routing.tokens import KeyedTokens, decides_by_tokens, told

if TYPE_CHECKING:
    from moe_lab.engine.hf import Request


NEVER_RECORDED: WeakSet[nn.Module] = WeakSet()
"""Models whose steps of decoding cannot be recorded (`DecodeStep`)."""


class Observer(Policy):
    """The base of observers of the base model, which does nothing.

    They get each pass before it runs, and each request's tokens after it.
    """

    kind: Callable[[int], int] = staticmethod(lambda length: 0)
    """The kind of a text by its length (`RotaryHooks.kind`). The same tokens of two kinds may be
    routed differently."""
    observes = True

    def __init__(self) -> None: ...

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        """The observer is also a routing policy, called at every router."""
        return None

    def expect(self, tokens: Tokens) -> None:
        """Called before each forward pass."""

    def read(
        self, kind: str, request: Request, prompt: Sequence[int], answer: Sequence[int]
    ) -> None:
        """Called when a request is answered, with the token ids that the model read for it.

        A text of several windows leads to several calls. `answer` lacks its last token, which is
        predicted only.
        """


@contextmanager
def observed(lm: Any, observer: Observer) -> Iterator[None]:
    """Inside the context `observer` gets all passes, routing decisions and requests of an
    `EngineLM`.

    Raises ConfigError for a model without a `KVEngine`.
    """
    lm.observe(observer)
    try:
        with routed(lm.model, observer):
            yield
    finally:
        lm.observe(Observer())


class PassResult(NamedTuple):
    """What a forward pass computes."""

    logits_MnV: Tensor
    """Of the next token at each logit position, the clean sample first; [0, n, V] without one."""
    noisy_tokens: int
    """Number of noisy samples that went through the later layers."""


class EnsembleForward:
    """A causal language model that computes next-token logits over a `KVCache`."""

    def __init__(self, model: nn.Module, ensemble: Ensemble):
        self.model = model
        self.ensemble = ensemble
        self.device = next(model.parameters()).device
        self.num_layers = model.config.get_text_config().num_hidden_layers
        self.tokens_in = 0
        """Tokens put through the model so far, routing samples included, padding excluded."""
        self.observer = Observer()
        self.in_place = False
        """Whether steps of decoding keep their tensors in place (`DecodeStep`)."""
        self.records = False
        """Whether a GPU records them."""
        self._head_at = torch.zeros(0, dtype=torch.long)
        self._windows = WindowHooks(model)
        self.rotary = RotaryHooks(model)
        self._samples: CleanHistory | OwnHistory | None = None
        if ensemble.own_history:
            self._samples = OwnHistory(model, ensemble)
        elif ensemble.n > 1:
            self._samples = CleanHistory(model, ensemble)

    def __enter__(self) -> EnsembleForward:
        self._stack = ExitStack()
        self.records = self._may_be_recorded()
        self.in_place = self.records
        head = self.model.get_output_embeddings()
        self._stack.callback(head.register_forward_pre_hook(self._select).remove)
        self._windows.install(self._stack)
        self.rotary.install(self._stack)
        if self._samples:
            self._samples.install(self._stack)
        if self.ensemble.routing:
            routing = routed(self.model, self.ensemble.routing, self.ensemble.first_noisy)
            self._stack.enter_context(routing)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.close()

    def _may_be_recorded(self) -> bool:
        """Whether a GPU can repeat steps of decoding: the host does the same at each, and it starts
        nothing else.

        Hooks of others, observers and policies that ask for values may do something else at each
        step.
        """
        routing = self.ensemble.routing
        if self.device.type != "cuda" or self.model in NEVER_RECORDED:
            return False
        if any(parameter.device != self.device for parameter in self.model.parameters()):
            return False
        if self.ensemble.cache == "none" or self.rotary.depends:
            return False
        if routing is not None and not routing.repeatable:
            return False
        if type(self.observer) is not Observer:
            return False
        modules = self.model.modules()
        return not any(module._forward_hooks or module._forward_pre_hooks for module in modules)

    @property
    def shares_beginnings(self) -> bool:
        """Whether a prefix that prompts share may be read once for all of them."""
        return not decides_by_tokens(self.model)

    @property
    def extra_slots(self) -> int:
        """Slots of the cache that the noisy samples of a logit position take during a pass."""
        return self._samples.extra_slots if self._samples else 0

    def slots(self, prompt: int, new: int) -> float:
        """Slots of the cache for a sequence with this many tokens, as a mean over the layers."""
        if not isinstance(self._samples, OwnHistory):
            return prompt + new + self.extra_slots
        noisy_layers = self.num_layers - self._samples.first_layer
        return (prompt + new) * (1 + (self.ensemble.n - 1) * noisy_layers / self.num_layers)

    def new_cache(self, capacity: int = 0) -> KVCache:
        return KVCache(self.num_layers, capacity)

    @torch.inference_mode()
    def __call__(self, tokens: Tokens, cache: KVCache) -> Tensor:
        """Logits [M, n, V] of the next token at each logit position, the clean sample first.

        The cache keeps the clean tokens; with own histories, those of all samples.
        """
        cached = cache.length
        self.observer.expect(tokens)
        result = self.run(tokens, cache)
        cache.keep(cached + tokens.ids_BS.shape[1])
        self.tokens_in += tokens.count + result.noisy_tokens
        return result.logits_MnV

    def run(self, tokens: Tokens, cache: KVCache) -> PassResult:
        """A pass as in `__call__`, without counting its tokens and without dropping the slots of
        noisy samples from the cache."""
        routing = self.ensemble.routing
        n = self.ensemble.n
        M = len(tokens.logit_positions_M)
        places = self._samples.expect(tokens, cache) if self._samples else None
        if places is None:
            noisy_tokens = None
            noisy_count = 0
            self._head_at = tokens.logit_positions_M
        else:
            noisy_tokens = places.noisy
            noisy_count = len(places.noisy.position)
            self._head_at = places.logits_at.reshape(-1)
        if M == 0:
            self._head_at = torch.zeros(1, dtype=torch.long, device=self.device)
        if routing is not None:
            routing.expect(noisy_tokens)

        masks = None
        full_mask = None
        if tokens.visible_BSK is not None:
            masks = LayerMasks(tokens.visible_BSK, self.model.dtype)
            full_mask = masks.of(FULL)
        self._windows.expect(masks)
        self.rotary.expect(tokens.lengths)
        with told(self.model, lambda: self._stages(tokens, forked=places is not None)):
            output = self.model(
                input_ids=tokens.ids_BS,
                attention_mask=full_mask,
                position_ids=tokens.position_BS,
                cache=cache,
                use_cache=True,
            )
        if routing is not None:
            routing.expect(None)  # counts the decisions of this pass
        logits_MnV = output.logits[0, : M * n].unflatten(0, (M, n))
        return PassResult(logits_MnV, noisy_count)

    def _stages(self, tokens: Tokens, forked: bool) -> list[KeyedTokens]:
        """The tokens of the layers before samples fork, and of those after."""
        stages = [tokens.keyed()]
        if forked:
            assert self._samples is not None
            stages.append(self._samples.keyed(tokens))
        return stages

    def _select(self, head: nn.Module, args: tuple) -> tuple:
        """The output head's input, [B, R, hidden] -> [1, M n, hidden]."""
        hidden_BRD, *rest = args
        hidden_TD = hidden_BRD.reshape(-1, hidden_BRD.shape[-1])
        chosen_PD = hidden_TD[self._head_at.to(hidden_BRD.device)]
        return chosen_PD[None], *rest


class RecordedStates(NamedTuple):
    """Hidden states at the logit positions of a batch. Both [M, hidden]; those of a
    `SuffixRecorder` are of all tokens, [B, S, hidden]."""

    in_front_of_fork: Tensor
    """As the fork layer takes them."""
    in_front_of_head: Tensor
    """As the output head takes them."""


class RecordingForward(EnsembleForward):
    """The base model, recording the hidden states at logit positions that a `SuffixForward` takes.

    A prefix that sequences share is not recorded.

    Args:
        first_moe: the first MoE layer whose routing the `SuffixForward` may change.
    """

    def __init__(self, model: nn.Module, first_moe: int):
        super().__init__(model, Ensemble())
        self.fork = fork_layer(model, first_moe)
        """Number of the decoder layer in front of which hidden states are recorded."""
        self._fork_layer = decoder_layers(model)[self.fork]
        self._hidden: list[Tensor] = []
        self._final: list[Tensor] = []

    def __enter__(self) -> RecordingForward:
        super().__enter__()
        self._hidden = []
        self._final = []
        hook = self._fork_layer.register_forward_pre_hook(self._record_hidden, with_kwargs=True)
        self._stack.callback(hook.remove)
        return self

    def __call__(self, tokens: Tokens, cache: KVCache) -> Tensor:
        self._recording = tokens.noise
        self._at_M = tokens.logit_positions_M
        return super().__call__(tokens, cache)

    def recorded(self) -> RecordedStates:
        """The hidden states of one batch: of all passes since the last call."""
        states = RecordedStates(
            in_front_of_fork=torch.cat(self._hidden, dim=-2),
            in_front_of_head=torch.cat(self._final, dim=-2),
        )
        self._hidden = []
        self._final = []
        return states

    def _record_hidden(self, layer: nn.Module, args: tuple, kwargs: dict) -> None:
        if self._recording:
            inputs = layer_inputs(layer, args, kwargs)
            self._hidden.append(self._chosen(inputs["hidden_states"]))

    def _select(self, head: nn.Module, args: tuple) -> tuple:
        if self._recording:
            self._final.append(self._chosen(args[0]))
        return super()._select(head, args)

    def _chosen(self, hidden_BSD: Tensor) -> Tensor:
        """The hidden states that are recorded, [M, hidden]."""
        return hidden_BSD.flatten(0, 1)[self._at_M.to(hidden_BSD.device)]
