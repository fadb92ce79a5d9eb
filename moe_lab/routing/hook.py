"""Routing policies, installed on routers by a context manager, and contexts inside one another.

    with routed(model, policy):
        model(input_ids)

An inner policy gets the decision of the outer one. The final policy of `override` decides after all
others, also after those that are installed later: a method inside it decides first (noise, masks),
and the caller's policy last.

T = tokens of a forward pass, all sequences flattened, E = experts, K = experts per token.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from moe_lab.errors import ModelError, RoutingError
from moe_lab.routing.families import UNSUPPORTED, supported
from moe_lab.routing.passes import ONE_THREAD, in_backward, on_passes, transformers_model
from moe_lab.routing.policy import Policy, PolicyFunction, as_policy
from moe_lab.routing.router import Router, find_routers
from moe_lab.routing.rules import Decide, Routing
from moe_lab.routing.transient import TransientHook

_left_out: WeakSet[nn.Module] = WeakSet()
"""Layers that a pass omits, since it continues from their cached activations, and all of their
parts."""


@contextmanager
def leaving_out(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Inside the context these decoder layers do not run, and `routed` does not report their
    routers as bypassed."""
    modules: list[nn.Module] = []
    for layer in layers:
        modules += [module for module in layer.modules() if module not in _left_out]
    _left_out.update(modules)
    try:
        yield
    finally:
        _left_out.difference_update(modules)


def is_left_out(module: nn.Module) -> bool:
    """Whether a module belongs to a layer that does not run."""
    return module in _left_out


_last: WeakKeyDictionary[nn.Module, list[Any]] = WeakKeyDictionary()
"""The handles of final policies and of the observers inside them, by router: all other policies
decide before."""


def require_routers(model: nn.Module) -> list[Router]:
    """Like `find_routers`. Raises ModelError for a model without a supported router, and for an
    argument that is no model."""
    inner = transformers_model(model)
    routers = find_routers(model)
    if not routers:
        model_type = getattr(inner.config, "model_type", "")
        raise ModelError(no_router_message(type(inner).__name__, model_type))
    return routers


def why_fixed(model: nn.Module) -> str | None:
    """Why no policy may read or change the routing of single tokens of this model.

    None where one may, and for a model without a supported router.
    """
    routers = find_routers(model)
    if not routers:
        return None
    return _why_fixed(routers[0])


def _why_fixed(router: Router) -> str | None:
    """Why no policy may read or change this router; None where one may."""
    return getattr(router.module, "fixed_routing", None)


def fixed_message(model: str, reason: str) -> str:
    """Error message for a model whose routing no policy may read or change, and why."""
    return (
        f"{model} does not allow to read or change the routing of single tokens: {reason}.\n"
        "`method=base` runs it, and `method=finetune-freeze` trains it."
    )


def no_router_message(model: str, model_type: str) -> str:
    """Error message for a model without a supported router."""
    reason = UNSUPPORTED.get(model_type)
    if reason is not None:
        return f"No policy can change the routing of {model}: {reason}.\n`method=base` runs it."
    return (
        f"No router was found in {model}: it is a dense model or of a family that is not "
        "supported.\n"
        f"Supported families: {', '.join(supported())}. `method=base` runs any causal language "
        "model."
    )


@contextmanager
def routed(
    model: nn.Module,
    policy: PolicyFunction,
    first: int = 0,
    *,
    repeats: bool = False,
    final: bool = False,
) -> Iterator[list[Router]]:
    """Call `policy`, a `Policy` or a function, at every routing decision of `model` inside the
    context.

    Contexts nest: an inner policy gets the decisions of the outer one. The model is restored on
    exit, also after an exception. A pass without gradients waits for no device.

    Args:
        first: the first MoE layer with the policy. Earlier layers need not run.
        repeats: whether the policy decides the same where gradient checkpointing computes a layer
            again. The backward pass then belongs into the context, too. Other policies are refused
            under gradient checkpointing.
        final: whether the policy decides after those that are installed inside its context.
            Observers there, which change nothing, get its decision.

    Raises:
        ModelError: the model has no supported router, or one that decides for several tokens at
            once.
        RoutingError: a forward pass bypassed a router (by a fused kernel, for example), or a
            router's logits are NaN, which is found on exit, with gradients at once. Both messages
            name the module. Or the model computes layers again in the backward pass.
    """
    routers = require_routers(model)
    reason = _why_fixed(routers[0])
    if reason:
        raise ModelError(fixed_message(type(model).__name__, reason))
    installed = as_policy(policy)
    routers = routers[first:]
    watch = _Watch(model, routers, repeats)
    handles: list[Any] = []
    for router in routers:
        hooks = _hooks(router, watch.watched(router, installed))
        handles += hooks
        last_hooks = _last.setdefault(router.module, [])
        is_last = final or (installed.observes and bool(last_hooks))
        if is_last:
            last_hooks += hooks
        else:
            # torch calls the hooks of a module in their order
            for handle in last_hooks:
                handle.hooks_dict_ref().move_to_end(handle.id)
    handles += on_passes(model, watch.start, watch.finish)
    try:
        yield routers
    except Exception:  # NaN logits of a router may be its cause
        watch.check_nan()
        raise
    else:
        watch.check_nan()
    finally:
        for handle in handles:
            handle.remove()
        for router in routers:
            last_hooks = _last.get(router.module, [])
            _last[router.module] = [hook for hook in last_hooks if hook not in handles]


def _hooks(router: Router, decide: Decide) -> list[Any]:
    """Let `decide` read and change the decisions of a router; returns the handles of the hooks."""
    if router.family.seam:
        return router.family.seam(router.module, decide)
    return [router.module.register_forward_hook(_RouterHook(decide))]


class _RouterHook(TransientHook):
    """A hook on a router that returns (logits, weights, indices). Its function takes and returns a
    `Routing`."""

    def __call__(self, module: nn.Module, args: tuple, output: tuple) -> tuple | None:
        changed = self.function(Routing(*output))
        return None if changed is None else tuple(changed)


def _check_shapes(router: Router, routing: Routing, changed: Routing) -> None:
    """Raise RoutingError unless a changed decision has as many experts as weights for each token.

    Their number K may be another one than the router's.
    """
    weights_shape = changed.weights_TK.shape
    experts_shape = changed.index_TK.shape
    tokens_shape = routing.index_TK.shape[:-1]
    if weights_shape != experts_shape or experts_shape[:-1] != tokens_shape:
        raise RoutingError(
            f"The policy of the router {router.name} (MoE layer {router.layer}) returned experts "
            f"of shape {tuple(experts_shape)} and weights of shape {tuple(weights_shape)}. Both "
            f"must be [T, K] with T = {len(routing.index_TK)} tokens."
        )


class _Watch:
    """Checks that every router is called in every forward pass of the model, and that its logits
    are not NaN."""

    def __init__(self, model: nn.Module, routers: list[Router], repeats: bool):
        self.model = model
        self.routers = routers
        self.repeats = repeats
        self.called: set[int] = set()
        """The MoE layers whose routers were called in the pass."""
        self.sums: dict[int, Tensor] = {}
        """The sum of the logits of the pass, by layer: NaN if one of them is. `isnan` would take
        several operations."""
        self.nan: dict[tuple[int, ...], Tensor] = {}
        """Whether logits of any pass were NaN, by its layers. It stays on the device until it is
        asked for."""

    def start(self, args: tuple, kwargs: dict) -> None:
        """Before a pass: raise RoutingError under gradient checkpointing."""
        self.called.clear()
        if self.model.training and torch.is_grad_enabled():
            inner = transformers_model(self.model)
            self._check_repeats(getattr(inner, "is_activation_checkpointing", False))

    def _check_repeats(self, is_repeated: bool) -> None:
        """Raise RoutingError for a decision that the backward pass repeats, unless the policy
        decides the same again."""
        if is_repeated and not self.repeats:
            raise RoutingError(
                "Gradient checkpointing routes tokens again in the backward pass, which contexts "
                "on routing do not support. Call model.activation_checkpointing_disable() first, "
                "or use torch.no_grad()."
            )

    def watched(self, router: Router, policy: Policy) -> Decide:
        """The policy's decisions at one router, as a function that checks each call."""

        def decide(routing: Routing) -> Routing | None:
            self._check_repeats(in_backward())
            self.called.add(router.layer)
            self.sums[router.layer] = routing.logits_TE.detach().sum(dtype=torch.float32)
            changed = policy(router, routing)
            if changed is not None:
                _check_shapes(router, routing, changed)
            return changed

        return decide

    def finish(self) -> None:
        """After a pass: raise RoutingError for a router that was not called."""
        for router in self.routers:
            if router.layer not in self.called and not is_left_out(router.module):
                raise RoutingError(
                    f"The router {router.name} was bypassed: the model ran without calling it "
                    "(fused or quantized kernels do this), so no routing method can act.\n"
                    "Load the model unquantized and with model.experts_implementation=grouped_mm, "
                    "or use method=base."
                )
        self._note_nan()
        if torch.is_grad_enabled():
            self.check_nan()

    def _note_nan(self) -> None:
        """Move the sums of a pass into `nan`, without waiting for the device."""
        if not self.sums:
            return
        layers = tuple(self.sums)
        sums = list(self.sums.values())
        nan = torch.stack([logits_sum.to(sums[0].device) for logits_sum in sums]).isnan()
        if layers not in self.nan:
            with torch.inference_mode(False):  # so that passes of either mode may change it
                self.nan[layers] = torch.zeros(len(layers), dtype=torch.bool, device=nan.device)
        # in place, so that a graph of the device can repeat it
        self.nan[layers].logical_or_(nan)
        self.sums.clear()

    def check_nan(self) -> None:
        """Raise RoutingError if a router's logits were NaN. Waits for the device."""
        self._note_nan()
        nan_layers: set[int] = set()
        for layers, is_nan in self.nan.items():
            nan_layers.update(compress(layers, is_nan.tolist()))
        self.nan.clear()
        for router in self.routers:
            if router.layer in nan_layers:
                raise RoutingError(
                    f"The logits of the router {router.name} (MoE layer {router.layer}) are NaN. "
                    "Try dtype=bfloat16 or dtype=float32; float16 overflows in many models."
                )


@dataclass(frozen=True)
class _Context:
    """A context on a model."""

    name: str
    thread: int
    """The number of the thread that entered it."""
    takes_ensembles: bool


_open: WeakKeyDictionary[nn.Module, list[_Context]] = WeakKeyDictionary()
"""The contexts on each model, the outermost first."""


def _check_alone(name: str, contexts: Sequence[_Context]) -> None:
    """Raise RoutingError, which names the innermost one, for open contexts that `name` cannot be
    inside of."""
    for outer in reversed(contexts):
        if outer.thread != get_ident():
            raise RoutingError(
                f"{name}: another thread runs {outer.name} on this model. {ONE_THREAD}"
            )
        if not outer.takes_ensembles:
            raise RoutingError(
                f"{name} inside {outer.name}: they cannot be combined, since {name} runs several "
                "routings of a token, and later layers on their own. Leave the context of "
                f"{outer.name} first."
            )


@contextmanager
def opened(
    model: nn.Module, name: str, *, alone: bool = False, takes_ensembles: bool = False
) -> Iterator[None]:
    """A context on the model, by its name.

    Args:
        alone: raises RoutingError inside a context of another thread, and inside one that takes no
            ensembles.
        takes_ensembles: whether a context that is `alone` may be inside this one, in the same
            thread.
    """
    contexts = _open.setdefault(transformers_model(model), [])
    if alone:
        _check_alone(name, contexts)
    context = _Context(name, get_ident(), takes_ensembles)
    contexts.append(context)
    try:
        yield
    finally:
        contexts.remove(context)
