"""Noisy rows alone, over clean work that is kept: what a question costs again under other temperatures.

The clean keys and values of a question, its hidden states where rows part and those that reach the output head do not
depend on the temperatures. So its noisy rows, and nothing else, go through the decoder layers from the parting one on.

M = wanted tokens, n = rows of each, R = noisy rows of a piece, T = kept columns, D = hidden size, V = vocabulary.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from moe_lab.engine.forward.batch import Tokens, TreeRow
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import RowForward
from moe_lab.engine.forward.kv_cache import RowCache, RowLayer
from moe_lab.engine.forward.layers import decoder_layers, layer_inputs, only_layers_from, parting_layer
from moe_lab.engine.forward.masks import FULL, LayerMasks, ReachHooks
from moe_lab.routing import routed
from moe_lab.routing.gumbel_top_k import NoisyTokens


@dataclass(frozen=True)
class CleanWork:
    """What the untouched model computed for one question, as far as noisy rows need it."""

    past: RowCache
    """Keys and values of its context and nodes, of the layers from the parting one on."""
    parted_MD: Tensor
    """Hidden states of the wanted tokens as the parting layer takes them."""
    final_MD: Tensor
    """Hidden states of the wanted tokens as the output head takes them."""
    others_MT: Tensor
    """bool: the columns that a wanted token's rows see, which is all that it sees but itself."""
    position_M: Tensor
    document: int

    @property
    def nbytes(self) -> int:
        tensors = (self.parted_MD, self.final_MD, self.others_MT, self.position_M)
        return self.past.nbytes + sum(tensor.nbytes for tensor in tensors)


class CleanForward(RowForward):
    """The plain model, which notes the hidden states that noisy rows start from."""

    def __init__(self, model: nn.Module, first_noisy: int):
        super().__init__(model, Ensemble())
        self.first, _ = parting_layer(model, first_noisy)

    def __enter__(self) -> CleanForward:
        super().__enter__()
        self.parted: list[Tensor] = []
        self.final: list[Tensor] = []
        layer = decoder_layers(self.model)[self.first]
        self._stack.callback(layer.register_forward_pre_hook(self._note_parted, with_kwargs=True).remove)
        return self

    def __call__(
        self, tokens: Tokens, cache: RowCache, counted: int | None = None, noise: bool = True
    ) -> Tensor:
        self._wanted = tokens.wanted_M
        return super().__call__(tokens, cache, counted, noise)

    def _note_parted(self, layer: nn.Module, args: tuple, kwargs: dict) -> None:
        hidden = layer_inputs(layer, args, kwargs)["hidden_states"]
        self.parted.append(hidden.flatten(0, 1)[self._wanted])

    def _select(self, head: nn.Module, args: tuple) -> tuple:
        self.final.append(args[0].flatten(0, 1)[self._wanted])
        return super()._select(head, args)

    def work(self, trees: list[TreeRow], cache: RowCache, shared: int) -> list[CleanWork]:
        """What was noted since the last call, tree by tree; `cache` has `shared` columns before the trees' own."""
        sizes = [len(tree.wanted) for tree in trees]
        parted, final = torch.cat(self.parted).split(sizes), torch.cat(self.final).split(sizes)
        self.parted, self.final = [], []
        return [
            CleanWork(
                past=cache.taken(b, shared + len(tree), self.first),
                parted_MD=parted[b].clone(),
                final_MD=final[b].clone(),
                others_MT=_others(tree, shared).to(self.device),
                position_M=torch.tensor(tree.positions)[tree.wanted].to(self.device),
                document=tree.document,
            )
            for b, tree in enumerate(trees)
        ]


def _others(tree: TreeRow, shared: int) -> Tensor:
    """bool [M, shared + nodes]: what each wanted node sees, without itself."""
    wanted = torch.tensor(tree.wanted)
    own = torch.from_numpy(tree.visible)[wanted]
    own[torch.arange(len(wanted)), wanted] = False
    return nn.functional.pad(own, (shared, 0), value=True)


class PastLayer(RowLayer):
    """One layer of several kept pasts. Joined anew for each use, so that one layer's copy is alive at a time."""

    def __init__(self, parts: list[RowLayer], width: int):
        super().__init__(0)
        self.parts, self.width = parts, width

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """The pasts, and [B, H, R, D] behind them, which are not kept."""
        layer = RowLayer(self.width + key_states.shape[-2])
        layer.join(self.parts, self.width)
        return layer.update(key_states, value_states)


@dataclass(frozen=True)
class Piece:
    """Some of a question's wanted tokens, which go through one pass."""

    work: CleanWork
    start: int
    stop: int

    @property
    def wanted(self) -> slice:
        return slice(self.start, self.stop)


class KeptRowForward:
    """Noisy rows over kept pasts.

    with KeptRowForward(model, ensemble, first_noisy) as forward:
        logits_MnV = forward(pieces)

    Args:
        first_noisy: the MoE layer at which the kept work parts; the ensemble's noise begins there or later.
    """

    def __init__(self, model: nn.Module, ensemble: Ensemble, first_noisy: int):
        self.model, self.ensemble = model, ensemble
        self.first, router = parting_layer(model, first_noisy)
        self.first_router = router.layer
        self.reaches = ReachHooks(model)
        self.device = next(model.parameters()).device
        self.tokens_in = 0
        """Noisy rows put through the model so far, padding excluded."""

    def __enter__(self) -> KeptRowForward:
        self._stack = ExitStack()
        assert self.ensemble.routing is not None
        self._stack.enter_context(routed(self.model, self.ensemble.routing, self.first_router))
        self._stack.enter_context(only_layers_from(self.model, self.first, lambda: self._parted_BRD))
        self.reaches.install(self._stack)
        head = self.model.get_output_embeddings()
        self._stack.callback(head.register_forward_pre_hook(self._join_clean).remove)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.close()

    @torch.inference_mode()
    def __call__(self, pieces: list[Piece]) -> Tensor:
        """Logits [M, n, V] of the pieces' wanted tokens, the clean row first."""
        noisy_n = self.ensemble.n - 1
        counts = [(piece.stop - piece.start) * noisy_n for piece in pieces]
        pasts = [piece.work.past for piece in pieces]
        T, R = max(past.length for past in pasts), max(counts)
        layers = zip(*(past.layers for past in pasts), strict=True)
        real_BR = torch.arange(R, device=self.device) < torch.tensor(counts, device=self.device)[:, None]
        self._real = real_BR.reshape(-1).nonzero()[:, 0]
        self._clean_MD = torch.cat([piece.work.final_MD[piece.wanted] for piece in pieces])
        assert self.ensemble.routing is not None
        self.ensemble.routing.expect(self._noisy_tokens(pieces, counts))
        self._parted_BRD = self._spread([p.work.parted_MD[p.wanted] for p in pieces], R)
        masks = LayerMasks(self._visible(pieces, T, R), self.model.dtype)
        self.reaches.expect(masks)
        logits = self.model(
            inputs_embeds=self._parted_BRD,
            attention_mask=masks.of(FULL),
            position_ids=self._spread([p.work.position_M[p.wanted, None] for p in pieces], R)[..., 0],
            past_key_values=Cache(layers=[PastLayer(list(parts), T) for parts in layers]),
            use_cache=True,
        ).logits[0]
        self.tokens_in += sum(counts)
        clean_MV, noisy = logits[: len(self._clean_MD)], logits[len(self._clean_MD) :]
        return torch.cat([clean_MV[:, None], noisy.view(len(clean_MV), noisy_n, -1)], dim=1)

    def _spread(self, parts: list[Tensor], R: int) -> Tensor:
        """Each piece's [M, X] as the rows of its tokens: [B, R, X], padded behind with 0."""
        noisy_n = self.ensemble.n - 1
        rows = [part.repeat_interleave(noisy_n, dim=0) for part in parts]
        return torch.stack([torch.nn.functional.pad(row, (0, 0, 0, R - len(row))) for row in rows])

    def _visible(self, pieces: list[Piece], T: int, R: int) -> Tensor:
        """bool [B, R, T + R]: the clean columns that the row's token sees, and the row itself."""
        others = [
            torch.nn.functional.pad(p.work.others_MT[p.wanted], (T - p.work.past.length, 0)) for p in pieces
        ]
        itself = torch.eye(R, dtype=torch.bool, device=self.device).expand(len(pieces), -1, -1)
        return torch.cat([self._spread(others, R), itself], dim=-1)

    def _noisy_tokens(self, pieces: list[Piece], counts: list[int]) -> NoisyTokens:
        noisy_n = self.ensemble.n - 1
        count = torch.tensor(counts, device=self.device)
        document = torch.tensor([piece.work.document for piece in pieces], device=self.device)
        position = torch.cat([piece.work.position_M[piece.wanted] for piece in pieces])
        return NoisyTokens(
            index=self._real,
            document=document.repeat_interleave(count),
            repeat=torch.zeros_like(self._real),
            row=torch.arange(1, noisy_n + 1, device=self.device).repeat(len(position)),
            position=position.repeat_interleave(noisy_n),
        )

    def _join_clean(self, head: nn.Module, args: tuple) -> tuple:
        """The output head's input: the kept clean states, then the rows that are no padding, [1, M n, D]."""
        rows = args[0].flatten(0, 1)[self._real]
        return (torch.cat([self._clean_MD, rows])[None], *args[1:])
