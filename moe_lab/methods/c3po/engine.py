"""The engine and the language model of `method=c3po`: optimize the pathways of questions, then score or generate.

N = questions, W = re-routed tokens of each, S = tokens of each suffix, T = N x S.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from moe_lab.config.schema import Config
from moe_lab.engine.engine import Engine
from moe_lab.engine.flops import FlopCount
from moe_lab.engine.generate import generate
from moe_lab.engine.lm import EngineLM, OnAnswer, Request
from moe_lab.engine.pass_size import bound_gradients
from moe_lab.engine.sampling import Decoding, GenerationState
from moe_lab.engine.scoring import Budget, Scores, ScoringRequest
from moe_lab.engine.suffix import PromptSuffix, ReroutedForward, SuffixReplay
from moe_lab.engine.token_span import check_length, named_tokens
from moe_lab.methods.base import engine_options
from moe_lab.methods.c3po.config import C3POConfig
from moe_lab.methods.c3po.optimizer import Optimized, PathwayOptimizer
from moe_lab.methods.c3po.pathway import Pathways
from moe_lab.methods.references.embeddings import text_key
from moe_lab.methods.references.reference_set import ReferenceSet
from moe_lab.methods.references.store import ANSWER_TOKENS
from moe_lab.models.load import LoadedModel
from moe_lab.results.atomic import writing

TRACES = "traces.jsonl"
"""File in the run's folder with a line for each scored question (`write_traces`)."""
DIGITS = 6
"""Significant digits of numbers."""
AT_ONCE = 32
"""Questions whose pathways are optimized together."""
RightAnswer = Callable[[str, str | None], tuple[int, ...]]
"""(prompt, one of its choices, or None for a generated answer) -> token ids of the right answer."""
GoldOf = Callable[[str, str | None], str]
"""(prompt, one of its choices, or None for a generated answer) -> the right answer, for the oracle."""


def write_traces(
    file: Path,
    texts: Sequence[tuple[str, list[str]]],
    found: Optimized,
    states: Sequence[Sequence[Scores]],
    references: ReferenceSet | None,
) -> None:
    """Append lines for N questions to `traces.jsonl`, the data of the paper's Figures 5 to 8.

    A line has: prompt (SHA-256 of its text), layers (numbers of the re-mixed MoE layers), before and after (their
    probabilities of all experts, [tokens][layers][experts]), core ([tokens][layers][core experts]: expert numbers),
    neighbours (reference, its number in the set; text; distance; weight, its share of the kernel; pathway), losses (on
    the neighbours, [states]), continuations (texts) and scores (log-likelihoods of these, [states][continuations]).
    States are the original pathway and the pathway after every step.

    Args:
        texts: (prompt, continuations) of each question.
        states: [states][N] scores.
    """
    changed, near, weight_NK = found.pathways, found.near, found.weight_NK
    lines = []
    for n, (prompt, continuations) in enumerate(texts):
        neighbours = []
        if references is not None and near is not None and weight_NK is not None:
            share_K = weight_NK[n] / weight_NK[n].sum()
            neighbours = [
                {
                    "reference": r,
                    "text": references.texts[r],
                    "distance": numbers(near.distance_QK[n, j]),
                    "weight": numbers(share_K[j]),
                    "pathway": numbers(references.pathway_RWME[r][:, changed.layers]),
                }
                for j, r in enumerate(near.index_QK[n].tolist())
                if r >= 0
            ]
        line = {
            "prompt": text_key(prompt),
            "layers": changed.layers,
            "before": numbers(changed.clean_NWLE[n]),
            "after": numbers(changed.probs_NWLE()[n]),
            "core": changed.core[n].tolist(),
            "neighbours": neighbours,
            "losses": numbers(found.losses[:, n]),
            "continuations": continuations,
            "scores": [[score for score, _ in scores[n]] for scores in states],
        }
        lines.append(json.dumps(line) + "\n")
    with writing(file), file.open("a", encoding="utf-8") as stream:
        stream.writelines(lines)


def numbers(tensor: Tensor) -> Any:
    """A number, or nested lists of them; NaN as None."""

    def rounded(value: Any) -> Any:
        if isinstance(value, list):
            return [rounded(each) for each in value]
        return None if value != value else float(f"{value:.{DIGITS}g}")

    return rounded(tensor.detach().cpu().double().tolist())


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
        self.settings, self.budget, self.trace = settings, budget, trace
        self._right_answer = right_answer
        bound_gradients(model.model, budget)
        self.replay = SuffixReplay(model.model, layers[0], named_tokens(settings.tokens))
        self.optimize = PathwayOptimizer(model, settings, layers, references, self.replay, budget)
        self.counted = {"flops": 0, "flops_plain": 0, "flops_questions": 0}
        """Floating-point operations of the first batch of scored questions, in total and without the optimization."""
        self._generated_in = 0

    @property
    def tokens_in(self) -> int:
        """Tokens put through the model so far. Tokens of the optimization pass only the later layers."""
        return self.replay.tokens_in + self._generated_in

    def score(self, requests: list[ScoringRequest], on_scores: Callable[[int, Scores], None]) -> None:
        for start in range(0, len(requests), AT_ONCE):
            batch = requests[start : start + AT_ONCE]
            if self.counted["flops_questions"]:
                found = self._scored(batch)
            else:
                with FlopCount() as flops:
                    found = self._scored(batch, flops)
                self.counted.update(flops=flops.total, flops_questions=len(batch))
            for i, scores in enumerate(found, start):
                on_scores(i, scores)

    def generate(
        self, states: list[GenerationState], decoding: Decoding, on_done: Callable[[GenerationState], None]
    ) -> None:
        for start in range(0, len(states), AT_ONCE):
            batch = states[start : start + AT_ONCE]
            with self.rerouted(batch) as forward:
                generate(forward, batch, self.budget, decoding, on_done)
            self._generated_in += forward.tokens_in

    def rerouted(self, states: list[GenerationState]) -> ReroutedForward:
        """The model with the optimized pathway of each prompt."""
        prompts, texts = [state.prompt for state in states], [state.text for state in states]
        suffixes = self._read(prompts, texts)
        own = self._with_right_answers(prompts, [(text, None) for text in texts])
        probs = self.optimize(texts, suffixes, own).pathways.probs()
        return ReroutedForward(self.replay.model, states, probs, self.replay.span, self.settings.persistence)

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
        scores = self.replay.score(suffixes, optimized.pathways.remix("topk"))
        if self.trace:
            continuations = [(request.text, list(request.texts)) for request in requests]
            write_traces(self.trace, continuations, optimized, states, self.optimize.references)
        return scores

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
        """The prompts, each read with only its right answer. None unless this is the oracle.

        Args:
            texts: the text and one of the choices of each prompt.
        """
        if self._right_answer is None:
            return None
        return self.replay.read(prompts, self.budget, [[self._right_answer(*pair)] for pair in texts])


class C3POLM(EngineLM):
    """Answers questions by scoring choices or by generating text.

    Args:
        layers: numbers of the MoE layers to optimize.
        references: None for the oracle.
        gold_of: for the oracle only.
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
        gold_of: GoldOf | None = None,
        trace: Path | None = None,
    ):
        def make_engine(lm: EngineLM) -> PathwayEngine:
            right_answer = self._right_answer if gold_of else None
            return PathwayEngine(model, settings, layers, references, lm.budget, trace, right_answer)

        self._gold_of = gold_of
        super().__init__(model.model, model.tokenizer, **engine_options(config), make_engine=make_engine)

    @property
    def cost(self) -> dict[str, int]:
        """`EngineLM.cost` with the counts of `PathwayEngine` and `PathwayOptimizer`."""
        return super().cost | self.engine.counted | self.engine.optimize.counted

    def answer(self, kind: str, requests: Sequence[Request], on_answer: OnAnswer) -> None:
        if kind == "generate_until":
            return super().answer(kind, requests, on_answer)
        for part in self._parts(requests):
            chosen = [requests[i] for i in part]

            def report(j: int, answer: Any, part: list[int] = part) -> None:
                on_answer(part[j], answer)

            super().answer(kind, chosen, report)

    def _parts(self, requests: Sequence[Request]) -> list[list[int]]:
        """Indices of the requests that are answered together.

        The engine has one pathway for each prompt. For the oracle, documents with the same prompt and different right
        answers need different pathways, so they are in different parts.
        """
        if self._gold_of is None:
            return [list(range(len(requests)))]
        golds: dict[str, list[str]] = {}
        parts: dict[int, list[int]] = {}
        for i, request in enumerate(requests):
            known = golds.setdefault(request.args[0], [])
            gold = self._gold_of(*request.args)
            if gold not in known:
                known.append(gold)
            parts.setdefault(known.index(gold), []).append(i)
        return list(parts.values())

    def _right_answer(self, prompt: str, choice: str | None) -> tuple[int, ...]:
        """Token ids of the right answer; for a generated answer the first `ANSWER_TOKENS`."""
        assert self._gold_of is not None
        ids = self.encode_pair(prompt, self._gold_of(prompt, choice))[1]
        return ids[:ANSWER_TOKENS] if choice is None else ids
