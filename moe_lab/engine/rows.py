"""Forward passes over a cache, with the output head on the wanted tokens only and an ensemble of rows for each.

    with RowForward(model, ensemble) as forward:
        scores_MV = ensemble.next_scores(forward(tokens, cache))

transformers' own model runs; hooks (removed on exit) choose what its output head computes, and where the clean tokens
part into rows.

B = sequences, S = new tokens, T = cached columns, R = rows, M = wanted tokens, n = rows of each, V = vocabulary.
"""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from moe_lab.engine.cache import RowCache
from moe_lab.engine.ensemble import Ensemble, Split, split_rows
from moe_lab.engine.tokens import Tokens
from moe_lab.routing import find_routers, routed
from moe_lab.routing.gumbel_top_k import NoisyTokens

_LAYER_INPUTS = {"attention_mask", "position_ids", "position_embeddings", "past_key_values"}


class RowForward:
    """A causal language model that computes the next-token logits of wanted tokens over a `RowCache`."""

    def __init__(self, model: nn.Module, ensemble: Ensemble):
        self.model = model
        self.ensemble = ensemble
        self.device = next(model.parameters()).device
        self.num_layers = model.config.get_text_config().num_hidden_layers
        self.tokens_in = 0
        """Tokens put through the model so far, rows included, padding excluded."""
        self._head_at: Tensor | None = None
        self._split = _SplitLayers(model, ensemble) if ensemble.n > 1 else None

    def __enter__(self) -> RowForward:
        self._stack = ExitStack()
        head = self.model.get_output_embeddings()
        self._stack.callback(head.register_forward_pre_hook(self._select).remove)
        if self._split:
            self._stack.callback(self._split.remove)
            self._split.install()
        if self.ensemble.routing:
            self._stack.enter_context(routed(self.model, self.ensemble.routing))
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.close()

    def new_cache(self, capacity: int = 0) -> RowCache:
        return RowCache(self.num_layers, capacity)

    @torch.inference_mode()
    def __call__(self, tokens: Tokens, cache: RowCache, counted: int | None = None) -> Tensor:
        """Logits [M, n, V] of the token after each wanted one, its clean row first; clean tokens stay in the cache.

        Args:
            counted: how many of the tokens are no padding, if some are.
        """
        past = cache.length
        split = self._rows(tokens, past)
        self._head_at = split.logits_at.reshape(-1) if split else tokens.wanted_M
        if not len(tokens.wanted_M):
            self._head_at = torch.zeros(1, dtype=torch.long, device=self.device)
        mask = None if tokens.visible_BSK is None else self._mask(tokens.visible_BSK)
        logits = self.model(
            input_ids=tokens.ids_BS,
            attention_mask=mask,
            position_ids=tokens.position_BS,
            past_key_values=cache,
            use_cache=True,
        ).logits
        cache.keep(past + tokens.ids_BS.shape[1])
        extra = len(split.noisy) if split else 0
        self.tokens_in += (tokens.ids_BS.numel() if counted is None else counted) + extra
        count = len(tokens.wanted_M)
        return logits[0, : count * self.ensemble.n].view(count, self.ensemble.n, logits.shape[-1])

    def _rows(self, tokens: Tokens, past: int) -> Split | None:
        """Part the wanted tokens into rows and tell the routers which of these are noisy."""
        if not self._split:
            return None
        split = None
        if len(tokens.wanted_M):
            visible = tokens.visible_BSK
            if visible is None:
                B, S = tokens.ids_BS.shape
                visible = (
                    torch.ones(S, past + S, dtype=torch.bool, device=self.device).tril(past).expand(B, -1, -1)
                )
            split = split_rows(tokens.wanted_M, visible, self.ensemble.n)
        mask = None if split is None else self._mask(split.visible_BRK)
        self._split.expect(split, mask, single=tokens.ids_BS.shape[1] == 1)
        if self.ensemble.routing:
            self.ensemble.routing.expect(None if split is None else self._noisy_tokens(tokens, split))
        return split

    def _noisy_tokens(self, tokens: Tokens, split: Split) -> NoisyTokens:
        R = split.source_BR.shape[1]
        sequence = split.noisy // R
        source = split.source_BR.reshape(-1)[split.noisy]
        n = self.ensemble.n
        return NoisyTokens(
            index=split.noisy,
            document=tokens.document_B[sequence],
            repeat=tokens.repeat_B[sequence],
            row=torch.arange(1, n, device=self.device).repeat(len(split.noisy) // (n - 1)),
            position=tokens.position_BS[sequence, source],
        )

    def _mask(self, visible: Tensor) -> Tensor:
        """bool [B, Q, K] -> what attention adds to its scores, [B, 1, Q, K] (understood by sdpa and eager alike)."""
        dtype = self.model.dtype
        mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
        return mask.masked_fill_(~visible, torch.finfo(dtype).min)[:, None]

    def _select(self, head: nn.Module, args: tuple) -> tuple:
        """The output head's input, [B, R, hidden] -> [1, wanted rows, hidden]."""
        hidden = args[0]
        return (hidden.reshape(-1, hidden.shape[-1])[self._head_at][None], *args[1:])


class _SplitLayers:
    """Hooks on decoder layers: at the first noisy one the clean tokens become rows, with masks and positions to fit.

    A single new token per sequence parts as late as it can: in front of that layer's router, its attention still
    computed once (the residual is then added to all rows). Several tokens part in front of the layer.
    """

    def __init__(self, model: nn.Module, ensemble: Ensemble):
        layers = decoder_layers(model)
        routers = find_routers(model)
        router = routers[min(ensemble.first_noisy, len(routers) - 1)]
        first = next(i for i, layer in enumerate(layers) if any(m is router.module for m in layer.modules()))
        self.first, self.later = layers[first], layers[first + 1 :]
        self.block = model.get_submodule(router.name.rpartition(".")[0])
        self._split: Split | None = None
        self._mask: Tensor | None = None
        self._single = False
        self._position_embeddings: Any = None
        self._handles: list[Any] = []

    def install(self) -> None:
        for layer in (self.first, *self.later):
            self._handles.append(layer.register_forward_pre_hook(self._before_layer, with_kwargs=True))
        self._handles.append(self.block.register_forward_pre_hook(self._before_block))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def expect(self, split: Split | None, mask: Tensor | None, single: bool) -> None:
        """What the next pass does: `single` if it reads one new token of each sequence."""
        self._split, self._mask, self._single, self._position_embeddings = split, mask, single, None

    def _before_layer(self, layer: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if self._split is None or (self._single and layer is self.first):
            return None
        source_BR = self._split.source_BR
        if layer is self.first:
            args = (_gather(args[0], source_BR), *args[1:])
        if self._position_embeddings is None:
            self._position_embeddings = tuple(
                _gather(part, source_BR) for part in kwargs["position_embeddings"]
            )
            self._position_ids = _gather(kwargs["position_ids"][..., None], source_BR)[..., 0]
        return args, kwargs | {
            "attention_mask": self._mask,
            "position_ids": self._position_ids,
            "position_embeddings": self._position_embeddings,
        }

    def _before_block(self, block: nn.Module, args: tuple) -> tuple | None:
        if self._split is None or not self._single:
            return None
        return (_gather(args[0], self._split.source_BR), *args[1:])


def _gather(tensor_BSD: Tensor, source_BR: Tensor) -> Tensor:
    """Tokens `source_BR` of each sequence; a tensor with one sequence serves all."""
    expanded = tensor_BSD.expand(source_BR.shape[0], -1, -1)
    return expanded.gather(1, source_BR[..., None].expand(-1, -1, tensor_BSD.shape[-1]))


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The decoder layers of a transformers model, in order; empty where they cannot be told."""
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    return []


def runs_rows(model: nn.Module) -> bool:
    """Whether this model can run over a `RowCache`: full attention in every layer, addressed by a mask.

    Recurrent states, sliding windows and layers that take other inputs cannot be given rows this way.
    """
    config = model.config.get_text_config()
    layers = decoder_layers(model)
    if not layers or model.get_output_embeddings() is None or getattr(model, "_is_stateful", False):
        return False
    if config._attn_implementation not in ("sdpa", "eager"):
        return False
    if set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
        return False
    if getattr(config, "layer_types", None) is None and getattr(config, "sliding_window", None):
        return False
    inputs = [set(inspect.signature(layer.forward).parameters) for layer in layers]
    return all(_LAYER_INPUTS <= names for names in inputs)
