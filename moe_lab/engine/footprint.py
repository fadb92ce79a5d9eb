"""What passes of a model take of memory, metered on the meta device, where tensors have shapes and
no values.

The bytes of all storages that are alive are counted while a pass runs. Scaled-dot-product attention
is one operation, as in the kernels of GPUs, which keep no scores. What a device adds is not
counted: its context, workspaces of kernels and fragmentation.
"""

import json
import math
import weakref
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C import _dispatch_has_kernel_for_dispatch_key as _has_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from moe_lab.engine.forward.kv_cache import KVCache
from moe_lab.engine.forward.layers import hidden_state_model
from moe_lab.models.auto_class import auto_class
from moe_lab.models.facts import without_rope_lengths
from moe_lab.models.transformers_internals import attention_of

SMALL = 256
"""Tokens of a metered pass."""
LARGE = 512
"""Tokens of a second one. The difference of both is the cost of `LARGE - SMALL` tokens."""


class MemoryMeter(TorchDispatchMode):
    """Counts the bytes of the storages that are created inside the context, now (`live`) and at
    most (`peak`).

    Args:
        known: tensors that are not counted, nor views of them. Tensors on other devices than theirs
            are not counted.
    """

    def __init__(self, known: Sequence[Tensor]):
        super().__init__()
        self.live = 0
        self.peak = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._held: set[int] = set()
        """The counted storages that are alive."""
        self._device = known[0].device if known else None

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        # in inference mode a composite operation comes here whole: its parts are counted
        if _has_kernel(function.name(), "CompositeImplicitAutograd"):
            with self:
                return function.decompose(*args, **options)
        if function is torch.ops.aten._grouped_mm.default and args[0].is_meta:
            function = _grouped
        output = function(*args, **options)
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and self._device in (None, leaf.device):
                self._hold(leaf.untyped_storage())
        return output

    def _hold(self, storage: torch.UntypedStorage) -> None:
        """Count a storage until it is freed, unless it is counted or known already."""
        key = storage._cdata
        if key in self._known or key in self._held:
            return
        self._held.add(key)
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._release, key, size).atexit = False

    def _release(self, key: int, size: int) -> None:
        self._held.remove(key)
        self.live -= size


def _grouped(left: Tensor, right: Tensor, ends: Tensor, *_: Any, **__: Any) -> Tensor:
    """The shape of a grouped product, which without values exists in bfloat16 alone."""
    if right.dim() == 2:
        return left.new_empty(len(ends), len(left), right.shape[-1])
    return left.new_empty(len(left), right.shape[-1])


class _Attention(torch.autograd.Function):
    """The shapes of scaled-dot-product attention as one operation, and what its kernels keep for
    gradients."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        output = query.new_empty(*query.shape[:-1], value.shape[-1])
        log_sum_exp = output[..., 0].float()
        ctx.save_for_backward(query, key, value, mask, output, log_sum_exp)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *_ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None


class OneOperation(TorchFunctionMode):
    """Inside the context, scaled-dot-product attention computes shapes alone."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = dict(kwargs or {})
        if function is not torch.nn.functional.scaled_dot_product_attention:
            return function(*args, **options)
        mask = args[3] if len(args) > 3 else options.get("attn_mask")
        return _Attention.apply(*args[:3], mask)


class PassBytes(NamedTuple):
    """What a metered pass takes."""

    in_layers: int
    """Inside the layers at most, without its keys and values."""
    keys_and_values: int


class Footprint:
    """The bytes that passes of a model take, in addition to its weights.

    Args:
        model: on the meta device. Where the family's own code reads values (JetMoE), the loaded
            model.
    """

    def __init__(self, model: Any):
        self.model = model
        config = model.config.get_text_config(decoder=True)
        self.layers: int = config.num_hidden_layers
        self.row: int = config.vocab_size * model.dtype.itemsize
        """A row of logits, in the model's dtype."""
        self._small_pass = self._pass(SMALL)
        self.slot: int = self._small_pass.keys_and_values // SMALL
        """Keys and values of a token in all layers."""

    @cached_property
    def token(self) -> int:
        """A token in a pass, at its widest place."""
        more_bytes = self._pass(LARGE).in_layers - self._small_pass.in_layers
        return math.ceil(more_bytes / (LARGE - SMALL))

    @cached_property
    def kept(self) -> int:
        """A token in a pass with gradients of its hidden states: what all layers keep for them."""
        of_small_pass = _gradient_pass(self.model, SMALL)
        of_large_pass = _gradient_pass(self.model, LARGE)
        return math.ceil((of_large_pass - of_small_pass) / (LARGE - SMALL))

    @torch.no_grad()
    def _pass(self, tokens: int) -> PassBytes:
        """The bytes of a pass of one text with this number of tokens."""
        device = self.model.device
        dtype = self.model.dtype
        cache = KVCache(self.layers, tokens)
        ids = torch.zeros(1, tokens, dtype=torch.long, device=device)
        mask = torch.zeros(1, 1, tokens, tokens, dtype=dtype, device=device)
        positions = torch.arange(tokens, device=device)[None]
        with MemoryMeter(known_of(self.model, ids, mask, positions)) as meter, OneOperation():
            hidden_state_model(self.model)(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                cache=cache,
                use_cache=True,
            )
        return PassBytes(meter.peak - cache.nbytes, cache.nbytes)


def kept_in_training(model: Any, tokens: int) -> int:
    """The bytes that all layers keep of a sequence for the gradients of the parameters that require
    them.

    Args:
        model: on the meta device.

    Raises NotImplementedError for a family whose own code reads values of tensors.
    """
    return _gradient_pass(model, tokens, backward=False)


def _gradient_pass(model: Any, tokens: int, *, backward: bool = True) -> int:
    """The bytes that are alive at most in a pass over one text and its backward pass.

    Args:
        backward: False: those that are alive after the pass, kept for the backward pass.
    """
    device = model.device
    dtype = model.dtype
    width = model.get_input_embeddings().weight.shape[-1]
    hidden = torch.zeros(1, tokens, width, dtype=dtype, device=device, requires_grad=True)
    mask = torch.zeros(1, 1, tokens, tokens, dtype=dtype, device=device)
    positions = torch.arange(tokens, device=device)[None]
    with (
        MemoryMeter(known_of(model, hidden, mask, positions)) as meter,
        OneOperation(),
        torch.enable_grad(),
    ):
        output = hidden_state_model(model)(
            inputs_embeds=hidden, attention_mask=mask, position_ids=positions, use_cache=False
        )
        if not backward:
            return meter.live
        output.last_hidden_state.sum().backward()
    return meter.peak


def known_of(model: nn.Module, *others: Tensor) -> list[Tensor]:
    """A model's parameters and buffers, and other tensors."""
    return [*model.parameters(), *model.buffers(), *others]


def footprint_of(model: Any) -> Footprint:
    """The footprint of a loaded model, metered once for models of the same configuration."""
    config = model.config
    config_class: Any = type(config)
    config_json = config.to_json_string(use_diff=False)
    metered = _metered(config_class, config_json, model.dtype, attention_of(config))
    if metered is None:
        return Footprint(model)
    return metered


@lru_cache(maxsize=64)
def _metered(
    config_class: Any, config_json: str, dtype: torch.dtype, attention: str | None
) -> Footprint | None:
    """The footprint of an empty model on the meta device.

    None for a family whose own code reads values of tensors.
    """
    model = meta_model(config_class.from_dict(json.loads(config_json)), dtype)
    model.set_attn_implementation(attention)
    try:
        return Footprint(model)
    except NotImplementedError:
        return None


def meta_model(config: Any, dtype: torch.dtype) -> Any:
    """A model of this configuration without weights. The configuration, whose dtype transformers
    sets, is a copy."""
    with torch.device("meta"):
        copied_config = without_rope_lengths(config)
        model = auto_class(copied_config).from_config(copied_config, dtype=dtype)
    return model.eval().requires_grad_(False)
