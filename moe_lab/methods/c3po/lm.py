"""The language model of `method=c3po`: every question is scored with its own optimized pathway."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from moe_lab.engine.choices import Choices, Place
from moe_lab.engine.lm import EngineLM, OnAnswer, Request
from moe_lab.methods.base import engine_options
from moe_lab.methods.c3po.engine import PathwayEngine
from moe_lab.methods.c3po.traces import Trace
from moe_lab.methods.references.store import ANSWER_TOKENS
from moe_lab.routing.nesting import OVERRIDE

if TYPE_CHECKING:
    from moe_lab.config.schema import Config
    from moe_lab.methods.c3po.config import C3POConfig
    from moe_lab.methods.references.reference_set import ReferenceSet
    from moe_lab.models.load import LoadedModel

GoldOf = Callable[[str, str | None], str]
"""(prompt, one of its choices, or None for a generated answer) -> the right answer, for the oracle."""


class C3POLM(EngineLM):
    """Answers questions by scoring choices or by generating text.

    Args:
        layers: numbers of the MoE layers to optimize.
        references: None for the oracle.
        gold_of: for the oracle only.
        trace: where the pathways of scored questions are written.
    """

    engine: PathwayEngine
    refused_inside = (*EngineLM.refused_inside, OVERRIDE)

    def __init__(
        self,
        model: LoadedModel,
        config: Config,
        settings: C3POConfig,
        layers: list[int],
        references: ReferenceSet | None,
        gold_of: GoldOf | None = None,
        trace: Trace | None = None,
    ):
        def make_engine(lm: EngineLM) -> PathwayEngine:
            right_answer = self._right_answer if gold_of else None
            return PathwayEngine(
                model, settings, layers, references, lm.budget, config.seed, trace, right_answer
            )

        self._gold_of = gold_of
        super().__init__(model.model, model.tokenizer, **engine_options(config), make_engine=make_engine)

    @property
    def cost(self) -> dict[str, int]:
        """As `EngineLM.cost`, with what `PathwayEngine` and `PathwayOptimizer` count."""
        return super().cost | self.engine.counted | self.engine.optimize.counted

    def choices(self, places: Sequence[Place]) -> Iterator[Choices]:
        """Of the last re-routed token of each prompt: what follows it takes the router's own experts."""
        return self.engine.choices(places)

    def answer(self, kind: str, requests: Sequence[Request], on_answer: OnAnswer) -> None:
        if kind == "generate_until":
            return super().answer(kind, requests, on_answer)
        for part in self._parts(requests):
            chosen = [requests[i] for i in part]

            def report(j: int, answer: Any, part: list[int] = part) -> None:
                on_answer(part[j], answer)

            super().answer(kind, chosen, report)

    def _parts(self, requests: Sequence[Request]) -> list[list[int]]:
        """Indices of the requests that are answered together. For the oracle, two documents with the same prompt and
        different right answers are in different parts."""
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
        """Token ids of the right answer; of a generated answer the first `ANSWER_TOKENS`."""
        assert self._gold_of is not None
        ids = self.encode_pair(prompt, self._gold_of(prompt, choice))[1]
        return ids[:ANSWER_TOKENS] if choice is None else ids
