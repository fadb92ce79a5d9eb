"""Replay of routes: each token gets the experts that it had elsewhere, with the weights that the
router gives them now.

    with replay(model, routes) as replayed:
        model(input_ids, attention_mask=mask, labels=labels).loss.backward()

A token is known by its text, from its beginning to the token itself, and never by the order of
calls. Gradients go into the routers through the weights.

T = tokens of a pass, K = experts per token, C = the larger K of a router and its routes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from moe_lab.errors import RoutingError
from moe_lab.routing.hook import opened, require_routers, routed
from moe_lab.routing.passes import (
    PassReader,
    cached_tokens,
    in_backward,
    inputs_of,
    on_passes,
    transformers_model,
)
from moe_lab.routing.policy import Policy
from moe_lab.routing.router import Router, find_routers
from moe_lab.routing.routes import Routes
from moe_lab.routing.rules import Routing
from moe_lab.routing.transient import TransientHook

CHECKPOINT = "_gradient_checkpointing_func"
"""The attribute of a layer with transformers' function of gradient checkpointing."""
NO_ROUTE = -1
"""In place of a row: the token is routed by the model."""


class Replay(Policy):
    """Gives tokens their routes, and counts both kinds."""

    def __init__(self, model: nn.Module):
        self._model = model
        self.tokens = 0
        """Tokens that had their given experts, once for each pass over them."""
        self.without_routes = 0
        """Tokens that were routed by the model, padding not counted."""
        self._parts: list[list[Tensor]] = []
        """Of each `Routes`: per MoE layer the given experts [rows, K]."""
        self._starts: list[int] = []
        """The number of the first row of each part, counted over all of them."""
        self._row_of: dict[int, int] = {}
        """The row of a token, by the hash of its text."""
        self._reader = PassReader()
        self._hash_of: dict[int, int] = {}
        """The hash of each sequence so far, by its number. A pass without cached tokens begins new
        ones."""
        self._row_T = torch.zeros(0, dtype=torch.long)
        """The rows of the tokens of the newest pass, on the CPU."""
        self._row_of_layer: dict[int, Tensor] = {}
        """The rows of the tokens that a MoE layer computes now."""

    def __repr__(self) -> str:
        return f"Replay({self.tokens:,} tokens replayed, {self.without_routes:,} without routes)"

    def add(self, routes: Routes) -> None:
        """Give the texts of further routes their experts, too. Of equal texts the first counts.

        Raises RoutingError for routes of another model, or with another number of experts of a
        token.
        """
        check_routes(routes, self._model)
        indices = routes.indices
        shape = [index_NK.shape[1] for index_NK in indices]
        if self._parts and shape != self._experts_per_token:
            raise RoutingError(
                f"Routes with {shape} experts of a token, by MoE layer, next to routes with "
                f"{self._experts_per_token}."
            )
        first = 0
        if self._parts:
            first = self._starts[-1] + len(self._parts[-1][0])
        known = len(self._row_of)
        hash_of: dict[int, int] = {}
        ids = routes.token_ids.tolist()
        places = zip(routes.sequences.tolist(), routes.positions.tolist(), strict=True)
        for row, (sequence, position) in enumerate(places):
            text = _text(hash_of, sequence, position, ids[row])
            if text is not None:
                self._row_of.setdefault(text, first + row)
        if len(self._row_of) > known:  # an epoch gives the same routes again
            self._parts.append(indices)
            self._starts.append(first)

    @property
    def _experts_per_token(self) -> list[int]:
        """Per MoE layer the number of given experts."""
        return [index_NK.shape[1] for index_NK in self._parts[0]]

    def collator(self, collate: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        """A data collator that takes the routes out of its examples, and gives the rest to
        `collate`.

        Args:
            collate: gets the examples without their key `routes`, whose value is a `Routes`.
        """

        def with_routes(examples: list[dict[str, Any]]) -> Any:
            others = []
            for example in examples:
                other = dict(example)
                routes = other.pop("routes", None)
                if routes is not None:
                    self.add(routes)
                others.append(other)
            return collate(others)

        return with_routes

    def begin_pass(self, args: tuple, kwargs: dict[str, Any]) -> None:
        """Find the rows of the tokens of the next pass. Waits for the device.

        Raises RoutingError for a pass without token ids.
        """
        inputs = inputs_of(args, kwargs)
        if inputs.dim() != 2:
            raise RoutingError(
                "replay knows tokens by their text: call the model with input_ids, not with "
                "inputs_embeds."
            )
        if not cached_tokens(kwargs):
            self._hash_of.clear()
        tokens = self._reader.read(args, kwargs)
        real = tokens.real_T.tolist()
        sequences = tokens.sequence_T.tolist()
        positions = tokens.position_T.tolist()
        rows = []
        for place, token_id in enumerate(inputs.reshape(-1).tolist()):
            if not real[place]:
                rows.append(NO_ROUTE)
                continue
            text = _text(self._hash_of, sequences[place], positions[place], token_id)
            rows.append(NO_ROUTE if text is None else self._row_of.get(text, NO_ROUTE))
        replayed = sum(row != NO_ROUTE for row in rows)
        self.tokens += replayed
        self.without_routes += sum(real) - replayed
        self._row_T = torch.tensor(rows, dtype=torch.long)

    def checkpointed(self, layer: int, checkpoint: Callable[..., Any]) -> Callable[..., Any]:
        """A function of gradient checkpointing that computes a layer again for the tokens for which
        it was computed first.

        Args:
            checkpoint: transformers' own, called with the layer's function and its inputs.
        """

        def with_tokens(function: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
            row_T = self._row_T

            def compute(*layer_inputs: Any, **layer_options: Any) -> Any:
                self._row_of_layer[layer] = row_T
                return function(*layer_inputs, **layer_options)

            return checkpoint(compute, *inputs, **options)

        return with_tokens

    def _given(self, layer: int, row_T: Tensor) -> Tensor:
        """[T, K]: the given experts of tokens in a MoE layer, 0 for those without a route."""
        starts = torch.tensor(self._starts)
        part_T = torch.searchsorted(starts, row_T, right=True) - 1
        given_TK = torch.zeros(len(row_T), self._experts_per_token[layer], dtype=torch.long)
        for part in part_T.unique().tolist():
            if part < 0:  # without a route
                continue
            is_of_part_T = part_T == part
            rows = row_T[is_of_part_T] - starts[part]
            given_TK[is_of_part_T] = self._parts[part][layer][rows].cpu()
        return given_TK

    def __call__(self, router: Router, routing: Routing) -> Routing | None:
        row_T = self._row_T
        if in_backward():
            if router.layer not in self._row_of_layer:
                raise RoutingError(
                    f"The router {router.name} is computed again in the backward pass, by other "
                    "code than transformers' gradient checkpointing: its tokens are unknown. Use "
                    "model.activation_checkpointing_enable()."
                )
            row_T = self._row_of_layer[router.layer]
        if len(row_T) != len(routing.index_TK):
            raise RoutingError(
                f"The router {router.name} decides for {len(routing.index_TK)} tokens of a pass of "
                f"{len(row_T)}."
            )
        if not self._parts:
            return None
        device = routing.index_TK.device
        has_route_T1 = (row_T != NO_ROUTE)[:, None].to(device)
        given_TK = self._given(router.layer, row_T).to(device)
        weights_TK = router.weights(routing.logits_TE, given_TK)
        C = max(given_TK.shape[-1], routing.index_TK.shape[-1])
        replayed = router.widened(Routing(routing.logits_TE, weights_TK, given_TK), C)
        live = router.widened(routing, C)
        return Routing(
            routing.logits_TE,
            torch.where(has_route_T1, replayed.weights_TK, live.weights_TK),
            torch.where(has_route_T1, replayed.index_TK, live.index_TK),
        )


def _text(hash_of: dict[int, int], sequence: int, position: int, token_id: int) -> int | None:
    """The hash of a text from its beginning to this token; None if its beginning is unknown.

    Args:
        hash_of: that of each sequence so far, which is continued.
    """
    before = 0 if position == 0 else hash_of.get(sequence)
    if before is None:
        return None
    hash_of[sequence] = hash((before, token_id))
    return hash_of[sequence]


@contextmanager
def replay(model: nn.Module, routes: Routes | Sequence[Routes] = ()) -> Iterator[Replay]:
    """Route the tokens of `model(...)` inside the context as `routes` say; yields the counts.

    Padding, packed rows, micro-batches, gradient checkpointing, PEFT's adapters and Trainers are as
    without it: the backward pass belongs into the context, too. Tokens whose text has no routes are
    routed by the model, and counted.

        with replay(model) as replayed:
            trainer = Trainer(model, args, data_collator=replayed.collator(collate), ...)
            trainer.train()     # of examples with a key `routes`; remove_unused_columns=False

    Args:
        routes: of `record`, of an engine, or of a file.

    Raises ModelError and RoutingError as `record` does, and RoutingError for routes of another
    model.
    """
    replayed = Replay(model)
    for part in [routes] if isinstance(routes, Routes) else routes:
        replayed.add(part)
    handles = on_passes(model, replayed.begin_pass)
    try:
        with (
            opened(model, "replay(model)"),
            routed(model, replayed, repeats=True),
            _following_checkpoints(model, replayed),
        ):
            yield replayed
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _following_checkpoints(model: nn.Module, replayed: Replay) -> Iterator[None]:
    """Inside the context, layers that gradient checkpointing computes again know their tokens.

    A Trainer may turn it on later, and sets a function in each layer then.
    """
    handles = []
    own: dict[nn.Module, Callable[..., Any]] = {}
    """The function of each layer that was changed."""
    following: dict[nn.Module, Callable[..., Any]] = {}
    """What is in its place."""

    def changing(layer: int) -> Callable[[nn.Module, tuple], None]:
        """A hook that changes the function of a layer, unless it has."""

        def change(module: nn.Module, args: tuple) -> None:
            function = getattr(module, CHECKPOINT, None)
            if function is not None and function is not following.get(module):
                own[module] = function
                following[module] = replayed.checkpointed(layer, function)
                setattr(module, CHECKPOINT, following[module])

        return change

    for layer, module in _checkpointed_layers(model).items():
        handles.append(module.register_forward_pre_hook(TransientHook(changing(layer))))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module, function in own.items():
            setattr(module, CHECKPOINT, function)


def check_routes(routes: Routes, model: nn.Module) -> None:
    """Raise RoutingError for routes of another number of layers or experts than the model's, and
    ModelError for a model without routers."""
    routers = require_routers(model)
    indices = routes.indices
    if len(indices) != len(routers):
        raise RoutingError(
            f"Routes of {len(indices)} MoE layers, and the model has {len(routers)}."
        )
    config = transformers_model(model).config.get_text_config(decoder=True)
    experts = routers[0].family.num_experts(config)
    largest = max((int(index_NK.max()) for index_NK in indices if len(index_NK)), default=0)
    if largest >= experts:
        raise RoutingError(
            f"Routes with an expert {largest}, and the model has {experts}, counted from 0."
        )


def _checkpointed_layers(model: nn.Module) -> dict[int, nn.Module]:
    """The module around each router that gradient checkpointing computes again, by MoE layer."""
    modules = dict(model.named_modules())
    layers = {}
    for router in find_routers(model):
        name = router.name
        while name:
            name = name.rpartition(".")[0]
            if isinstance(modules[name], GradientCheckpointingLayer):
                layers[router.layer] = modules[name]
                break
    return layers
