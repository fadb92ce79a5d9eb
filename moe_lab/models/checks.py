"""Checks of a loaded model: its weights, a short pass, its routers, its generation settings and its vocabulary.

transformers would initialize missing parameters at random, and leave out those that config.json does not count.

Overflow can hide. A norm divides by the root of the mean square, and the square of 2e19 is infinite in float32: the
norm then returns zeros, every next token is equally probable, and the perplexity is that of chance.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from moe_lab.errors import ModelError, MoeLabError, RoutingError, first_line
from moe_lab.routing import Router, Routing, find_routers, routed

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

NO_TEXT = re.compile("vision|visual|image|audio|multi_modal_projector")
DAMAGED = "It is damaged or belongs to another configuration: fetch or save it again."


def check_complete(report: dict[str, Any], source: str, config: PreTrainedConfig) -> None:
    """Raise ModelError, naming a parameter, if transformers reports missing, misshapen or unexpected ones."""
    problems = {
        "lacks parameters of the model": report["missing_keys"],
        "has parameters in another shape": {key[0] for key in report["mismatched_keys"]},
        "has weights that its model has no place for": without_place(report, config),
    }
    for problem, names in problems.items():
        if names:
            raise ModelError(
                f"The checkpoint {source} {problem} ({len(names)}, e.g. {min(names)}).\n{DAMAGED}"
            )


def without_place(report: dict[str, Any], config: PreTrainedConfig) -> set[str]:
    """Unexpected weights but those that transformers ignores, and the parts of a larger model that read no text."""
    names = set(report["unexpected_keys"])
    if config.get_text_config() is config:
        return names
    return {name for name in names if not NO_TEXT.search(name)}


TOKENS = 4
LARGEST = 1e18
"""No weight and no input of a norm is larger: the mean of its squares would overflow in float32 and bfloat16."""
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def check_weights(model: nn.Module, source: str) -> None:
    """Raise ModelError, naming a parameter, for weights that are no numbers or larger than LARGEST."""
    if name := out_of_range(model):
        raise ModelError(
            f"{source} has weights that are NaN, infinite or larger than {LARGEST:g}, in {name}.\n"
            "It is damaged, or comes from a training that diverged: use another checkpoint."
        )


def out_of_range(model: nn.Module) -> str | None:
    """The first parameter with a number that is NaN, infinite or larger than LARGEST.

    Stored buffers are checked for NaN and infinity. Parameters that are on disk (`meta`) or quantized are not checked.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            read = tensor.device.type != "meta" and tensor.dtype in FLOATS and tensor.numel() > 0
            if read and not _in_range(tensor):
                return name
        # buffers such as a router's selection bias; a mask may hold the lowest number
        stored = model.state_dict(keep_vars=True)
        for name, buffer in model.named_buffers():
            read = name in stored and buffer.device.type != "meta" and buffer.dtype in FLOATS
            if read and not buffer.isfinite().all():
                return name
    return None


def check_pass(model: Any, device: torch.device, source: str) -> None:
    """Raise ModelError if a pass of a few tokens overflows: in the input of a norm, or in the logits."""

    def check(name: str, args: tuple) -> None:
        if args and isinstance(args[0], Tensor) and not _in_range(args[0]):
            raise ModelError(
                f"{source} overflows as it was loaded: what {name} reads is NaN, infinite or larger than {LARGEST:g}.\n"
                "Its weights are damaged, or dtype= is too narrow for them: try dtype=float32, or another checkpoint."
            )

    ids = torch.arange(min(TOKENS, model.config.get_text_config().vocab_size), device=device)[None]
    hooks = [
        module.register_forward_pre_hook(lambda _, args, name=name: check(name, args))
        for name, module in model.named_modules()
        if type(module).__name__.endswith("Norm")
    ]
    try:
        with torch.no_grad():
            logits = model(ids, use_cache=False).logits
    except (MoeLabError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # inconsistent sizes in a configuration lead to any exception
        raise ModelError(
            f"{source} cannot read a text as it was loaded: {first_line(error)}.\n"
            "Its config.json does not fit its weights, or this version of transformers: use another checkpoint."
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
    if not logits.isfinite().all():
        raise ModelError(
            f"{source} gives logits that are no numbers, as it was loaded. Try another dtype, or another checkpoint."
        )


def _in_range(tensor: Tensor) -> bool:
    smallest, largest = torch.aminmax(tensor)
    return bool((-LARGEST <= smallest) & (largest <= LARGEST))  # false of NaN


def prove_seam(model: Any, device: torch.device, source: str) -> None:
    """Check in one forward pass that every router is called and applies its rule.

    Raises ModelError otherwise, for example if a quantized kernel bypasses the routers, or if a router reads parameters
    of its parts that are on disk: they come to memory when the part itself is called, and give any numbers before.
    """
    parts = [part for router in find_routers(model) for part in router.module.children()]
    unread = {part for part in parts if any(own.is_meta for own in part.parameters(recurse=False))}
    handles = [part.register_forward_hook(lambda part, *_: unread.discard(part)) for part in unread]
    ids = torch.arange(TOKENS, device=device)[None]
    try:
        with torch.no_grad(), routed(model, _check_rule):
            model(ids, use_cache=False)
        if unread:
            raise RuntimeError("parameters of a router are on the meta device")
    except (RoutingError, RuntimeError) as error:
        if unread or "meta" in str(error):
            raise ModelError(
                f"{source} cannot be routed with layers on disk: parameters of its routers are read when they are not "
                "in memory. It needs memory for all of its weights."
            ) from error
        if isinstance(error, RuntimeError):
            raise
        raise ModelError(f"{source} cannot be routed as it was loaded. {error}") from error
    finally:
        for handle in handles:
            handle.remove()


def _check_rule(router: Router, routing: Routing) -> None:
    weights_TK = router.weights(routing.logits_TE, routing.index_TK)
    if not torch.allclose(weights_TK.float(), routing.weights_TK.float(), rtol=1e-2, atol=1e-4):
        raise RoutingError(
            f"The router {router.name} gives its experts other weights than routers of {router.family.name} do."
        )


def check_vocabulary(tokenizer: Any, model: Any, source: str) -> None:
    """Raise ModelError for a tokenizer with ids that the model has no embedding for; added tokens may be unused."""
    rows = model.get_input_embeddings().weight.shape[0]
    added = tokenizer.get_added_vocab()
    most = max((index for token, index in tokenizer.get_vocab().items() if token not in added), default=0)
    if most >= rows:
        raise ModelError(
            f"The tokenizer of {source} has ids up to {most:,}, and the model has embeddings of {rows:,} tokens: they "
            "do not belong together. model.tokenizer names another folder or hub id."
        )
