"""Forward passes of a model: PEFT's wrappers around it, and the tokens of each pass.

Some wrappers call the model inside, and others its forward function, without its hooks. The
wrapper's `generate` calls the model inside. So hooks on passes belong on both (`on_passes`).

B = sequences of a pass, S = tokens of each, T = B x S.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from moe_lab.errors import ModelError, RoutingError
from moe_lab.routing.transient import TransientHook

CACHE = "cache"
"""The argument of models and of their layers that holds the cache of keys and values."""
OLD_CACHE = "past_key_values"
"""Its name before transformers 5.24. Models take both names until 5.40."""


ONE_THREAD = "Let one thread run it at a time (threading.Lock), or load a model for each."
"""What to do where several threads share a model."""


def cache_of(arguments: Mapping[str, Any]) -> Any:
    """The cache among the arguments of a forward pass, under either name; None if there is none."""
    cache = arguments.get(CACHE)
    if cache is None:
        return arguments.get(OLD_CACHE)
    return cache


def is_peft(module: nn.Module) -> bool:
    """Whether a module is one of PEFT's wrappers around a module of the model."""
    return type(module).__module__.partition(".")[0] == "peft"


def has_virtual_tokens(model: Any) -> bool:
    """Whether an adapter of PEFT adds tokens to every prompt, which the model inside lacks."""
    if not is_peft(model) or not hasattr(model, "get_base_model"):
        return False
    return bool(getattr(model.active_peft_config, "is_prompt_learning", False))


def transformers_model(model: Any) -> Any:
    """The model of transformers, with its adapters' layers in it, not compiled; any other model
    itself.

    Raises ModelError for an argument that is no model, and for adapters of virtual tokens, which
    the inner model lacks.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"model={model!r:.80} is no model but a {type(model).__name__}. Give a loaded one, "
            "e.g. AutoModelForCausalLM.from_pretrained(...)."
        )
    model = getattr(model, "_orig_mod", model)  # of torch.compile(model)
    inner: Any = model
    if is_peft(model) and hasattr(model, "get_base_model"):
        if has_virtual_tokens(model):
            kind = model.active_peft_config.peft_type.value  # type: ignore[operator, union-attr]
            raise ModelError(
                f"The adapter of kind {kind} adds virtual tokens to every "
                "prompt, which is not supported. Adapters that change layers are, e.g. LoRA; "
                "method=soft-prompt and method=prefix-tuning train their own."
            )
        inner = model.get_base_model()  # type: ignore[operator]
    if not hasattr(inner, "config"):
        raise ModelError(f"{type(inner).__name__} is no model of transformers: it has no config.")
    return inner


def on_passes(
    model: nn.Module, before: Callable[[tuple, dict], None], after: Callable[[], None] | None = None
) -> list[Any]:
    """Call `before` and `after` around each forward pass of the model; returns the handles of the
    hooks.

    `before` gets the arguments of the pass. A pass may begin in the wrapper or in the model inside,
    and may go through both. `after` is not called after an exception.

    A pass raises RoutingError if it begins in one thread before that of another thread has ended.
    """
    inner = transformers_model(model)
    depth = 0
    thread = 0
    """The number of the thread that runs the pass."""

    def enter(module: nn.Module, args: tuple, kwargs: dict) -> None:
        nonlocal depth, thread
        if depth > 0 and thread != this_thread():
            raise RoutingError(
                "Two threads run the model at the same time inside a context on its routing, which "
                f"cannot tell their tokens apart. {ONE_THREAD}"
            )
        thread = this_thread()
        depth += 1
        if depth == 1:
            try:
                before(args, kwargs)
            except BaseException:
                depth = 0
                raise

    def leave(module: nn.Module, args: tuple, output: Any) -> None:
        nonlocal depth
        if thread != this_thread():  # its pass was refused
            return
        depth = max(0, depth - 1)
        if depth == 0 and output is not None and after is not None:
            after()

    handles: list[Any] = []
    for entrance in [model] if inner is model else [model, inner]:
        handles.append(entrance.register_forward_pre_hook(TransientHook(enter), with_kwargs=True))
        handles.append(entrance.register_forward_hook(TransientHook(leave), always_call=True))
    return handles


def this_thread() -> int:
    """The number of the thread that runs; 0 while a step is compiled, whose graph cannot ask."""
    return 0 if torch.compiler.is_compiling() else get_ident()


def in_backward() -> bool:
    """Whether this thread computes gradients, as torch's own checkpointing asks."""
    # without gradients there is no backward pass to repeat, and a compiled step must not ask
    return torch.is_grad_enabled() and torch._C._current_graph_task_id() != -1


def around(model: nn.Module, name: str) -> nn.Module:
    """The module of the model, not of PEFT, that holds the named one; the model itself if none
    does."""
    while name:
        name = name.rpartition(".")[0]
        module = model.get_submodule(name)
        if not is_peft(module) and not isinstance(module, nn.ModuleDict):
            return module
    return model


def in_use(model: nn.Module, name: str) -> bool:
    """Whether the named module runs: of a module that PEFT trains as a copy, the original or the
    active copy does."""
    path = name.split(".")
    for end in range(len(path)):
        wrapper: Any = model.get_submodule(".".join(path[:end]))
        if is_peft(wrapper) and "original_module" in wrapper._modules:
            running = _path_of_running_copy(wrapper)
            if path[end : end + len(running)] != running:
                return False
    return True


def _path_of_running_copy(wrapper: Any) -> list[str]:
    """The names that lead from one of PEFT's wrappers of trained copies to the module that runs."""
    if not wrapper.disable_adapters:
        for adapter in wrapper.active_adapters:
            if adapter in wrapper.modules_to_save:
                return ["modules_to_save", adapter]
    return ["original_module"]


def with_wrapper(block: nn.Module, module: nn.Module) -> nn.Module:
    """A module with the adapters that PEFT has put around it inside the block."""
    parents: dict[nn.Module, nn.Module] = {}
    for parent in block.modules():
        for child in parent.children():
            parents[child] = parent
    while module in parents:
        parent = parents[module]
        if not is_peft(parent) and not isinstance(parent, nn.ModuleDict):
            break
        module = parent
    return module


@dataclass(frozen=True)
class PassTokens:
    """The tokens of a forward pass, as the inputs of `model(...)` give them. All [T], on the device
    of these."""

    real_T: Tensor
    """bool: False for padding."""
    sequence_T: Tensor
    """int64: number of the sequence, from 0. A pass without cached tokens begins new sequences.

    A row of packed texts has a sequence for each of them.
    """
    position_T: Tensor
    """int64: index in the unpadded sequence."""


class _Positions(NamedTuple):
    """The tokens of a pass."""

    real_BS: Tensor
    """bool: False for padding."""
    position_BS: Tensor
    """int64: index in the unpadded sequence."""


def _positions(inputs: Tensor, kwargs: dict[str, Any], cached: int) -> _Positions:
    """The tokens of a pass after `cached` ones, by the arguments of the pass.

    A mask [B, cached + S] says which are padding, and so their positions. Without it, no token is
    padding, and positions are `position_ids`, or else follow the cached tokens.
    """
    device = inputs.device
    B, S = inputs.shape[:2]
    mask = kwargs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2:
        real_BT = mask.to(device).bool()
        position_BT = real_BT.cumsum(dim=1) - 1
        return _Positions(real_BT[:, -S:], position_BT[:, -S:])
    real_BS = torch.ones(B, S, dtype=torch.bool, device=device)
    positions = kwargs.get("position_ids")
    if isinstance(positions, Tensor) and positions.dim() == 3:
        positions = positions[0]  # of several axes, which are equal in a text
    if isinstance(positions, Tensor) and positions.dim() == 2:
        return _Positions(real_BS, positions.to(device).expand(B, S))
    position_S = torch.arange(cached, cached + S, device=device)
    return _Positions(real_BS, position_S.expand(B, S))


def _new_sequences(position_BS: Tensor, is_packed: bool) -> Tensor:
    """int64 [B, S]: the number of each token's sequence, from 0 in this pass.

    A row is a sequence. If rows may be packed, as in transformers, a position that does not follow
    the one before it begins a further one: positions [[0, 1, 0], [0, 1, 2]] are the sequences [[0,
    0, 1], [2, 2, 2]].
    """
    B, S = position_BS.shape
    begins_BS = torch.zeros(B, S, dtype=torch.long, device=position_BS.device)
    begins_BS[:, 0] = 1
    if is_packed:
        begins_BS[:, 1:] = position_BS.diff(dim=1) != 1
    return begins_BS.flatten().cumsum(0).view(B, S) - 1


def inputs_of(args: tuple, kwargs: dict[str, Any]) -> Tensor:
    """The tokens of a pass by its arguments: ids [B, S], or else embeddings [B, S, hidden]."""
    inputs: Any = args[0] if args else kwargs.get("input_ids")
    if inputs is None:
        inputs = kwargs["inputs_embeds"]
    return inputs


def cached_tokens(kwargs: dict[str, Any]) -> int:
    """The number of cached tokens of each sequence before a pass."""
    cache = cache_of(kwargs)
    return 0 if cache is None else int(cache.get_seq_length())


class PassReader:
    """Reads the tokens of a model's passes from their arguments, and numbers the sequences over all
    passes. It waits for no device."""

    def __init__(self) -> None:
        # Of the newest pass without cached tokens. Packed texts are counted on the device.
        self.first_number: int | Tensor = 0
        """The number of its first sequence."""
        self._count: int | Tensor = 0
        """How many sequences it has."""

    def read(self, args: tuple, kwargs: dict[str, Any]) -> PassTokens:
        """The tokens of the next pass."""
        inputs = inputs_of(args, kwargs)
        B, S = inputs.shape[:2]
        cached = cached_tokens(kwargs)
        real_BS, position_BS = _positions(inputs, kwargs, cached)
        if cached:  # each row continues a sequence of that pass
            number_BS = torch.arange(B, device=inputs.device)[:, None].expand(B, S)
        else:
            is_packed = kwargs.get("attention_mask") is None
            number_BS = _new_sequences(position_BS, is_packed)
            self.first_number = self.first_number + self._count
            self._count = 1 + number_BS[-1, -1]
        sequence_BS = self.first_number + number_BS
        return PassTokens(real_BS.reshape(-1), sequence_BS.reshape(-1), position_BS.reshape(-1))


@contextmanager
def pass_tokens(model: nn.Module, on_pass: Callable[[PassTokens], None]) -> Iterator[None]:
    """Call `on_pass` before every forward pass of the model inside the context. No pass waits for
    the device."""
    reader = PassReader()
    handles = on_passes(model, lambda args, kwargs: on_pass(reader.read(args, kwargs)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
