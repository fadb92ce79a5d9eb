"""Models inside PEFT's wrappers: which transformers model they run, and which of its modules are in use.

Some wrappers call the model inside, and others its forward function, without its hooks. The wrapper's `generate` calls
the model inside. So hooks on passes belong on both (`on_passes`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from moe_lab.errors import ModelError


def is_peft(module: nn.Module) -> bool:
    """Whether a module is a part of PEFT, which stands around a module of the model."""
    return type(module).__module__.partition(".")[0] == "peft"


def transformers_model(model: Any) -> Any:
    """The model of transformers, with its adapters' layers in it; any other model itself.

    Raises ModelError for what is no model, and for adapters of virtual tokens, which are outside of the inner model.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"model={model!r:.80} is no model but a {type(model).__name__}. Give a loaded one, e.g. "
            "AutoModelForCausalLM.from_pretrained(...)."
        )
    inner: Any = model
    if is_peft(model) and hasattr(model, "get_base_model"):
        config = model.active_peft_config  # type: ignore[operator]
        if getattr(config, "is_prompt_learning", False):
            raise ModelError(
                f"The adapter of kind {config.peft_type.value} adds virtual tokens to every prompt, which is not "
                "supported. Adapters that change layers are, e.g. LoRA; method=soft-prompt and method=prefix-tuning "
                "train their own."
            )
        inner = model.get_base_model()  # type: ignore[operator]
    if not hasattr(inner, "config"):
        raise ModelError(f"{type(inner).__name__} is no model of transformers: it has no config.")
    return inner


def on_passes(
    model: nn.Module, before: Callable[[tuple, dict], None], after: Callable[[], None] | None = None
) -> list[Any]:
    """Call `before` and `after` around each forward pass of the model; returns the handles of the hooks.

    `before` gets the arguments of the pass. A pass may begin in the wrapper or in the model inside, and may go through
    both. `after` is not called after an exception.
    """
    inner, depth = transformers_model(model), 0

    def enter(module: nn.Module, args: tuple, kwargs: dict) -> None:
        nonlocal depth
        depth += 1
        if depth == 1:
            try:
                before(args, kwargs)
            except BaseException:
                depth = 0
                raise

    def leave(module: nn.Module, args: tuple, output: Any) -> None:
        nonlocal depth
        depth = max(0, depth - 1)
        if depth == 0 and output is not None and after is not None:
            after()

    handles: list[Any] = []
    for entrance in [model] if inner is model else [model, inner]:
        handles.append(entrance.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(entrance.register_forward_hook(leave, always_call=True))
    return handles


def around(model: nn.Module, name: str) -> nn.Module:
    """The module of the model, not of PEFT, that holds the named one."""
    while name:
        name = name.rpartition(".")[0]
        module = model.get_submodule(name)
        if not is_peft(module) and not isinstance(module, nn.ModuleDict):
            return module
    return model


def in_use(model: nn.Module, name: str) -> bool:
    """Whether the named module runs: of a module that PEFT trains as a copy, the original or the active copy does."""
    path = name.split(".")
    for end in range(len(path)):
        wrapper: Any = model.get_submodule(".".join(path[:end]))
        if is_peft(wrapper) and "original_module" in wrapper._modules:
            active = [each for each in wrapper.active_adapters if each in wrapper.modules_to_save]
            original = wrapper.disable_adapters or not active
            expected = ["original_module"] if original else ["modules_to_save", active[0]]
            if path[end : end + len(expected)] != expected:
                return False
    return True


def with_wrapper(block: nn.Module, module: nn.Module) -> nn.Module:
    """A module with the adapters that PEFT has put around it inside the block."""
    parents = {child: parent for parent in block.modules() for child in parent.children()}
    while module in parents and (is_peft(parents[module]) or isinstance(parents[module], nn.ModuleDict)):
        module = parents[module]
    return module
