"""Two-phase scoring: one pass without noise, then the noisy routing samples through the later layers alone.

With a clean history all samples attend to the same keys and values, so the first phase does not depend on temperatures.
Its activations can be cached: an ensemble with other temperatures (in tuning) then costs the second phase only.

M = logit positions of a request, C = those of a chunk, n = routing samples of each, R = noisy samples of a chunk,
T = cached slots, D = hidden size, V = vocabulary.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from moe_lab.engine.forward.batch import TokenTree, group_by_prefix, in_runs
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import RecordingForward
from moe_lab.engine.forward.kv_cache import JoinedKVLayer, KVCache, Store
from moe_lab.engine.forward.layers import LayerMasks
from moe_lab.engine.forward.suffix_forward import SuffixBatch, SuffixForward
from moe_lab.engine.scoring import (
    Batch,
    Budget,
    OnScores,
    ScoringRequest,
    TokenScores,
    TreeScores,
    batches,
)
from moe_lab.routing.samples import NoisyTokens

CHUNK_SAMPLES = 128
"""Noisy samples of one request in a chunk. More samples cost attention scores between samples, which are masked; fewer
cost more copies of the prefix (measured after 100 to 900 tokens: 128 and 256 are best)."""


@dataclass(frozen=True)
class CachedActivations:
    """Activations of the base model for one request and its noisy samples."""

    scores: TreeScores
    """Of the base model."""
    kv_cache: KVCache
    """Keys and values of the context and the continuations, of the layers from the fork layer on."""
    fork_MD: Tensor
    """Hidden states at the logit positions as the fork layer takes them."""
    final_MD: Tensor
    """The same as the output head takes them."""
    visible_MT: Tensor
    """bool: the cached slots that the samples of a logit position attend to: its token's, without its own."""
    position_M: Tensor
    noise_key: int
    length: int
    """Tokens of the request's longest text."""

    @property
    def nbytes(self) -> int:
        tensors = (self.fork_MD, self.final_MD, self.visible_MT, self.position_M)
        return self.kv_cache.nbytes + sum(tensor.nbytes for tensor in tensors)


@dataclass(frozen=True)
class Chunk:
    """Logit positions of a request in one pass."""

    request: CachedActivations
    at_C: Tensor
    """int64: the positions among the request's."""
    place_C: Tensor
    """int64: the same among those of all requests that are scored together."""


def together(
    activations: dict[int, CachedActivations], noisy: int, budget: Budget
) -> Iterator[list[int]]:
    """Requests whose samples, `noisy` for each logit position, fit one pass, or one request that needs several passes;
    longest first."""

    def fits(batch: list[int], i: int) -> bool:
        samples = noisy * sum(len(activations[each].position_M) for each in (*batch, i))
        return budget.size(samples, samples) <= budget.tokens and len(batch) != budget.sequences

    return in_runs(sorted(activations, key=lambda i: -activations[i].kv_cache.length), fits)


def passes(
    requests: Sequence[CachedActivations], noisy: int, budget: Budget
) -> Iterator[list[Chunk]]:
    """The logit positions in chunks of at most `CHUNK_SAMPLES` samples, each pass within the budget. A chunk is a
    sequence of its pass."""
    samples = int(budget.tokens / budget.size(1, 1))
    most = max(1, min(CHUNK_SAMPLES, samples) // noisy)
    at_once = max(1, samples // (most * noisy))
    if budget.sequences is not None:
        at_once = min(at_once, budget.sequences)
    chunks, first = [], 0
    for request in requests:
        count = len(request.position_M)
        chunks += [Chunk(request, at_C, first + at_C) for at_C in torch.arange(count).split(most)]
        first += count
    for start in range(0, len(chunks), at_once):
        yield chunks[start : start + at_once]


class TwoPhaseScorer:
    """Scores requests over a clean history, with the results of `scoring.score`.

    Args:
        first_noisy: the first MoE layer with noise in any ensemble.
        store: cache of activations between calls; None: no cache. With a store, an ensemble without noise gets
            the base model's scores, without a second phase.
    """

    def __init__(self, model: nn.Module, first_noisy: int, store: Store | None):
        self.first_noisy, self.store = first_noisy, store
        self.clean = RecordingForward(model, first_noisy)
        self.noisy = SuffixForward(model, first_noisy)

    @property
    def tokens_in(self) -> int:
        """Tokens put through the model so far, routing samples included, padding excluded."""
        return self.clean.tokens_in + self.noisy.tokens_in

    def score(
        self,
        ensemble: Ensemble,
        requests: Sequence[ScoringRequest],
        budget: Budget,
        on_scores: OnScores,
    ) -> None:
        """As `scoring.score`. Requests whose activations are stored come first."""
        cached: dict[int, CachedActivations] = {}
        if self.store is not None:
            found = {i: self.store.get(_key(request)) for i, request in enumerate(requests)}
            cached = {i: activations for i, activations in found.items() if activations is not None}
            self._sample(ensemble, requests, cached, budget, on_scores)
        first_phase = self._read(
            requests, [i for i in range(len(requests)) if i not in cached], budget
        )
        while True:
            with self.clean:
                activations = next(first_phase, None)
            if activations is None:
                return
            self._sample(ensemble, requests, activations, budget, on_scores)
            activations.clear()  # before the next ones are computed

    def _read(
        self, requests: Sequence[ScoringRequest], missing: list[int], budget: Budget
    ) -> Iterator[dict[int, CachedActivations]]:
        """The first phase, batch by batch. Each step runs inside `self.clean`."""
        unread = [requests[i] for i in missing]
        kinds = [self.clean.rotary.kind(request.length) for request in unread]
        for group in group_by_prefix([request.context for request in unread], kinds):
            for batch in batches(self.clean, unread, group, budget):
                read = dict(
                    zip(
                        [missing[i] for i in batch.indices],
                        self._activations(batch, budget),
                        strict=True,
                    )
                )
                if self.store is not None:
                    for i, activations in read.items():
                        self.store.add(_key(requests[i]), activations)
                del batch  # its cache
                yield read

    def _activations(self, batch: Batch, budget: Budget) -> list[CachedActivations]:
        shared, device = batch.cache.length, self.clean.device
        logits = batch.passes(self.clean, budget)
        scores = TokenScores(batch.trees).after(self.clean.ensemble, logits).by_tree()
        sizes = [len(tree.logit_nodes) for tree in batch.trees]
        fork, final = (hidden_MD.split(sizes) for hidden_MD in self.clean.recorded())
        return [
            CachedActivations(
                scores=scores[b],
                kv_cache=batch.cache.taken(b, shared + len(tree), self.clean.fork),
                fork_MD=fork[b].clone(),
                final_MD=final[b].clone(),
                visible_MT=_others(tree, shared).to(device),
                position_M=torch.tensor(tree.positions)[tree.logit_nodes].to(device),
                noise_key=tree.noise_key,
                length=tree.length,
            )
            for b, tree in enumerate(batch.trees)
        ]

    def _sample(
        self,
        ensemble: Ensemble,
        requests: Sequence[ScoringRequest],
        activations: dict[int, CachedActivations],
        budget: Budget,
        on_scores: OnScores,
    ) -> None:
        """The second phase."""
        unscaled = ensemble.sweep is None and ensemble.logit_scale == 1
        if self.store and ensemble.noiseless and unscaled:  # the base model's scores
            for i, cached in activations.items():
                tree = TokenTree(requests[i].context, requests[i].continuations)
                on_scores(i, TokenScores([tree], [cached.scores]).summed()[0])
            return
        with self.noisy.routed(ensemble.routing):
            for indices in together(activations, ensemble.n - 1, budget):
                trees = [TokenTree(requests[i].context, requests[i].continuations) for i in indices]
                scores = TokenScores(trees)
                for chunks in passes([activations[i] for i in indices], ensemble.n - 1, budget):
                    places = torch.cat([chunk.place_C for chunk in chunks])
                    scores.put(ensemble, places, self._logits(ensemble, chunks))
                for i, summed in zip(indices, scores.summed(), strict=True):
                    on_scores(i, summed)

    @torch.inference_mode()
    def _logits(self, ensemble: Ensemble, chunks: list[Chunk]) -> Tensor:
        """Logits [M, n, V] at the chunks' logit positions, the clean sample first."""
        noisy = ensemble.n - 1
        requests = [chunk.request for chunk in chunks]
        counts = torch.tensor([len(chunk.at_C) * noisy for chunk in chunks])
        T, R = max(request.kv_cache.length for request in requests), int(counts.max())

        def spread(parts: list[Tensor]) -> Tensor:
            """[M, X] of each chunk, once for every noisy sample: [B, R, X], padded at the end with 0."""
            own = [
                part[chunk.at_C].repeat_interleave(noisy, dim=0)
                for part, chunk in zip(parts, chunks, strict=True)
            ]
            return torch.stack([nn.functional.pad(part, (0, 0, 0, R - len(part))) for part in own])

        # Prefixes end at the same slot T, so that the samples of all requests have the same slots after it. A sample
        # sees its prefix and itself (the identity matrix), and no other sample.
        visible = [nn.functional.pad(r.visible_MT, (T - r.kv_cache.length, 0)) for r in requests]
        itself = torch.eye(R, dtype=torch.bool, device=self.noisy.device).expand(
            len(chunks), -1, -1
        )
        real_BR = torch.arange(R) < counts[:, None]
        batch = SuffixBatch(
            hidden_BSD=spread([r.fork_MD for r in requests]),
            position_BS=spread([r.position_M[:, None] for r in requests])[..., 0],
            masks=LayerMasks(torch.cat([spread(visible), itself], dim=-1), self.noisy.model.dtype),
            layers=[
                JoinedKVLayer(list(parts), T)
                for parts in zip(*(r.kv_cache.layers for r in requests), strict=True)
            ],
            logits_at=real_BR.reshape(-1).nonzero()[:, 0].to(self.noisy.device),
            count=int(counts.sum()),
            lengths=[request.length for request in requests],
            final_CD=torch.cat([chunk.request.final_MD[chunk.at_C] for chunk in chunks]),
        )
        position_M = torch.cat([chunk.request.position_M[chunk.at_C] for chunk in chunks])
        documents = torch.tensor([request.noise_key for request in requests])
        assert ensemble.routing is not None
        ensemble.routing.expect(
            NoisyTokens(
                index=batch.logits_at,
                document=documents.repeat_interleave(counts).to(position_M.device),
                repeat=torch.zeros_like(batch.logits_at),
                row=torch.arange(1, ensemble.n, device=position_M.device).repeat(len(position_M)),
                position=position_M.repeat_interleave(noisy),
            )
        )
        # the output head gets the cached final states of the clean samples too: their logits need no pass
        clean_MV, noisy_RV = self.noisy(batch).split([len(position_M), batch.count])
        return torch.cat([clean_MV[:, None], noisy_RV.unflatten(0, (-1, noisy))], dim=1)


def _key(request: ScoringRequest) -> Hashable:
    return request.noise_key, tuple(request.context), tuple(map(tuple, request.continuations))


def _others(tree: TokenTree, shared: int) -> Tensor:
    """bool [M, shared + nodes]: the slots that each logit position attends to, its own excepted."""
    nodes = torch.tensor(tree.logit_nodes)
    own = torch.from_numpy(tree.visible)[nodes]
    own[torch.arange(len(nodes)), nodes] = False
    return nn.functional.pad(own, (shared, 0), value=True)
