"""Attention of a few new tokens to a long prefix that requires no gradients.

torch's own backward computes gradients of all keys and values. This one computes those of the new
tokens only. It is an attention function of transformers under a name of its own, `NAME`, which a
model has while `suffix_attention` is open.

N = sequences, H = query heads, J = key-value heads, G = query heads of each, S = new tokens, T =
cached slots, K = T + S, D = head size.
"""

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from moe_lab.engine.forward.kv_cache import KVLayer
from moe_lab.models.transformers_internals import replaced_attention

NAME, SDPA = "moe_lab_suffix", "sdpa"


class _New(NamedTuple):
    """What `SuffixLayer.update` notes on the keys that it returns: the other results of that
    call."""

    values_NJKD: Tensor
    new_keys_NJSD: Tensor
    new_values_NJSD: Tensor


class SuffixLayer(KVLayer):
    """One layer of joined prefixes. Every pass writes its new slots to the same place after
    them."""

    def __init__(self, parts: list[KVLayer], width: int, room: int):
        super().__init__(width + room)
        self.join(parts, width)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """The prefix with [N, J, S, D] after it, valid until the next call. Only the new slots have
        gradients."""
        if not self.is_initialized:
            return key_states, value_states
        keys: Any = _Written.apply(key_states, self.keys, self.length)
        values: Tensor = _Written.apply(value_states, self.values, self.length)
        keys.moe_lab_new = _New(values, key_states, value_states)
        return keys, values


class _Written(torch.autograd.Function):
    """Writes new slots after a prefix in place, [N, J, S, D] -> [N, J, K, D].

    Backward through the output of an earlier call raises RuntimeError, since its slots are
    overwritten.
    """

    @staticmethod
    def forward(ctx: Any, new: Tensor, buffer: Tensor, length: int) -> Tensor:
        ctx.length = length
        buffer[:, :, length:] = new
        return buffer.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[:, :, ctx.length :], None, None


def suffix_attention(model: nn.Module) -> AbstractContextManager[None]:
    """Inside the context the model's `sdpa` attention computes no gradients of a `SuffixLayer`'s
    prefix."""
    return replaced_attention(model, SDPA, NAME)


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """An attention function of transformers: (the output [N, S, H, D], no attention weights).

    It is `sdpa` for keys and values that are not a `SuffixLayer`'s, and where none needs gradients.
    """
    new: _New | None = getattr(key, "moe_lab_new", None)
    # a model may change keys or values between the cache and its attention, which this function
    # would not follow
    known = new is not None and new.values_NJKD is value
    if new is None or not known or mask is None or not (query.requires_grad or key.requires_grad):
        return sdpa_attention_forward(module, query, key, value, mask, **options)
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    out_NHSD = _Attention.apply(
        query, new.new_keys_NJSD, new.new_values_NJSD, key.detach(), value.detach(), mask, scale
    )
    return out_NHSD.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _attend)


class _Attention(torch.autograd.Function):
    """softmax(q k^T scale + mask) v, [N, H, S, D]; differentiable in q and in the new slots of k
    and v."""

    @staticmethod
    def forward(
        ctx: Any,
        query_NHSD: Tensor,
        new_keys: Tensor,
        new_values: Tensor,
        key_NJKD: Tensor,
        value_NJKD: Tensor,
        mask_N1SK: Tensor,
        scale: float,
    ) -> Tensor:
        """The output [N, H, S, D]; keys and values of the prefix, with the new ones, are K
        slots."""
        N, J, K, _ = key_NJKD.shape
        query_NJQD = query_NHSD.reshape(N, J, -1, query_NHSD.shape[-1])  # Q = G x S
        # scores stay in float32 up to the softmax, as in the kernels of sdpa
        precise = torch.promote_types(query_NHSD.dtype, torch.float32)
        score_NJQK = query_NJQD.to(precise) @ key_NJKD.to(precise).mT * scale
        score_NJGSK = (
            score_NJQK.unflatten(2, (-1, query_NHSD.shape[2])) + mask_N1SK[:, :, None, :, :K]
        )
        share_NJQK = score_NJGSK.softmax(dim=-1).to(query_NHSD.dtype).flatten(2, 3)
        ctx.save_for_backward(query_NJQD, key_NJKD, value_NJKD, share_NJQK)
        ctx.scale = scale
        ctx.new = new_keys.shape[2]
        ctx.shape = query_NHSD.shape
        return (share_NJQK @ value_NJKD).reshape(*query_NHSD.shape[:3], -1)

    @staticmethod
    def backward(ctx: Any, gradient_NHSD: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the query, of the new keys and of the new values."""
        query_NJQD, key_NJKD, value_NJKD, share_NJQK = ctx.saved_tensors
        N, J = key_NJKD.shape[:2]
        gradient_NJQD = gradient_NHSD.reshape(N, J, -1, gradient_NHSD.shape[-1])
        # the backward pass of softmax attention; products for keys and values take the new slots
        # alone
        of_share_NJQK = gradient_NJQD @ value_NJKD.mT
        centred = of_share_NJQK - (of_share_NJQK * share_NJQK).sum(dim=-1, keepdim=True)
        of_score_NJQK = centred * share_NJQK * ctx.scale
        of_query = (of_score_NJQK @ key_NJKD).reshape(ctx.shape)
        of_new_keys = of_score_NJQK[..., -ctx.new :].mT @ query_NJQD
        of_new_values = share_NJQK[..., -ctx.new :].mT @ gradient_NJQD
        return of_query, of_new_keys, of_new_values, None, None, None, None
