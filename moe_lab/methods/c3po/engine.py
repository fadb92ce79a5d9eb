"""Answers the questions of `method=c3po` in batches: reads them, has their pathways optimized, scores or
generates their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from moe_lab.engine.engine import Engine
from moe_lab.engine.flops import FlopCount
from moe_lab.engine.generation.generate import Choose, Finished, generate
from moe_lab.engine.generation.prefill import Answer
from moe_lab.engine.scoring.scoring import Budget, Question, Scores
from moe_lab.engine.suffix.recorder import PromptSuffix
from moe_lab.engine.suffix.replay import SuffixReplay
from moe_lab.engine.suffix.rerouted_generation import ReroutedForward
from moe_lab.engine.suffix.token_span import check_length, named_tokens
from moe_lab.methods.c3po.noisy_pathways import rows_around
from moe_lab.methods.c3po.optimizer import PathwayOptimizer
from moe_lab.methods.c3po.pathway import Pathways
from moe_lab.methods.c3po.traces import Trace

if TYPE_CHECKING:
    from moe_lab.methods.c3po.config import C3POConfig
    from moe_lab.methods.references.reference_set import ReferenceSet
    from moe_lab.models.load import LoadedModel

AT_ONCE = 32
"""Questions whose pathways are optimized together."""
Tokens = tuple[int, ...]


RightAnswer = Callable[[str, str | None], Tokens]
"""(prompt, one of its choices; None: it is generated) -> token ids of the right answer, for the oracle."""


class PathwayEngine(Engine):
    """Answers questions with pathways of their own.

    Args:
        seed: of the noise around pathways.
        trace: what is written of each question that is scored.
        right_answer: the oracle's alone.
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
        self.tails = SuffixReplay(model.model, layers[0], named_tokens(settings.tokens))
        self.optimize = PathwayOptimizer(model, settings, layers, references, self.tails, budget)
        self.counted = {"flops": 0, "flops_plain": 0, "flops_questions": 0}
        """Floating-point operations of the first batch of scored questions: of all that was done, and of reading and
        answering alone."""
        self._generated_in = 0

    @property
    def tokens_in(self) -> int:
        """Tokens put through the model so far; those of optimization go through the later layers only."""
        return self.tails.tokens_in + self._generated_in

    def score(self, questions: list[Question], on_scores: Callable[[int, Scores], None]) -> None:
        for start in range(0, len(questions), AT_ONCE):
            scored = self._scored if self.counted["flops_questions"] else self._scored_and_counted
            for i, scores in enumerate(scored(questions[start : start + AT_ONCE]), start):
                on_scores(i, scores)

    def generate(
        self,
        answers: list[Answer],
        choose: Choose,
        finished: Finished,
        max_new_tokens: int,
        on_done: Callable[[Answer], None],
    ) -> None:
        for start in range(0, len(answers), AT_ONCE):
            batch = answers[start : start + AT_ONCE]
            pathways = self._of_prompts(batch)
            forward = ReroutedForward(
                self.tails.model, batch, pathways.probs(), self.tails.span, self.settings.persistence
            )
            with forward:
                generate(forward, batch, self.budget, choose, finished, max_new_tokens, on_done)
            self._generated_in += forward.tokens_in

    def _of_prompts(self, answers: list[Answer]) -> Pathways:
        prompts, texts = [answer.prompt for answer in answers], [answer.text for answer in answers]
        tails = self._read(prompts, texts)
        own = self._with_right_answers(prompts, [(text, None) for text in texts])
        return self.optimize(texts, tails, own).pathways

    def _scored_and_counted(self, questions: list[Question]) -> list[Scores]:
        with FlopCount() as flops:
            scores = self._scored(questions, flops)
        self.counted.update(flops=flops.total, flops_questions=len(questions))
        return scores

    def _scored(self, questions: list[Question], flops: FlopCount | None = None) -> list[Scores]:
        contexts, texts = (
            [question.context for question in questions],
            [question.text for question in questions],
        )
        tails = self._read(contexts, texts, [question.continuations for question in questions])
        if flops:
            self.counted["flops_plain"] = flops.total
        states: list[list[Scores]] = []

        def watch(pathways: Pathways) -> None:
            if self.trace:
                states.append(self.tails.score(tails, pathways.remix("topk")))

        own = self._with_right_answers(contexts, [(q.text, q.texts[0]) for q in questions])
        found = self.optimize(texts, tails, own, watch)
        scores = self._scores(questions, tails, found.pathways)
        if self.trace:
            asked = [(question.text, list(question.texts)) for question in questions]
            self.trace.write(asked, found, states, self.optimize.references)
        return scores

    def _scores(
        self, questions: list[Question], tails: list[PromptSuffix], pathways: Pathways
    ) -> list[Scores]:
        settings = self.settings
        documents = [question.document for question in questions]
        rows = rows_around(
            pathways, tails, documents, n=settings.n, temperature=settings.temperature, seed=self.seed
        )
        return self.tails.score(tails, *rows)

    def _read(
        self,
        prompts: Sequence[Sequence[int]],
        texts: Sequence[str],
        continuations: Sequence[Sequence[Sequence[int]]] | None = None,
    ) -> list[PromptSuffix]:
        for prompt, text in zip(prompts, texts, strict=True):
            check_length(self.tails.span, prompt, text)
        return self.tails.read(prompts, self.budget, continuations)

    def _with_right_answers(
        self, prompts: Sequence[Sequence[int]], texts: Sequence[tuple[str, str | None]]
    ) -> list[PromptSuffix] | None:
        """The prompts read with their right answers alone; None unless this is the oracle.

        Args:
            texts: of each prompt: its text, and one of its choices.
        """
        if self._right_answer is None:
            return None
        return self.tails.read(prompts, self.budget, [[self._right_answer(*asked)] for asked in texts])
