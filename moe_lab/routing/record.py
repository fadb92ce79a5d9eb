"""Recording of routing decisions.

    with record(model) as routes:
        model.generate(input_ids)
    routes.indices[3]     # MoE layer 3: int64 [tokens, k]

N = the tokens of a pass that are no padding.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn

from moe_lab.errors import RoutingError
from moe_lab.routing.hook import opened, routed
from moe_lab.routing.passes import PassReader, inputs_of, on_passes, transformers_model
from moe_lab.routing.policy import Policy
from moe_lab.routing.router import Router
from moe_lab.routing.routes import Routes
from moe_lab.routing.rules import Routing


class _Recorder(Policy):
    """Adds the decisions of all forward passes to routes, without padding."""

    observes = True

    def __init__(self) -> None:
        self.routes = Routes.empty()
        self._reader = PassReader()
        self._count = 0
        """Tokens of the pass, padding included."""
        self._real_N = torch.zeros(0, dtype=torch.long)
        """The real tokens among them."""

    def begin_pass(self, args: tuple, kwargs: dict[str, Any]) -> None:
        """Add the tokens of the next forward pass. The host waits for the device once, to leave
        padding out."""
        tokens = self._reader.read(args, kwargs)
        inputs = inputs_of(args, kwargs)
        if inputs.dim() == 2:
            token_id_T = inputs.reshape(-1)
        else:
            token_id_T = torch.full_like(tokens.position_T, -1)
        self._count = len(tokens.real_T)
        self._real_N = tokens.real_T.nonzero()[:, 0]
        self.routes.add_pass(
            token_id_T[self._real_N].long().cpu(),
            tokens.sequence_T[self._real_N].cpu(),
            tokens.position_T[self._real_N].cpu(),
        )

    def __call__(self, router: Router, routing: Routing) -> None:
        if len(routing.logits_TE) != self._count:
            raise RoutingError(
                f"A router decides for {len(routing.logits_TE)} tokens, but the model was called "
                f"with {self._count}. model(...) and model.generate can be recorded; an ensemble "
                "runs later layers on their own."
            )
        real_N = self._real_N.to(routing.index_TK.device)
        kept = Routing(*(tensor.detach()[real_N] for tensor in routing))
        self.routes.add_decision(router.layer, kept)


@contextmanager
def record(model: nn.Module) -> Iterator[Routes]:
    """Record all routing decisions of `model(...)` and `model.generate(...)` inside the context.

    Tokens are in the order of the passes, and within a pass sequence by sequence. `sequences` and
    `positions` identify them: a pass without cached tokens begins new sequences.

    Packed rows, given by `position_ids` without an attention mask, are one sequence for each of
    their texts. Tokens with 0 in a two-dimensional `attention_mask` of the model are padding. In
    `generate`, transformers feeds padding to sequences that have ended, unmasked: it is recorded as
    their tokens.

    `generate` may decode greedily or by sampling. Beams move between the sequences of a pass, and
    an assistant's tokens may be dropped, so that the recorded tokens would not be those of the
    returned text: RoutingError.

    Raises ModelError and RoutingError as `routed` does, so also under gradient checkpointing.
    """
    recorder = _Recorder()
    handles = on_passes(model, recorder.begin_pass)
    try:
        with (
            opened(model, "record(model)"),
            _checking_generate(transformers_model(model)),
            routed(model, recorder),
        ):
            yield recorder.routes
    finally:
        for handle in handles:
            handle.remove()


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
