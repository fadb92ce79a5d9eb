"""C3PO on a model of the meta device, for the planned memory (`moe_lab/engine/dry_run.py`).

A batch of questions is answered as in a run, with k neighbours for each question that no other one has.

Q = questions, R = references, k = neighbours of each question.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from moe_lab.engine import generate as generating
from moe_lab.engine.dry_run import generation
from moe_lab.engine.pass_size import pass_budget
from moe_lab.engine.planned import Asked, Ids
from moe_lab.engine.sampling import GenerationState
from moe_lab.engine.scoring import ScoringRequest
from moe_lab.engine.suffix import PromptSuffix
from moe_lab.methods.c3po.config import C3POConfig
from moe_lab.methods.c3po.engine import AT_ONCE, PathwayEngine
from moe_lab.methods.references.embeddings import Neighbours
from moe_lab.methods.references.reference_set import ReferenceSet
from moe_lab.methods.references.store import ANSWER_TOKENS
from moe_lab.models.load import LoadedModel

T = TypeVar("T")
OTHER_IDS = 2**32
"""Added to the ids of a copy of a prompt, so that it shares no beginning with the prompt."""


class _Engine(PathwayEngine):
    """Finds the next k references for each question."""

    def _embedded(
        self, references: ReferenceSet, texts: list[str], suffixes: Sequence[PromptSuffix]
    ) -> Tensor:
        return torch.zeros(len(texts), 1)

    def _nearest(self, references: ReferenceSet, embedding: Tensor) -> Neighbours:
        Q, k = len(embedding), self.settings.k
        index_QK = torch.arange(Q * k).view(Q, k)
        return Neighbours(index_QK, torch.ones(Q, k), torch.zeros(Q, dtype=torch.long))


def rehearse(
    model: LoadedModel,
    settings: C3POConfig,
    layers: list[int],
    asked: Asked,
    sequences: int | None,
    questions: int = AT_ONCE,
) -> None:
    """Answer a batch of `questions` that are as long as those of `asked`, with one step of the optimizer."""
    settings = replace(settings, optimizer="ngd", steps=1, trace=False)
    engine = _Engine(model, settings, layers, None, pass_budget(model.model, sequences))
    engine.counted["flops_questions"] = 1  # nothing is counted
    scored = [(context, list(continuations)) for context, continuations in asked.scored.items()]
    if scored:
        chosen = _copies(scored, questions)
        right = [(context, max(continuations, key=len)[:ANSWER_TOKENS]) for context, continuations in scored]
        engine.references = _references(engine, right, questions)
        requests = [ScoringRequest(context, answers, 0, texts=[""]) for context, answers in chosen]
        engine.score(requests, lambda index, scores: None)
    for options, prompts in asked.generated.items():
        decoding, _ = generation(model.model, options, prompts.values())
        answered = [(prompt, (0,) * ANSWER_TOKENS) for prompt, _ in prompts.values()]
        engine.references = _references(engine, answered, questions)
        asking = _copies(answered, questions)
        states = [GenerationState(i, prompt, noise_key=0) for i, (prompt, _) in enumerate(asking)]
        with engine.rerouted(states) as forward:
            generating.rehearse(forward, states, engine.budget, decoding)


def _references(engine: PathwayEngine, right: Sequence[tuple[Ids, Ids]], questions: int) -> ReferenceSet:
    """References like these pairs of a prompt and its right answer."""
    pairs = _copies(right, len(right) + questions * engine.settings.k)[len(right) :]
    facts, count = engine.loaded.facts, len(pairs)
    return ReferenceSet(
        folder=None,
        texts=[""] * count,
        answers=[""] * count,
        prompts=[list(prompt) for prompt, _ in pairs],
        golds=[list(answer) for _, answer in pairs],
        pathway_RWME=torch.zeros(count, engine.replay.span.size, facts.moe_layers, facts.experts),
        embedding_RX=torch.zeros(count, 1),
        counts={},
    )


def _copies(requests: Sequence[tuple[Ids, T]], count: int) -> list[tuple[Ids, T]]:
    """`count` requests, the longest first, and again where they are fewer. Copies share no beginning with others."""
    ordered = sorted(requests, key=lambda request: -len(request[0]))
    copies = [ordered[number % len(ordered)] for number in range(count)]
    return [
        (tuple(token + OTHER_IDS * number for token in ids) if number >= len(ordered) else ids, rest)
        for number, (ids, rest) in enumerate(copies)
    ]
