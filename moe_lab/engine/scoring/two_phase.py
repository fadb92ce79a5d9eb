"""Two-phase scoring: one pass without noise, then the noisy routing samples through the later layers alone.

With a clean history all samples attend to the same keys and values, so the first phase does not depend on temperatures.
Its activations can be cached: an ensemble with other temperatures (in tuning) then costs the second phase only.

M = logit positions, n = routing samples of each, R = noisy samples of a chunk, T = cached slots, D = hidden size,
V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from moe_lab.engine.forward.adaptive import unsureness
from moe_lab.engine.forward.batch import TokenTree
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import RecordingForward
from moe_lab.engine.forward.kv_cache import JoinedKVLayer
from moe_lab.engine.forward.masks import LayerMasks
from moe_lab.engine.forward.memory_bound import Store
from moe_lab.engine.forward.prefixes import group_by_prefix
from moe_lab.engine.forward.suffix_forward import SuffixBatch, SuffixForward
from moe_lab.engine.scoring.chunks import CachedActivations, Chunk, passes, together
from moe_lab.engine.scoring.scoring import Batch, Budget, ScoringRequest, batches
from moe_lab.engine.scoring.token_scores import Scores, TokenScores, TreeScores
from moe_lab.routing.gumbel_top_k import NoisyTokens

T = TypeVar("T")
Read = Callable[[Ensemble, list[TokenTree], Iterable[Tensor]], list[T]]
"""(ensemble, trees, logits [M, n, V] of the trees' logit nodes in parts) -> a value per tree. A part is computed when
it is asked for."""


class TwoPhaseScorer:
    """Scores requests over a clean history, with the results of `scoring.score`.

    Args:
        first_noisy: the first MoE layer with noise in any ensemble.
        store: where activations are cached between calls; None: nowhere. With a store, an ensemble without noise gets
            the plain model's scores, without a second phase.
    """

    def __init__(self, model: nn.Module, first_noisy: int, store: Store[CachedActivations] | None):
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
        on_scores: Callable[[int, Scores], None],
    ) -> None:
        """As `scoring.score`."""
        self._first_phase(
            requests,
            budget,
            lambda activations: self._sample(ensemble, requests, activations, budget, on_scores),
        )

    def read(
        self,
        ensemble: Ensemble,
        requests: Sequence[ScoringRequest],
        budget: Budget,
        read: Read[T],
        on_read: Callable[[int, T], None],
    ) -> None:
        """Both phases with n samples of every token; `on_read(index, value)` gets what `read` makes of the logits."""

        def on_activations(activations: dict[int, CachedActivations]) -> None:
            samples = {i: torch.full((len(own.position_M),), ensemble.n) for i, own in activations.items()}
            with self.noisy.routed(ensemble.routing):
                for indices in together(activations, samples, budget):
                    trees = [TokenTree(requests[i].context, requests[i].continuations) for i in indices]
                    chunks = passes([(activations[i], samples[i]) for i in indices], ensemble.n, budget)
                    values = read(ensemble, trees, (self._logits(ensemble, own) for own in chunks))
                    for i, value in zip(indices, values, strict=True):
                        on_read(i, value)

        self._first_phase(requests, budget, on_activations)

    def _first_phase(
        self,
        requests: Sequence[ScoringRequest],
        budget: Budget,
        on_activations: Callable[[dict[int, CachedActivations]], None],
    ) -> None:
        """Hands over the activations of all requests, those in the store first."""
        cached: dict[int, CachedActivations] = {}
        if self.store is not None:
            found = {i: self.store.get(_key(request)) for i, request in enumerate(requests)}
            cached = {i: activations for i, activations in found.items() if activations is not None}
            on_activations(cached)
        first_phase = self._read(requests, [i for i in range(len(requests)) if i not in cached], budget)
        while True:
            with self.clean:
                activations = next(first_phase, None)
            if activations is None:
                return
            on_activations(activations)

    def _read(
        self, requests: Sequence[ScoringRequest], missing: list[int], budget: Budget
    ) -> Iterator[dict[int, CachedActivations]]:
        """The first phase, batch by batch. Each step runs inside `self.clean`."""
        unread = [requests[i] for i in missing]
        for group in group_by_prefix([request.context for request in unread]):
            for batch in batches(self.clean, unread, group, budget):
                read = dict(
                    zip([missing[i] for i in batch.indices], self._activations(batch, budget), strict=True)
                )
                if self.store is not None:
                    for i, activations in read.items():
                        self.store.add(_key(requests[i]), activations)
                yield read

    def _activations(self, batch: Batch, budget: Budget) -> list[CachedActivations]:
        shared, device = batch.cache.length, self.clean.device
        scores, measures = self._clean_scores(batch, budget)
        sizes = [len(tree.logit_nodes) for tree in batch.trees]
        fork, final = (hidden_MD.split(sizes) for hidden_MD in self.clean.recorded())
        return [
            CachedActivations(
                scores=scores[b],
                measures=measures[b],
                kv_cache=batch.cache.taken(b, shared + len(tree), self.clean.fork),
                fork_MD=fork[b].clone(),
                final_MD=final[b].clone(),
                visible_MT=_others(tree, shared).to(device),
                position_M=torch.tensor(tree.positions)[tree.logit_nodes].to(device),
                noise_key=tree.noise_key,
            )
            for b, tree in enumerate(batch.trees)
        ]

    def _clean_scores(self, batch: Batch, budget: Budget) -> tuple[list[TreeScores], list[dict[str, Tensor]]]:
        """The plain model's scores and measures of each tree."""
        scores, parts, done = TokenScores(batch.trees), [], 0
        for logits_M1V in batch.passes(self.clean, budget):
            scores.put(self.clean.ensemble, torch.arange(done, done + len(logits_M1V)), logits_M1V)
            parts.append(unsureness(logits_M1V[:, 0]))
            done += len(logits_M1V)
        sizes = [len(tree.logit_nodes) for tree in batch.trees]
        split = {name: torch.cat([part[name] for part in parts]).split(sizes) for name in parts[0]}
        return scores.by_tree(), [
            {name: values[b].clone() for name, values in split.items()} for b in range(len(sizes))
        ]

    def _sample(
        self,
        ensemble: Ensemble,
        requests: Sequence[ScoringRequest],
        activations: dict[int, CachedActivations],
        budget: Budget,
        on_scores: Callable[[int, Scores], None],
    ) -> None:
        """The second phase."""
        samples = {i: self._samples(ensemble, cached) for i, cached in activations.items()}
        with self.noisy.routed(ensemble.routing):
            for indices in together(activations, samples, budget):
                trees = [TokenTree(requests[i].context, requests[i].continuations) for i in indices]
                scores = TokenScores(trees, [activations[i].scores for i in indices])
                own = [(activations[i], samples[i]) for i in indices]
                for n in sorted({n for i in indices for n in samples[i].tolist()} - {1}):
                    part = ensemble.first(n)
                    for chunks in passes(own, n, budget):
                        places = torch.cat([chunk.place_C for chunk in chunks])
                        scores.put(part, places, self._logits(part, chunks))
                for i, summed in zip(indices, scores.summed(), strict=True):
                    on_scores(i, summed)

    def _samples(self, ensemble: Ensemble, cached: CachedActivations) -> Tensor:
        """int64 [M], on the CPU: the routing samples that each logit position takes, the clean one included."""
        count = len(cached.position_M)
        if (
            self.store is not None
            and ensemble.noiseless
            and ensemble.sweep is None
            and ensemble.logit_scale == 1
        ):
            return torch.ones(count, dtype=torch.long)
        if ensemble.adaptive is None:
            return torch.full((count,), ensemble.n)
        return ensemble.adaptive.samples_of(cached.measures).cpu()

    @torch.inference_mode()
    def _logits(self, ensemble: Ensemble, chunks: list[Chunk]) -> Tensor:
        """Logits [M, n, V] at the chunks' logit positions, the clean sample first."""
        noisy = ensemble.n - 1
        requests = [chunk.request for chunk in chunks]
        counts = torch.tensor([len(chunk.at_C) * noisy for chunk in chunks])
        T, R = max(request.kv_cache.length for request in requests), int(counts.max())

        def spread(parts: list[Tensor]) -> Tensor:
            """[M, X] of each chunk, once for every noisy sample: [B, R, X], padded behind with 0."""
            own = [
                part[chunk.at_C].repeat_interleave(noisy, dim=0)
                for part, chunk in zip(parts, chunks, strict=True)
            ]
            return torch.stack([nn.functional.pad(part, (0, 0, 0, R - len(part))) for part in own])

        visible = [nn.functional.pad(r.visible_MT, (T - r.kv_cache.length, 0)) for r in requests]
        itself = torch.eye(R, dtype=torch.bool, device=self.noisy.device).expand(len(chunks), -1, -1)
        real_BR = (torch.arange(R) < counts[:, None]).to(self.noisy.device)
        batch = SuffixBatch(
            hidden_BSD=spread([r.fork_MD for r in requests]),
            position_BS=spread([r.position_M[:, None] for r in requests])[..., 0],
            masks=LayerMasks(torch.cat([spread(visible), itself], dim=-1), self.noisy.model.dtype),
            layers=[
                JoinedKVLayer(list(parts), T)
                for parts in zip(*(r.kv_cache.layers for r in requests), strict=True)
            ],
            logits_at=real_BR.reshape(-1).nonzero()[:, 0],
            count=int(counts.sum()),
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
