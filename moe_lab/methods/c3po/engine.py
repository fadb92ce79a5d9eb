"""The engine of `method=c3po`: it optimizes the pathways of questions, then scores or generates with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from moe_lab.engine.choices import Choices, Place
from moe_lab.engine.engine import Engine
from moe_lab.engine.flops import FlopCount
from moe_lab.engine.generation.generate import generate
from moe_lab.engine.generation.prefill import GenerationState
from moe_lab.engine.generation.sampling import Decoding
from moe_lab.engine.scoring.scoring import Budget, ScoringRequest
from moe_lab.engine.scoring.token_scores import Scores
from moe_lab.engine.suffix.recorder import PromptSuffix
from moe_lab.engine.suffix.replay import SuffixReplay
from moe_lab.engine.suffix.rerouted_generation import ReroutedForward
from moe_lab.engine.suffix.token_span import check_length, named_tokens
from moe_lab.methods.c3po.choices import rerouted_choices
from moe_lab.methods.c3po.noisy_pathways import samples_around
from moe_lab.methods.c3po.optimizer import PathwayOptimizer
from moe_lab.methods.c3po.pathway import Pathways
from moe_lab.methods.c3po.traces import Trace

if TYPE_CHECKING:
    from moe_lab.methods.c3po.config import C3POConfig
    from moe_lab.methods.references.reference_set import ReferenceSet
    from moe_lab.models.load import LoadedModel

AT_ONCE = 32
"""Questions whose pathways are optimized together."""
RightAnswer = Callable[[str, str | None], tuple[int, ...]]
"""(prompt, one of its choices, or None for a generated answer) -> token ids of the right answer."""


class PathwayEngine(Engine):
    """Scores and generates with a pathway for each question.

    Args:
        seed: of the noise around pathways.
        trace: where the pathways of scored questions are written.
        right_answer: for the oracle only.
    """

    def __init__(
        self,
        model: LoadedModel,
        settings: C3POConfig,
        layers: list[int],
        references: ReferenceSet | None,
        budget: Budget,
        seed: int = 0,
        trace: Trace | None = None,
        right_answer: RightAnswer | None = None,
    ):
        self.settings, self.budget, self.seed, self.trace = settings, budget, seed, trace
        self._right_answer = right_answer
        self.replay = SuffixReplay(model.model, layers[0], named_tokens(settings.tokens))
        self.optimize = PathwayOptimizer(model, settings, layers, references, self.replay, budget)
        self.counted = {"flops": 0, "flops_plain": 0, "flops_questions": 0}
        """Floating-point operations of the first batch of scored questions: in total, and without the optimization."""
        self._generated_in = 0

    @property
    def tokens_in(self) -> int:
        """Tokens put through the model so far. Tokens of the optimization pass the later layers only."""
        return self.replay.tokens_in + self._generated_in

    def score(self, requests: list[ScoringRequest], on_scores: Callable[[int, Scores], None]) -> None:
        for start in range(0, len(requests), AT_ONCE):
            scored = self._scored if self.counted["flops_questions"] else self._scored_and_counted
            for i, scores in enumerate(scored(requests[start : start + AT_ONCE]), start):
                on_scores(i, scores)

    def generate(
        self,
        states: list[GenerationState],
        decoding: Decoding,
        on_done: Callable[[GenerationState], None],
    ) -> None:
        for start in range(0, len(states), AT_ONCE):
            batch = states[start : start + AT_ONCE]
            probs = self._prompt_pathways(batch).probs()
            forward = ReroutedForward(
                self.replay.model, batch, probs, self.replay.span, self.settings.persistence
            )
            with forward:
                generate(forward, batch, self.budget, decoding, on_done)
            self._generated_in += forward.tokens_in

    def choices(self, places: Sequence[Place]) -> Iterator[Choices]:
        """The weights of each prompt's last re-routed token with the optimized pathway, by MoE layer."""
        for start in range(0, len(places), AT_ONCE):
            batch = places[start : start + AT_ONCE]
            prompts, texts = [place.prompt for place in batch], [place.text for place in batch]
            suffixes = self._read(prompts, texts)
            own = self._with_right_answers(prompts, [(place.text, place.choice) for place in batch])
            yield from rerouted_choices(self.replay, suffixes, self.optimize(texts, suffixes, own).pathways)

    def _prompt_pathways(self, states: list[GenerationState]) -> Pathways:
        prompts, texts = [state.prompt for state in states], [state.text for state in states]
        suffixes = self._read(prompts, texts)
        own = self._with_right_answers(prompts, [(text, None) for text in texts])
        return self.optimize(texts, suffixes, own).pathways

    def _scored_and_counted(self, requests: list[ScoringRequest]) -> list[Scores]:
        with FlopCount() as flops:
            scores = self._scored(requests, flops)
        self.counted.update(flops=flops.total, flops_questions=len(requests))
        return scores

    def _scored(self, requests: list[ScoringRequest], flops: FlopCount | None = None) -> list[Scores]:
        contexts, texts = [request.context for request in requests], [request.text for request in requests]
        suffixes = self._read(contexts, texts, [request.continuations for request in requests])
        if flops:
            self.counted["flops_plain"] = flops.total
        states: list[list[Scores]] = []

        def watch(pathways: Pathways) -> None:
            if self.trace:
                states.append(self.replay.score(suffixes, pathways.remix("topk")))

        own = self._with_right_answers(contexts, [(request.text, request.texts[0]) for request in requests])
        optimized = self.optimize(texts, suffixes, own, watch)
        scores = self._scores(requests, suffixes, optimized.pathways)
        if self.trace:
            continuations = [(request.text, list(request.texts)) for request in requests]
            self.trace.write(continuations, optimized, states, self.optimize.references)
        return scores

    def _scores(
        self, requests: list[ScoringRequest], suffixes: list[PromptSuffix], pathways: Pathways
    ) -> list[Scores]:
        settings = self.settings
        samples = samples_around(
            pathways,
            suffixes,
            [request.noise_key for request in requests],
            n=settings.n,
            temperature=settings.temperature,
            seed=self.seed,
        )
        return self.replay.score(suffixes, *samples)

    def _read(
        self,
        prompts: Sequence[Sequence[int]],
        texts: Sequence[str],
        continuations: Sequence[Sequence[Sequence[int]]] | None = None,
    ) -> list[PromptSuffix]:
        for prompt, text in zip(prompts, texts, strict=True):
            check_length(self.replay.span, prompt, text)
        return self.replay.read(prompts, self.budget, continuations)

    def _with_right_answers(
        self, prompts: Sequence[Sequence[int]], texts: Sequence[tuple[str, str | None]]
    ) -> list[PromptSuffix] | None:
        """The prompts, each read with its right answer alone. None unless this is the oracle.

        Args:
            texts: of each prompt: its text and one of its choices.
        """
        if self._right_answer is None:
            return None
        return self.replay.read(prompts, self.budget, [[self._right_answer(*pair)] for pair in texts])
