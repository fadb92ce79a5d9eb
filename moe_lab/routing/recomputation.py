"""Gradient checkpointing: routers that are called again in the backward pass, and the forward pass that they repeat.

A checkpointed layer is computed again from the very tensor that it was given first. So the storage of that tensor
says which forward pass is repeated, also where the passes of several micro-batches wait for their gradients.

T = tokens of a pass, K = experts per token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from moe_lab.errors import RoutingError
from moe_lab.routing.rules import Routing

_HOW = "Use transformers' own: model.train(), then model.gradient_checkpointing_enable(), then this context."


@dataclass
class Pass:
    """A forward pass of the model."""

    number: int
    """From 0."""
    decisions: dict[int, tuple[Routing, Routing]] = field(default_factory=dict)
    """By MoE layer that the policy changed: (the router's decision, the policy's), without gradients."""
    repeated: bool = False


class Recomputation:
    """Follows the layers of a model in training mode.

    Args:
        layers: the module that checkpointing computes again, by MoE layer. transformers' decoder layers have the
            attribute `gradient_checkpointing`.
    """

    def __init__(self, layers: dict[int, nn.Module]):
        self.layers = layers
        self._passes = 0
        self._running: Pass | None = None
        self._known: dict[tuple[int, StorageWeakRef], Pass] = {}
        """By MoE layer and what its decoder layer was given. Weak references are equal if their storage is the same."""
        self._entered: dict[int, Pass] = {}

    def hooks(self) -> list[Any]:
        """Handles of the hooks. Hooks of a layer run before it is checkpointed, those of its parts inside."""
        handles = []
        for number, layer in self.layers.items():
            handles.append(layer.register_forward_pre_hook(self._on_layer(number), with_kwargs=True))
            handles += [
                part.register_forward_pre_hook(self._on_part(number), with_kwargs=True)
                for part in layer.children()
            ]
        return handles

    def start(self) -> None:
        """A forward pass of the model begins."""
        if not self.layers:  # torch.compile would compile a step again for each pass number
            return
        self._running = Pass(self._passes)
        self._passes += 1
        self._known = {key: known for key, known in self._known.items() if not key[1].expired()}

    def repeats(self, layer: int) -> Pass | None:
        """The forward pass that a router's call repeats; None outside of a backward pass.

        Raises RoutingError for a pass that is not known.
        """
        if not in_backward():
            return None
        if layer not in self._entered:
            raise RoutingError(
                f"The router of MoE layer {layer} is called in a backward pass, and which forward pass it repeats is "
                f"not known: this form of gradient checkpointing is not supported. {_HOW}"
            )
        return self._entered.pop(layer)

    def keep(self, layer: int, routing: Routing, changed: Routing) -> None:
        """Keep the policy's decision of a forward pass."""
        if self._running is not None and layer in self.layers:
            self._running.decisions[layer] = _detached(routing), _detached(changed)

    @staticmethod
    def check(layer: int, repeated: Pass, routing: Routing, changed: Routing | None) -> None:
        """Raise RoutingError for a decision that differs from the one that it repeats."""
        first, decision = repeated.decisions.get(layer, (routing, routing))
        if not _equal(
            _detached(first), _detached(decision), _detached(routing), _detached(changed or routing)
        ):
            raise RoutingError(
                f"In the backward pass, where gradient checkpointing computes MoE layer {layer} again, the policy made "
                "another decision than in the forward pass. Draw its noise from torch's default generator, whose state "
                "checkpointing restores, or by a key of each token."
            )

    def check_complete(self) -> None:
        """Raise RoutingError where a changed pass waits for gradients that would be computed without the policy."""
        waiting = [
            known
            for (layer, given), known in self._known.items()
            if known.decisions and not known.repeated and not given.expired() and self._checkpointed(layer)
        ]
        if waiting:
            raise RoutingError(
                "Under gradient checkpointing the backward pass routes tokens again: call loss.backward() inside the "
                "context of the policy too (or the forward pass under torch.no_grad())."
            )

    def _checkpointed(self, layer: int) -> bool:
        module: Any = self.layers[layer]
        return bool(module.gradient_checkpointing and module.training)

    def _on_layer(self, number: int) -> Callable:
        repeat = self._on_part(number)

        def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
            if in_backward():
                repeat(module, args, kwargs)
            elif self._running is not None and torch.is_grad_enabled():
                for tensor in _tensors((*args, kwargs.get("hidden_states"))):
                    key = number, StorageWeakRef(tensor.untyped_storage())
                    other = self._known.get(key)
                    if (
                        other not in (None, self._running)
                        and not other.repeated
                        and self._checkpointed(number)
                    ):
                        raise RoutingError(
                            "Two forward passes under gradient checkpointing read the same tensor, so that their "
                            "backward passes look the same. Give each pass inputs_embeds of its own: .clone()."
                        )
                    self._known[key] = self._running
                    break

        return hook

    def _on_part(self, number: int) -> Callable:
        def hook(module: nn.Module, args: tuple, kwargs: dict) -> None:
            if not in_backward():
                return
            for tensor in _tensors((*args, *kwargs.values())):
                known = self._known.get((number, StorageWeakRef(tensor.untyped_storage())))
                if known is not None:
                    known.repeated = True
                    self._entered[number] = known
                    return

        return hook


def in_backward() -> bool:
    """Whether this thread computes gradients, as torch's own checkpointing asks."""
    # without gradients there is no backward pass to repeat, and a compiled step must not ask
    return torch.is_grad_enabled() and torch._C._current_graph_task_id() != -1


def checkpointed_layer(model: nn.Module, name: str) -> nn.Module | None:
    """The decoder layer around a module of the model, by the module's name; None where none can be checkpointed."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    path = name.split(".")
    for end in range(len(path) - 1, 0, -1):
        module = model.get_submodule(".".join(path[:end]))
        if isinstance(module, GradientCheckpointingLayer):
            return module
    return None


def _tensors(values: Iterable[Any]) -> Iterable[Tensor]:
    return (value for value in values if isinstance(value, Tensor))


def _equal(first: Routing, decision: Routing, routing: Routing, changed: Routing) -> bool:
    """Whether tokens with the same logits as the first time have the same decision."""
    same_T = (first.logits_TE == routing.logits_TE).all(dim=-1)
    if not same_T.any():  # a device whose rounding differs each time
        same_T = torch.ones_like(same_T)
    return torch.equal(decision.index_TK[same_T], changed.index_TK[same_T]) and torch.allclose(
        decision.weights_TK[same_T], changed.weights_TK[same_T], rtol=1e-2, equal_nan=True
    )


def _detached(routing: Routing) -> Routing:
    """Without gradients: checkpointing counts the tensors that a layer keeps for them."""
    return Routing(*(tensor.detach() for tensor in routing))
