"""Forward passes through the later decoder layers alone, over cached activations of the earlier
ones.

B = sequences, S = new tokens of each, M = logit positions, C = cached final states, D = hidden
size, V = vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from moe_lab.engine.forward.kv_cache import KVLayer
from moe_lab.engine.forward.layers import (
    FULL,
    LayerMasks,
    WindowHooks,
    decoder_layers,
    fork_layer,
    fork_router,
    layer_inputs,
)
from moe_lab.engine.forward.rotary import RotaryHooks
from moe_lab.routing import PolicyFunction, routed
from moe_lab.routing.hook import leaving_out


@dataclass(frozen=True)
class SuffixBatch:
    """Tokens of one pass, as the fork layer takes them."""

    hidden_BSD: Tensor
    position_BS: Tensor
    masks: LayerMasks
    layers: list[KVLayer]
    """Cached keys and values of each decoder layer; those before the fork layer are not used."""
    logits_at: Tensor
    """int64 [M]: flat indices into B x S of the tokens that reach the output head."""
    count: int
    """Tokens, padding excluded."""
    lengths: list[int]
    """As in `Tokens`."""
    final_CD: Tensor | None = None
    """Cached final hidden states that reach the output head before those of the pass."""


class SuffixForward:
    """Runs the decoder layers from the fork layer on.

    forward = SuffixForward(model, first_moe)
    with forward.routed(policy):
        logits = forward(batch)

    Args:
        first_moe: the first MoE layer whose routing may be changed. The decoder layer that holds it
            is the fork layer.
    """

    def __init__(self, model: nn.Module, first_moe: int):
        self.model = model
        self.fork = fork_layer(model, first_moe)
        """Number of the fork layer."""
        self.first_moe = fork_router(model, first_moe).layer
        self.device = next(model.parameters()).device
        self.tokens_in = 0
        """Tokens put through the later layers so far, padding excluded."""
        self._windows = WindowHooks(model)
        self._rotary = RotaryHooks(model)
        self._batch: Any = None
        """The `SuffixBatch` of the pass that runs."""

    @contextmanager
    def routed(self, policy: PolicyFunction | None) -> Iterator[None]:
        """Inside the context passes are routed by `policy`; None: by the routers themselves."""
        head = self.model.get_output_embeddings()
        with ExitStack() as stack:
            stack.callback(setattr, self, "_batch", None)
            if policy is not None:
                stack.enter_context(routed(self.model, policy, self.first_moe))
            stack.enter_context(
                only_layers_from(self.model, self.fork, lambda: self._batch.hidden_BSD)
            )
            self._windows.install(stack)
            self._rotary.install(stack)
            stack.callback(head.register_forward_pre_hook(self._select).remove)
            yield

    def __call__(self, batch: SuffixBatch) -> Tensor:
        """Logits [C + M, V] of the cached final states and of the tokens `batch.logits_at`."""
        self._batch = batch
        self._windows.expect(batch.masks)
        self._rotary.expect(batch.lengths)
        self.tokens_in += batch.count
        return self.model(
            inputs_embeds=batch.hidden_BSD,
            attention_mask=batch.masks.of(FULL),
            position_ids=batch.position_BS,
            cache=Cache(layers=batch.layers),
            use_cache=True,
        ).logits[0]

    def _select(self, head: nn.Module, args: tuple) -> tuple:
        """The output head's input, [B, S, D] -> [1, C + M, D]."""
        batch = self._batch
        chosen = args[0].flatten(0, 1)[batch.logits_at.to(args[0].device)]
        if batch.final_CD is not None:
            chosen = torch.cat([batch.final_CD, chosen])
        return (chosen[None], *args[1:])


@contextmanager
def only_layers_from(model: nn.Module, first: int, hidden: Callable[[], Tensor]) -> Iterator[None]:
    """Inside the context decoder layer `first` takes `hidden()`; the layers before it are not
    computed.

    The model's own embeddings have no effect.
    """
    layers = decoder_layers(model)

    def unchanged(hidden_states: Tensor, *args: object, **kwargs: object) -> Tensor:
        return hidden_states

    # a layer may have a forward function of its own (accelerate's offloading sets one), which is
    # put back on exit
    own_forwards = [vars(layer).get("forward") for layer in layers[:first]]
    for layer in layers[:first]:
        layer.forward = unchanged

    def start(layer: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return (), layer_inputs(layer, args, kwargs) | {"hidden_states": hidden()}

    handle = layers[first].register_forward_pre_hook(start, with_kwargs=True)
    try:
        with leaving_out(layers[:first]):
            yield
    finally:
        handle.remove()
        for layer, forward in zip(layers[:first], own_forwards, strict=True):
            del layer.forward
            if forward is not None:
                layer.forward = forward
