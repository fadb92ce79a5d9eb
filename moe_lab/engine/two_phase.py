"""Two-phase scoring: one pass without noise, then the noisy routing samples through the later
layers alone.

With a clean history all samples attend to the same keys and values, so the first phase does not
depend on temperatures. Its activations can be cached: an ensemble with other temperatures (in
tuning) then costs the second phase only.

M = logit positions of a request, C = those of a chunk, n = routing samples of each, R = noisy
samples of a chunk, T = cached slots, D = hidden size, V = vocabulary.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from moe_lab.engine.forward.batch import Group, TokenTree, group_by_prefix, in_runs
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import RecordingForward
from moe_lab.engine.forward.kv_cache import JoinedKVLayer, KVCache, KVLayer, Store
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
from moe_lab.routing.tokens import KeyedTokens, told

CHUNK_SAMPLES = 128
"""Noisy samples of one request in a chunk. With more of them more attention scores between samples
are computed and masked; with fewer the prefix is copied more often (measured after 100 to 900
tokens: 128 and 256 are fastest)."""


@dataclass(frozen=True)
class CachedActivations:
    """Activations of the base model for one request and its noisy samples."""

    scores: TreeScores
    """Of the base model."""
    kv_cache: KVCache
    """Keys and values of the context and the continuations, of the layers from the fork layer
    on."""
    fork_MD: Tensor
    """Hidden states at the logit positions as the fork layer takes them."""
    final_MD: Tensor
    """Hidden states at the logit positions as the output head takes them."""
    visible_MT: Tensor
    """bool: the cached slots that the token of a logit position attends to, without its own slot:
    each noisy sample attends to itself there."""
    position_M: Tensor
    noise_key: int
    prompt_length: int
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
    """int64: the positions among those of all requests that are scored together."""


def together(
    activations: dict[int, CachedActivations], noisy: int, budget: Budget
) -> Iterator[list[int]]:
    """The requests that are scored together, longest first.

    Their samples, `noisy` for each logit position, fit one pass. A request that needs several
    passes is alone.
    """

    def fits(batch: list[int], request: int) -> bool:
        logit_positions = len(activations[request].position_M)
        for member in batch:
            logit_positions += len(activations[member].position_M)
        samples = noisy * logit_positions
        return budget.size(samples, samples) <= budget.tokens and len(batch) != budget.sequences

    longest_first = sorted(activations, key=lambda request: -activations[request].kv_cache.length)
    return in_runs(longest_first, fits)


def passes(
    requests: Sequence[CachedActivations], noisy: int, budget: Budget
) -> Iterator[list[Chunk]]:
    """The logit positions in chunks of at most `CHUNK_SAMPLES` samples, each pass within the
    budget.

    A chunk is a sequence of its pass.
    """
    samples_per_pass = int(budget.tokens / budget.size(1, 1))
    positions_per_chunk = max(1, min(CHUNK_SAMPLES, samples_per_pass) // noisy)
    chunks_per_pass = max(1, samples_per_pass // (positions_per_chunk * noisy))
    if budget.sequences is not None:
        chunks_per_pass = min(chunks_per_pass, budget.sequences)

    chunks = []
    first_place = 0
    for request in requests:
        count = len(request.position_M)
        for at_C in torch.arange(count).split(positions_per_chunk):
            chunks.append(Chunk(request, at_C, first_place + at_C))
        first_place += count

    for start in range(0, len(chunks), chunks_per_pass):
        yield chunks[start : start + chunks_per_pass]


class TwoPhaseScorer:
    """Scores requests over a clean history, with the results of `scoring.score`.

    Args:
        first_noisy: the first MoE layer with noise in any ensemble.
        store: cache of activations between calls; None: no cache. With a store, an ensemble without
            noise gets the base model's scores, without a second phase.
    """

    def __init__(self, model: nn.Module, first_noisy: int, store: Store | None):
        self.first_noisy = first_noisy
        self.store = store
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
        stored: dict[int, CachedActivations] = {}
        missing: list[int] = []
        for i, request in enumerate(requests):
            activations_or_none = None if self.store is None else self.store.get(_key(request))
            if activations_or_none is None:
                missing.append(i)
            else:
                stored[i] = activations_or_none
        if stored:
            self._sample(ensemble, requests, stored, budget, on_scores)

        first_phase = self._read(requests, missing, budget)
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
        """The first phase: the activations of each batch of requests, by the request's number.

        The caller runs each step of this generator inside `self.clean`.

        Args:
            missing: the numbers of the requests to read.
        """
        unread = [requests[i] for i in missing]
        kinds = [self.clean.rotary.kind(request.length) for request in unread]
        if self.clean.shares_beginnings:
            groups = group_by_prefix([request.context for request in unread], kinds)
        else:
            groups = [Group(list(range(len(unread))), 0)] if unread else []
        for group in groups:
            for batch in batches(self.clean, unread, group, budget):
                activations_of = {}
                for i, activations in zip(
                    batch.indices, self._activations(batch, budget), strict=True
                ):
                    activations_of[missing[i]] = activations
                    if self.store is not None:
                        self.store.add(_key(unread[i]), activations)
                del batch  # its cache
                yield activations_of

    def _activations(self, batch: Batch, budget: Budget) -> list[CachedActivations]:
        """The activations of each request of a batch, from one pass of the base model."""
        shared = batch.cache.length
        device = self.clean.device
        logits = batch.passes(self.clean, budget)
        scores = TokenScores(batch.trees).after(self.clean.ensemble, logits).by_tree()
        sizes = [len(tree.logit_nodes) for tree in batch.trees]
        states = self.clean.recorded()
        forks = states.in_front_of_fork.split(sizes)
        finals = states.in_front_of_head.split(sizes)

        activations = []
        for b, tree in enumerate(batch.trees):
            activations.append(
                CachedActivations(
                    scores=scores[b],
                    kv_cache=batch.cache.taken(b, shared + len(tree), self.clean.fork),
                    fork_MD=forks[b].clone(),
                    final_MD=finals[b].clone(),
                    visible_MT=_visible_to_samples(tree, shared).to(device),
                    position_M=torch.tensor(tree.positions)[tree.logit_nodes].to(device),
                    noise_key=tree.noise_key,
                    prompt_length=tree.prompt_length,
                    length=tree.length,
                )
            )
        return activations

    def _sample(
        self,
        ensemble: Ensemble,
        requests: Sequence[ScoringRequest],
        activations: dict[int, CachedActivations],
        budget: Budget,
        on_scores: OnScores,
    ) -> None:
        """The second phase: the noisy samples of the requests in `activations`, by their numbers.

        `on_scores` gets each request's scores.
        """
        trees = {i: TokenTree(requests[i].context, requests[i].continuations) for i in activations}
        unscaled = ensemble.sweep is None and ensemble.logit_scale == 1
        if self.store and ensemble.noiseless and unscaled:
            for i, tree in trees.items():
                base_scores = TokenScores([tree], [activations[i].scores])
                on_scores(i, base_scores.summed()[0])
            return

        noisy = ensemble.n - 1
        with self.noisy.routed(ensemble.routing):
            for indices in together(activations, noisy, budget):
                scores = TokenScores([trees[i] for i in indices])
                for chunks in passes([activations[i] for i in indices], noisy, budget):
                    places = torch.cat([chunk.place_C for chunk in chunks])
                    scores.put(ensemble, places, self._logits(ensemble, chunks))
                for i, summed in zip(indices, scores.summed(), strict=True):
                    on_scores(i, summed)

    @torch.inference_mode()
    def _logits(self, ensemble: Ensemble, chunks: list[Chunk]) -> Tensor:
        """Logits [M, n, V] at the chunks' logit positions, the clean sample first."""
        noisy = ensemble.n - 1
        batch = self._suffix_batch(chunks, noisy)
        position_M = torch.cat([chunk.request.position_M[chunk.at_C] for chunk in chunks])
        device = position_M.device
        noise_keys = []
        for chunk in chunks:
            noise_keys += [chunk.request.noise_key] * (len(chunk.at_C) * noisy)
        assert ensemble.routing is not None
        ensemble.routing.expect(
            NoisyTokens(
                index=batch.logits_at,
                document=torch.tensor(noise_keys).to(device),
                repeat=torch.zeros_like(batch.logits_at),
                row=torch.arange(1, ensemble.n, device=device).repeat(len(position_M)),
                position=position_M.repeat_interleave(noisy),
            )
        )
        # the output head gets the cached final states of the clean samples, too: their logits need
        # no pass
        with told(self.noisy.model, lambda: [_keyed(chunks, batch, noisy)]):
            logits_RV = self.noisy(batch)
        clean_MV, noisy_RV = logits_RV.split([len(position_M), batch.count])
        return torch.cat([clean_MV[:, None], noisy_RV.unflatten(0, (-1, noisy))], dim=1)

    def _suffix_batch(self, chunks: list[Chunk], noisy: int) -> SuffixBatch:
        """The noisy samples of the chunks. A chunk is a row of the batch, padded at its end.

        Prefixes end at the same slot T, so that the samples of all requests have the same slots
        after it. A sample sees its prefix and itself, and no other sample.
        """
        device = self.noisy.device
        requests = [chunk.request for chunk in chunks]
        counts = torch.tensor([len(chunk.at_C) * noisy for chunk in chunks])
        B = len(chunks)
        R = int(counts.max())
        T = max(request.kv_cache.length for request in requests)

        def for_each_sample(parts: list[Tensor]) -> Tensor:
            """[B, R, X]: the rows of each chunk's [M, X], once for every noisy sample, padded with
            0."""
            padded = []
            for part_MX, chunk in zip(parts, chunks, strict=True):
                samples_RX = part_MX[chunk.at_C].repeat_interleave(noisy, dim=0)
                padded.append(nn.functional.pad(samples_RX, (0, 0, 0, R - len(samples_RX))))
            return torch.stack(padded)

        prefixes = []
        for request in requests:
            unused = T - request.kv_cache.length
            prefixes.append(nn.functional.pad(request.visible_MT, (unused, 0)))
        itself_BRR = torch.eye(R, dtype=torch.bool, device=device).expand(B, -1, -1)
        visible_BRK = torch.cat([for_each_sample(prefixes), itself_BRR], dim=-1)

        real_BR = torch.arange(R) < counts[:, None]
        positions = [request.position_M[:, None] for request in requests]
        return SuffixBatch(
            hidden_BSD=for_each_sample([request.fork_MD for request in requests]),
            position_BS=for_each_sample(positions)[..., 0],
            masks=LayerMasks(visible_BRK, self.noisy.model.dtype),
            layers=_joined_layers(requests, T),
            logits_at=real_BR.reshape(-1).nonzero()[:, 0].to(device),
            count=int(counts.sum()),
            lengths=[request.length for request in requests],
            final_CD=torch.cat([chunk.request.final_MD[chunk.at_C] for chunk in chunks]),
        )


def _keyed(chunks: Sequence[Chunk], batch: SuffixBatch, noisy: int) -> KeyedTokens:
    """The B x R tokens of a pass of noisy samples, as a policy knows them."""
    position_T = batch.position_BS.reshape(-1)
    device = position_T.device
    B, R = batch.position_BS.shape
    keys = [(chunk.request.noise_key, chunk.request.prompt_length) for chunk in chunks]
    document_B, prompt_B = torch.tensor(keys, device=device).unbind(1)
    real_T = torch.zeros_like(position_T, dtype=torch.bool)
    real_T[batch.logits_at] = True
    # the samples of a chunk are in its first columns, logit position by logit position
    sample_R = 1 + torch.arange(R, device=device) % noisy
    return KeyedTokens(
        real_T=real_T,
        sequence_T=torch.arange(B, device=device).repeat_interleave(R),
        position_T=position_T,
        new_T=position_T >= prompt_B.repeat_interleave(R),
        document_T=document_B.repeat_interleave(R),
        repeat_T=torch.zeros_like(position_T),
        sample_T=sample_R.repeat(B),
    )


def _joined_layers(requests: Sequence[CachedActivations], T: int) -> list[KVLayer]:
    """The cached keys and values of each decoder layer, those of all requests ending at slot T."""
    caches = [request.kv_cache.layers for request in requests]
    layers: list[KVLayer] = []
    for layers_of_requests in zip(*caches, strict=True):
        layers.append(JoinedKVLayer(list(layers_of_requests), T))
    return layers


def _key(request: ScoringRequest) -> Hashable:
    """All that determines the activations of a request: its key in the store."""
    continuations = tuple(tuple(continuation) for continuation in request.continuations)
    return request.noise_key, tuple(request.context), continuations


def _visible_to_samples(tree: TokenTree, shared: int) -> Tensor:
    """bool [M, shared + nodes]: the slots that the token of each logit position attends to, without
    its own."""
    nodes = torch.tensor(tree.logit_nodes)
    visible = torch.from_numpy(tree.visible)[nodes]
    visible[torch.arange(len(nodes)), nodes] = False
    return nn.functional.pad(visible, (shared, 0), value=True)
