"""The engine and the language model of `method=c3po`: optimize the pathways of questions,
then score or generate.

N = questions of a batch, W = re-routed tokens of each, K = neighbours of each, R = references.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from moe_lab.config.schema import Config
from moe_lab.engine.engine import Engine
from moe_lab.engine.flops import FlopCount
from moe_lab.engine.forward.kv_cache import Store, store_on
from moe_lab.engine.generate import generate
from moe_lab.engine.lm import EngineLM
from moe_lab.engine.pass_size import bound_gradients
from moe_lab.engine.sampling import Decoding, GenerationState
from moe_lab.engine.scoring import Budget, Scores, ScoringRequest
from moe_lab.engine.suffix import PromptSuffix, ReroutedForward, SuffixReplay
from moe_lab.engine.token_span import check_length, named_tokens
from moe_lab.methods.base import engine_options
from moe_lab.methods.c3po.config import C3POConfig
from moe_lab.methods.c3po.descent import NeighbourLoss, ngd
from moe_lab.methods.c3po.kernel_methods import (
    kernel,
    kernel_regression,
    mode_finding,
    without_neighbours,
)
from moe_lab.methods.c3po.pathway import Pathways, Watch, unwatched
from moe_lab.methods.c3po.traces import Optimized, write_traces
from moe_lab.methods.references.embeddings import normalized, text_ids
from moe_lab.methods.references.neighbours import Neighbours, neighbours
from moe_lab.methods.references.reference_set import ReferenceSet
from moe_lab.methods.references.store import ANSWER_TOKENS
from moe_lab.models.facts import LoadedModel

AT_ONCE = 32
"""Questions whose pathways are optimized together."""
RightAnswer = Callable[[str], tuple[int, ...]]
"""Prompt -> token ids of the right answer, for the oracle."""


class PathwayEngine(Engine):
    """Scores and generates with a pathway for each question.

    Args:
        trace: the file to which the pathways of scored questions are written; None: they are not.
        right_answer: for the oracle only.
    """

    def __init__(
        self,
        model: LoadedModel,
        settings: C3POConfig,
        layers: list[int],
        references: ReferenceSet | None,
        budget: Budget,
        trace: Path | None = None,
        right_answer: RightAnswer | None = None,
    ):
        self.loaded = model
        self.settings = settings
        self.layers = layers
        self.references = references
        self.budget = budget
        self.trace = trace
        self._right_answer = right_answer
        bound_gradients(model.model, budget)
        self.replay = SuffixReplay(model.model, layers[0], named_tokens(settings.tokens))
        counts = ("flops", "flops_plain", "flops_questions", "reference_dropped", "reference_none")
        self.counted = dict.fromkeys(counts, 0)
        """Floating-point operations of the first batch of scored questions, in total and without
        the optimization; references that were too similar; questions without a neighbour."""
        self._kept: Store = store_on(model.device)
        """Suffixes of references by the token ids of prompt and answer."""
        self._generated_in = 0

    @property
    def tokens_in(self) -> int:
        """Tokens put through the model so far.

        Tokens of the optimization pass only the later layers.
        """
        return self.replay.tokens_in + self._generated_in

    def score(
        self, requests: list[ScoringRequest], on_scores: Callable[[int, Scores], None]
    ) -> None:
        """Score all requests, a batch of `AT_ONCE` after the other. The operations of the first
        batch are counted."""
        for start in range(0, len(requests), AT_ONCE):
            batch = requests[start : start + AT_ONCE]
            if self.counted["flops_questions"]:
                scores_of_batch = self._scored(batch)
            else:
                with FlopCount() as flops:
                    scores_of_batch = self._scored(batch, flops)
                self.counted["flops"] = flops.total
                self.counted["flops_questions"] = len(batch)
            for index, scores in enumerate(scores_of_batch, start):
                on_scores(index, scores)

    def generate(
        self,
        states: list[GenerationState],
        decoding: Decoding,
        on_done: Callable[[GenerationState], None],
    ) -> None:
        """Continue all prompts, each with its own pathway, a batch of `AT_ONCE` after the other."""
        for start in range(0, len(states), AT_ONCE):
            batch = states[start : start + AT_ONCE]
            prompts = [state.prompt for state in batch]
            texts = [state.text for state in batch]
            suffixes = self._read_prompts(prompts, texts)
            with_answers = self._with_right_answers(prompts, texts, ANSWER_TOKENS)
            probs = self.optimize(texts, suffixes, with_answers).pathways.probs()
            rerouted = ReroutedForward(
                self.replay.model, batch, probs, self.replay.span, self.settings.persistence
            )
            with rerouted as forward:
                generate(forward, batch, self.budget, decoding, on_done)
            self._generated_in += forward.tokens_in

    def _scored(
        self, requests: list[ScoringRequest], flops: FlopCount | None = None
    ) -> list[Scores]:
        """The scores of a batch of requests, each with its own pathway.

        Args:
            flops: counts this batch; `flops_plain` is what it has before the optimization.
        """
        contexts = [request.context for request in requests]
        texts = [request.text for request in requests]
        suffixes = self._read_prompts(
            contexts, texts, [request.continuations for request in requests]
        )
        if flops:
            self.counted["flops_plain"] = flops.total
        states: list[list[Scores]] = []

        def watch(pathways: Pathways) -> None:
            """Keep the scores of every state for the trace."""
            if self.trace:
                states.append(self.replay.score(suffixes, pathways.remix("topk")))

        with_answers = self._with_right_answers(contexts, texts)
        optimized = self.optimize(texts, suffixes, with_answers, watch)
        scores = self.replay.score(suffixes, optimized.pathways.remix("topk"))
        if self.trace:
            continuations = [(request.text, list(request.texts)) for request in requests]
            write_traces(self.trace, continuations, optimized, states, self.references)
        return scores

    def _read_prompts(
        self,
        prompts: Sequence[Sequence[int]],
        texts: Sequence[str],
        continuations: Sequence[Sequence[Sequence[int]]] | None = None,
    ) -> list[PromptSuffix]:
        """The suffixes of prompts (`SuffixReplay.read`).

        Args:
            prompts: their token ids.
            texts: the same prompts as texts, for the error.
            continuations: for each prompt, the token ids of the answers to score after it.

        Raises ConfigError for a prompt with fewer tokens than `method.tokens` names.
        """
        for prompt, text in zip(prompts, texts, strict=True):
            check_length(self.replay.span, prompt, text)
        return self.replay.read(prompts, self.budget, continuations)

    def _with_right_answers(
        self, prompts: Sequence[Sequence[int]], texts: Sequence[str], most: int | None = None
    ) -> list[PromptSuffix] | None:
        """The prompts, each read with only its right answer, of which `most` tokens.

        None unless this is the oracle.
        """
        if self._right_answer is None:
            return None
        answers = [[self._right_answer(text)[:most]] for text in texts]
        return self.replay.read(prompts, self.budget, answers)

    def optimize(
        self,
        texts: Sequence[str],
        suffixes: Sequence[PromptSuffix],
        with_answers: Sequence[PromptSuffix] | None = None,
        watch: Watch = unwatched,
    ) -> Optimized:
        """Optimize the pathways of N prompts.

        Args:
            texts, suffixes: of the prompts.
            with_answers: for the oracle, the prompts read with only their right answers.
            watch: gets the pathways of every state.

        Raises RoutingError if the loss of a question is NaN.
        """
        pathway_NWME = torch.stack([suffix.pathway_WME for suffix in suffixes])
        core_experts = self.settings.core_experts
        top_k = self.loaded.facts.top_k
        pathways = Pathways(pathway_NWME, self.layers, core_experts, top_k=top_k)
        if with_answers is not None:
            return self._optimize_on_answers(pathways, with_answers, watch)
        references = self.references
        assert references is not None, "only the oracle has none"
        embedding_NX = self._embedded(references, list(texts), suffixes)
        return self._optimize_on_references(pathways, references, embedding_NX, watch)

    def _optimize_on_answers(
        self, pathways: Pathways, with_answers: Sequence[PromptSuffix], watch: Watch
    ) -> Optimized:
        """The oracle: each question is its own only neighbour."""
        only_neighbours = [[suffix] for suffix in with_answers]
        weight_N1 = torch.ones(len(with_answers), 1)
        loss = self._loss(only_neighbours, weight_N1)
        changed, losses_SN = ngd(pathways, loss, self.settings, watch)
        return Optimized(changed, losses_SN)

    def _optimize_on_references(
        self, pathways: Pathways, references: ReferenceSet, embedding_NX: Tensor, watch: Watch
    ) -> Optimized:
        """Optimize on the nearest references; `embedding_NX` is that of the questions."""
        settings = self.settings
        near = self._nearest(embedding_NX, references)
        weight_NK = kernel(settings.kernel, near.distance_QK, settings.bandwidth)
        loss = self._loss(self._neighbour_suffixes(near, references), weight_NK)
        has_none_N = ~loss.has_neighbours_N
        if settings.optimizer == "ngd":
            changed, losses_SN = ngd(pathways, loss, settings, watch)
        elif settings.optimizer == "kernel_regression":
            changed, losses_SN = kernel_regression(pathways, loss, settings.alpha, watch)
        else:
            excluded_NR = embedding_NX @ references.embedding_RX.T > settings.most_similar
            reference_RWME = references.pathway_RWME
            has_none_N = without_neighbours(pathways, reference_RWME, settings, excluded_NR)
            changed, losses_SN = mode_finding(
                pathways, loss, reference_RWME, settings, excluded_NR, watch
            )
        self.counted["reference_dropped"] += int(near.dropped_Q.sum())
        self.counted["reference_none"] += int(has_none_N.sum())
        return Optimized(changed, losses_SN, near, weight_NK)

    def _loss(
        self, neighbours_of_questions: Sequence[Sequence[PromptSuffix | None]], weight_NK: Tensor
    ) -> NeighbourLoss:
        """The loss on these neighbours, with these kernel weights."""
        return NeighbourLoss(
            self.replay, neighbours_of_questions, weight_NK, self.settings.loss, self.budget
        )

    def _nearest(self, embedding_NX: Tensor, references: ReferenceSet) -> Neighbours:
        """The neighbours of the questions with these embeddings."""
        settings = self.settings
        epsilon = settings.epsilon
        if settings.optimizer == "mode_finding":
            epsilon = None  # there it is a radius of pathways, and the loss uses k
        return neighbours(
            embedding_NX,
            references.embedding_RX,
            k=settings.k,
            epsilon=epsilon,
            most_similar=settings.most_similar,
        )

    def _embedded(
        self, references: ReferenceSet, texts: list[str], suffixes: Sequence[PromptSuffix]
    ) -> Tensor:
        """float32 [N, X]: embeddings of the prompts.

        Hidden states are not computed again if the prompts have the same tokens as the texts, and
        the same rotary embeddings without their continuations.
        """
        if references.how is None and self._read_as_texts(suffixes, texts):
            mean_ND = torch.stack([suffix.mean_D for suffix in suffixes])
            return normalized(mean_ND, references.mean_X)
        return references.embed(texts, self.loaded)

    def _read_as_texts(self, suffixes: Sequence[PromptSuffix], texts: list[str]) -> bool:
        """Whether the hidden states of all prompts are those of the texts alone."""
        kind = self.replay.recorder.rotary.kind
        for suffix, ids in zip(suffixes, text_ids(texts, self.loaded), strict=True):
            if suffix.prompt != tuple(ids) or kind(suffix.tree.length) != kind(len(ids)):
                return False
        return True

    def _neighbour_suffixes(
        self, near: Neighbours, references: ReferenceSet
    ) -> list[list[PromptSuffix | None]]:
        """The suffixes of each question's neighbours, nearest first; None for a missing
        neighbour."""
        index_QK = near.index_QK
        numbers = index_QK[index_QK >= 0].unique().tolist()
        suffixes = self._reference_suffixes(references, numbers)
        suffixes_of_questions = []
        for references_of_question in index_QK.tolist():
            # -1, a missing neighbour, has no suffix
            suffixes_of_questions.append(
                [suffixes.get(number) for number in references_of_question]
            )
        return suffixes_of_questions

    def _reference_suffixes(
        self, references: ReferenceSet, numbers: list[int]
    ) -> dict[int, PromptSuffix]:
        """The suffixes of references by their number.

        New ones are read, and kept while there is memory for them.
        """
        keys = {}
        for number in numbers:
            keys[number] = (tuple(references.prompts[number]), tuple(references.golds[number]))
        missing = [key for key in keys.values() if self._kept.get(key) is None]
        prompts = [prompt for prompt, _ in missing]
        answers = [[answer] for _, answer in missing]
        suffixes_read = self.replay.read(prompts, self.budget, answers)
        new_suffixes = dict(zip(missing, suffixes_read, strict=True))

        suffixes: dict[int, PromptSuffix] = {}
        for number, key in keys.items():
            suffixes[number] = new_suffixes[key] if key in new_suffixes else self._kept.get(key)
        for key, suffix in new_suffixes.items():
            self._kept.add(key, suffix)
        return suffixes


class C3POLM(EngineLM):
    """Answers questions by scoring choices or by generating text.

    Args:
        layers: numbers of the MoE layers to optimize.
        references: None for the oracle.
        gold_of: right answers by prompt, for the oracle only.
        trace: the file to which the pathways of scored questions are written; None: they are not.
    """

    engine: PathwayEngine

    def __init__(
        self,
        model: LoadedModel,
        config: Config,
        settings: C3POConfig,
        layers: list[int],
        references: ReferenceSet | None,
        gold_of: Mapping[str, str] | None = None,
        trace: Path | None = None,
    ):
        def make_engine(lm: EngineLM) -> PathwayEngine:
            def right_answer(text: str) -> tuple[int, ...]:
                assert gold_of is not None
                return lm.encode_pair(text, gold_of[text])[1]

            return PathwayEngine(
                model,
                settings,
                layers,
                references,
                lm.budget,
                trace,
                None if gold_of is None else right_answer,
            )

        super().__init__(
            model.model, model.tokenizer, **engine_options(config), make_engine=make_engine
        )

    @property
    def cost(self) -> dict[str, int]:
        """`EngineLM.cost` with the counts of `PathwayEngine`."""
        return super().cost | self.engine.counted
