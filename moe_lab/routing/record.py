"""Recording of routing decisions.

    with record(model) as routes:
        model.generate(input_ids)
    routes.indices[3]     # MoE layer 3: int64 [tokens, k]

T = tokens of a pass, N = those that are no padding.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from moe_lab.errors import RoutingError
from moe_lab.routing.hook import opened, routed
from moe_lab.routing.passes import PassTokens, pass_tokens, transformers_model
from moe_lab.routing.policy import Policy
from moe_lab.routing.router import Router
from moe_lab.routing.rules import Routing


class Record(Policy):
    """Logits, weights and indices per MoE layer, of all tokens of all forward passes, without
    padding.

    Tokens are in the order of the passes, and within a pass sequence by sequence. `sequences` and
    `positions` identify them.
    """

    observes = True

    def __init__(self) -> None:
        self._parts: dict[int, list[Routing]] = {}
        """The decisions of each pass, by MoE layer."""
        self._positions: list[Tensor] = []
        self._sequences: list[Tensor] = []
        """Of the real tokens of each pass [N], on the CPU."""
        self._count = 0
        """Tokens of the pass, padding included."""
        self._real_N = torch.zeros(0, dtype=torch.long)
        """The real tokens among them."""

    def __repr__(self) -> str:
        layers = f"{len(self._parts)} MoE layers"
        if self._parts:
            numbers = "/".join(map(str, dict.fromkeys(self.experts)))
            layers = f"{layers} of {numbers} experts"
        return f"Record({layers}, {len(self.positions):,} tokens)"

    def expect(self, tokens: PassTokens) -> None:
        """Set the tokens of the next forward pass. The host waits for the device once, to leave
        padding out."""
        self._count = len(tokens.real_T)
        self._real_N = tokens.real_T.nonzero()[:, 0]
        self._sequences.append(tokens.sequence_T[self._real_N].cpu())
        self._positions.append(tokens.position_T[self._real_N].cpu())

    @property
    def logits(self) -> list[Tensor]:
        """Per MoE layer: [tokens, experts], in the router's dtype."""
        return self._joined_passes("logits_TE")

    @property
    def weights(self) -> list[Tensor]:
        """Per MoE layer: [tokens, k]."""
        return self._joined_passes("weights_TK")

    @property
    def indices(self) -> list[Tensor]:
        """Per MoE layer: int64 [tokens, k]."""
        return self._joined_passes("index_TK")

    @property
    def experts(self) -> list[int]:
        """Per MoE layer: the number of experts."""
        return [self._parts[layer][0].logits_TE.shape[-1] for layer in sorted(self._parts)]

    @property
    def sequences(self) -> Tensor:
        """int64 [tokens]: the number of each token's sequence. A pass without cached tokens begins
        new sequences.

        The texts of a packed row are sequences of their own.
        """
        return _joined(self._sequences)

    @property
    def positions(self) -> Tensor:
        """int64 [tokens]: index of each token in its sequence, padding not counted."""
        return _joined(self._positions)

    def _joined_passes(self, field: str) -> list[Tensor]:
        """A field of `Routing` per MoE layer, of all passes; empty before the first one."""
        tensors = []
        for layer in sorted(self._parts):
            parts = [getattr(routing, field) for routing in self._parts[layer]]
            tensors.append(torch.cat(parts))
        return tensors

    def __call__(self, router: Router, routing: Routing) -> None:
        if len(routing.logits_TE) != self._count:
            raise RoutingError(
                f"A router decides for {len(routing.logits_TE)} tokens, but the model was called "
                f"with {self._count}. model(...) and model.generate can be recorded; an ensemble "
                "runs later layers on their own."
            )
        real_N = self._real_N.to(routing.index_TK.device)
        kept = Routing(*(tensor.detach()[real_N] for tensor in routing))
        self._parts.setdefault(router.layer, []).append(kept)


def _joined(parts: list[Tensor]) -> Tensor:
    """All parts one after the other, int64; empty without any."""
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long)


@contextmanager
def record(model: nn.Module) -> Iterator[Record]:
    """Record all routing decisions of `model(...)` and `model.generate(...)` inside the context.

    Packed rows, given by `position_ids` without an attention mask, are one sequence for each of
    their texts. Tokens with 0 in a two-dimensional `attention_mask` of the model are padding. In
    `generate`, transformers feeds padding to sequences that have ended, unmasked: it is recorded as
    their tokens.

    `generate` may decode greedily or by sampling. Beams move between the sequences of a pass, and
    an assistant's tokens may be dropped, so that the recorded tokens would not be those of the
    returned text: RoutingError.

    Raises ModelError and RoutingError as `routed` does, so also under gradient checkpointing.
    """
    routes = Record()
    with (
        opened(model, "record(model)"),
        _checking_generate(transformers_model(model)),
        pass_tokens(model, routes.expect),
        routed(model, routes),
    ):
        yield routes


_recorded: dict[type, list[Any]] = {}
"""The models that are recorded, by their class."""
_restore: dict[type, Callable[[], None]] = {}
"""Functions that give a class its own `generate` back, by class."""


@contextmanager
def _checking_generate(model: Any) -> Iterator[None]:
    """Inside the context `model.generate` refuses modes in which a pass is not the next tokens of
    its sequences.

    The class is changed, not the model: copies of the model are plain. It is changed once for all
    its models that are recorded, whose contexts may end in any order.
    """
    kind = type(model)
    if not hasattr(kind, "generate"):
        yield
        return
    models = _recorded.setdefault(kind, [])
    if not models:
        _restore[kind] = _check_generate(kind, models)
    models.append(model)
    try:
        yield
    finally:
        models.remove(model)
        if not models:
            _restore.pop(kind)()


def _check_generate(kind: Any, models: list[Any]) -> Callable[[], None]:
    """Let `generate` of a class check the mode for these models; returns the function that takes
    that back."""
    generate = kind.generate

    @wraps(generate)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if any(model is self for model in models):
            _check_mode(self, args, kwargs)
        return generate(self, *args, **kwargs)

    inherited = "generate" not in vars(kind)
    kind.generate = checked

    def restore() -> None:
        if inherited:
            del kind.generate
        else:
            kind.generate = generate

    return restore


def _set_values(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are not None, in place of which the model's own count."""
    return {name: value for name, value in settings.items() if value is not None}


def _check_mode(model: Any, args: tuple, kwargs: dict) -> None:
    """Raise RoutingError for arguments of `generate` that choose another mode than greedy decoding
    or sampling."""
    from transformers.generation import GenerationMode

    # the second positional argument of `generate`
    given = args[1] if len(args) > 1 else kwargs.get("generation_config")
    settings = {} if given is None else _set_values(vars(given))
    settings |= _set_values(kwargs)
    config = copy.deepcopy(model.generation_config)
    for name, value in settings.items():
        if hasattr(config, name):
            setattr(config, name, value)
    mode = config.get_generation_mode(kwargs.get("assistant_model"))
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise RoutingError(
            f"record(model): generate would decode by {mode.value}, so that the recorded tokens "
            "are not those of the returned text. Generate outside of record, then record "
            "model(sequences)."
        )
