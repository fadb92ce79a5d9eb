"""Checks of a loaded model: its weights, a short pass, its routers and its vocabulary.

transformers would initialize missing parameters at random, and leave out those that config.json
does not count.
"""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig

from moe_lab.errors import ModelError, MoeLabError, RoutingError, first_line
from moe_lab.models.text_part import OF_IMAGES, has_towers
from moe_lab.routing import Router, Routing, find_routers, routed

DAMAGED = "It is damaged or belongs to another configuration: fetch or save it again."


def check_complete(report: dict[str, Any], source: str, config: PreTrainedConfig) -> None:
    """Raise ModelError, naming a parameter, if transformers reports missing, misshapen or
    unexpected ones."""
    is_part_of_larger = has_towers(config)
    unexpected = []
    for name in report["unexpected_keys"]:
        # the parts of a larger model that read no text are left out
        if not (is_part_of_larger and OF_IMAGES.search(name)):
            unexpected.append(name)
    problems = {
        "lacks parameters of the model": report["missing_keys"],
        "has parameters in another shape": {name for name, *_ in report["mismatched_keys"]},
        "has weights that its model has no place for": set(unexpected),
    }
    for problem, names in problems.items():
        if names:
            raise ModelError(
                f"The checkpoint {source} {problem} ({len(names)}, e.g. {min(names)}).\n{DAMAGED}"
            )


TOKENS = 4
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def check_weights(model: nn.Module, source: str) -> None:
    """Raise ModelError, naming a parameter, for weights that are NaN or infinite."""
    name = not_finite(model)
    if name is not None:
        raise ModelError(
            f"{source} has weights that are NaN or infinite, in {name}: use another checkpoint."
        )


@torch.no_grad()
def not_finite(model: nn.Module) -> str | None:
    """The first stored parameter or buffer with a number that is NaN or infinite.

    Those that are on disk (`meta`) or quantized are not checked.
    """
    for name, stored in model.state_dict().items():
        tensor = stored.to_local() if hasattr(stored, "to_local") else stored
        is_quantized = type(tensor) is not torch.Tensor  # torchao's have the dtype of their values
        if is_quantized or tensor.device.type == "meta":
            continue
        if tensor.dtype not in FLOATS or not tensor.numel():
            continue
        smallest_and_largest = torch.stack(torch.aminmax(tensor))  # without a copy of the tensor
        if not smallest_and_largest.isfinite().all():
            return name
    return None


def check_pass(model: Any, device: torch.device, source: str) -> None:
    """Raise ModelError if a pass of a few tokens fails, or its logits are NaN or infinite."""
    ids = torch.arange(min(TOKENS, model.config.get_text_config().vocab_size), device=device)[None]
    try:
        with torch.no_grad():
            logits = model(ids, use_cache=False).logits
    except (MoeLabError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # inconsistent sizes in a configuration lead to any exception
        raise ModelError(
            f"{source} cannot read a text as it was loaded: {first_line(error)}.\n"
            "Its config.json does not fit its weights, or this version of transformers: use "
            "another checkpoint."
        ) from error
    if not logits.isfinite().all():
        raise ModelError(
            f"{source} gives logits that are no numbers. Try another dtype or checkpoint."
        )


def prove_seam(model: Any, device: torch.device, source: str) -> None:
    """Check in one forward pass that every router is called and applies its rule.

    Raises ModelError otherwise, for example if a quantized kernel bypasses the routers, or if a
    router reads parameters of its parts that are on disk: they come to memory when the part itself
    is called, and give any numbers before.
    """
    unread: set[nn.Module] = set()
    for router in find_routers(model):
        for part in router.module.children():
            if any(parameter.is_meta for parameter in part.parameters(recurse=False)):
                unread.add(part)

    def was_called(part: nn.Module, *arguments: Any) -> None:
        unread.discard(part)

    handles = [part.register_forward_hook(was_called) for part in unread]
    try:
        with torch.no_grad(), routed(model, _check_rule):
            model(torch.arange(TOKENS, device=device)[None], use_cache=False)
        if unread:
            raise RoutingError(
                "Parameters of its routers are on disk: it needs memory for all its weights"
            )
    except torch.OutOfMemoryError:
        raise
    except (RoutingError, RuntimeError) as error:
        raise ModelError(
            f"{source} cannot be routed as it was loaded. {first_line(error)}."
        ) from error
    finally:
        for handle in handles:
            handle.remove()


def _check_rule(router: Router, routing: Routing) -> None:
    """A policy that changes nothing. Raises RoutingError for a router with other weights than its
    family's rule."""
    weights_TK = router.weights(routing.logits_TE, routing.index_TK)
    if not torch.allclose(weights_TK.float(), routing.weights_TK.float(), rtol=1e-2, atol=1e-4):
        raise RoutingError(
            f"The router {router.name} gives its experts other weights than routers of "
            f"{router.family.name} do."
        )


def check_vocabulary(tokenizer: Any, model: Any, source: str) -> None:
    """Raise ModelError for a tokenizer with ids that the model has no embedding for; added tokens
    may be unused."""
    rows = model.get_input_embeddings().weight.shape[0]
    added = tokenizer.get_added_vocab()
    largest = 0
    for token, index in tokenizer.get_vocab().items():
        if token not in added:
            largest = max(largest, index)
    if largest >= rows:
        raise ModelError(
            f"The tokenizer of {source} has ids up to {largest:,}, and the model has embeddings of "
            f"{rows:,} tokens: they do not belong together. model.tokenizer names another folder "
            "or hub id."
        )
