"""The engine and the language model of `method=c3po`: optimize the pathways of questions, then score or generate.

N = questions of a batch, W = re-routed tokens of each, K = neighbours of each, R = references.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from moe_lab.methods.references.embeddings import (
    Neighbours,
    neighbours,
    normalized,
    text_ids,
    text_key,
)
from moe_lab.methods.references.reference_set import ReferenceSet
from moe_lab.methods.references.store import ANSWER_TOKENS
from moe_lab.models.facts import LoadedModel
from moe_lab.results.atomic import json_line, writing

TRACES = "traces.jsonl"
"""File in the run's folder with a line for each scored question (`write_traces`)."""
DIGITS = 6
"""Significant digits of numbers."""
AT_ONCE = 32
"""Questions whose pathways are optimized together."""
RightAnswer = Callable[[str], tuple[int, ...]]
"""Prompt -> token ids of the right answer, for the oracle."""


@dataclass(frozen=True)
class Optimized:
    """The optimized pathways of N questions."""

    pathways: Pathways
    losses: Tensor
    """float32 [states, N]: on the neighbours, of the original pathway and after every step."""
    near: Neighbours | None = None
    """None for the oracle."""
    weight_NK: Tensor | None = None
    """Kernel weights of any scale."""


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
        lines.append(json_line(line))
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
        self.loaded, self.settings, self.layers, self.references = (
            model,
            settings,
            layers,
            references,
        )
        self.budget, self.trace, self._right_answer = budget, trace, right_answer
        bound_gradients(model.model, budget)
        self.replay = SuffixReplay(model.model, layers[0], named_tokens(settings.tokens))
        counts = ("flops", "flops_plain", "flops_questions", "reference_dropped", "reference_none")
        self.counted = dict.fromkeys(counts, 0)
        """Floating-point operations of the first batch of scored questions, in total and without the optimization;
        references that were too similar; questions without a neighbour."""
        self._kept: Store = store_on(model.device)
        """Suffixes of references by the token ids of prompt and answer."""
        self._generated_in = 0

    @property
    def tokens_in(self) -> int:
        """Tokens put through the model so far. Tokens of the optimization pass only the later layers."""
        return self.replay.tokens_in + self._generated_in

    def score(
        self, requests: list[ScoringRequest], on_scores: Callable[[int, Scores], None]
    ) -> None:
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
        self,
        states: list[GenerationState],
        decoding: Decoding,
        on_done: Callable[[GenerationState], None],
    ) -> None:
        for start in range(0, len(states), AT_ONCE):
            batch = states[start : start + AT_ONCE]
            prompts, texts = [state.prompt for state in batch], [state.text for state in batch]
            suffixes = self._read(prompts, texts)
            own = self._with_right_answers(prompts, texts, ANSWER_TOKENS)
            probs, kind = (
                self.optimize(texts, suffixes, own).pathways.probs(),
                self.settings.persistence,
            )
            with ReroutedForward(
                self.replay.model, batch, probs, self.replay.span, kind
            ) as forward:
                generate(forward, batch, self.budget, decoding, on_done)
            self._generated_in += forward.tokens_in

    def _scored(
        self, requests: list[ScoringRequest], flops: FlopCount | None = None
    ) -> list[Scores]:
        contexts, texts = (
            [request.context for request in requests],
            [request.text for request in requests],
        )
        suffixes = self._read(contexts, texts, [request.continuations for request in requests])
        if flops:
            self.counted["flops_plain"] = flops.total
        states: list[list[Scores]] = []

        def watch(pathways: Pathways) -> None:
            if self.trace:
                states.append(self.replay.score(suffixes, pathways.remix("topk")))

        own = self._with_right_answers(contexts, texts)
        optimized = self.optimize(texts, suffixes, own, watch)
        scores = self.replay.score(suffixes, optimized.pathways.remix("topk"))
        if self.trace:
            continuations = [(request.text, list(request.texts)) for request in requests]
            write_traces(self.trace, continuations, optimized, states, self.references)
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
        self, prompts: Sequence[Sequence[int]], texts: Sequence[str], most: int | None = None
    ) -> list[PromptSuffix] | None:
        """The prompts, each read with only its right answer, of which `most` tokens. None unless this is the oracle."""
        if self._right_answer is None:
            return None
        return self.replay.read(
            prompts, self.budget, [[self._right_answer(text)[:most]] for text in texts]
        )

    def optimize(
        self,
        texts: Sequence[str],
        suffixes: Sequence[PromptSuffix],
        own: Sequence[PromptSuffix] | None = None,
        watch: Watch = unwatched,
    ) -> Optimized:
        """Optimize the pathways of N prompts.

        Args:
            texts, suffixes: of the prompts.
            own: for the oracle, the prompts read with only their right answers.
            watch: gets the pathways of every state.
        """
        settings = self.settings
        clean = torch.stack([suffix.pathway_WME for suffix in suffixes])
        pathways = Pathways(
            clean, self.layers, settings.core_experts, top_k=self.loaded.facts.top_k
        )
        if own is not None:
            loss = NeighbourLoss(
                self.replay,
                [[suffix] for suffix in own],
                torch.ones(len(own), 1),
                settings.loss,
                self.budget,
            )
            return Optimized(*ngd(pathways, loss, settings, watch))
        references = self.references
        assert references is not None, "only the oracle has none"
        embedding = self._embedded(references, list(texts), suffixes)
        near = neighbours(
            embedding,
            references.embedding_RX,
            k=settings.k,
            # mode finding's is a radius of pathways, so its loss uses k
            epsilon=None if settings.optimizer == "mode_finding" else settings.epsilon,
            most_similar=settings.most_similar,
        )
        weight_NK = kernel(settings.kernel, near.distance_QK, settings.bandwidth)
        index = near.index_QK.tolist()
        found = self._reference_suffixes(
            references, sorted({r for row in index for r in row if r >= 0})
        )
        of_questions = [[found.get(r) for r in row] for row in index]
        loss = NeighbourLoss(self.replay, of_questions, weight_NK, settings.loss, self.budget)
        none_N = ~loss.found_N
        if settings.optimizer == "ngd":
            changed = ngd(pathways, loss, settings, watch)
        elif settings.optimizer == "kernel_regression":
            changed = kernel_regression(pathways, loss, settings.alpha, watch)
        else:
            excluded_NR = embedding @ references.embedding_RX.T > settings.most_similar
            reference_RWME = references.pathway_RWME
            none_N = without_neighbours(pathways, reference_RWME, settings, excluded_NR)
            changed = mode_finding(pathways, loss, reference_RWME, settings, excluded_NR, watch)
        self.counted["reference_dropped"] += int(near.dropped_Q.sum())
        self.counted["reference_none"] += int(none_N.sum())
        return Optimized(*changed, near, weight_NK)

    def _embedded(
        self, references: ReferenceSet, texts: list[str], suffixes: Sequence[PromptSuffix]
    ) -> Tensor:
        """float32 [N, X]: embeddings of the prompts. Hidden states are not computed again if the prompts have the same
        tokens as the texts, and the same rotary embeddings without their continuations."""
        if references.how is None:
            ids = text_ids(texts, self.loaded)
            if all(
                self._reads(suffix, tokens) for suffix, tokens in zip(suffixes, ids, strict=True)
            ):
                return normalized(
                    torch.stack([suffix.mean_D for suffix in suffixes]), references.mean_X
                )
        return references.embed(texts, self.loaded)

    def _reads(self, suffix: PromptSuffix, ids: Sequence[int]) -> bool:
        """Whether the hidden states of a suffix's prompt are those of these tokens alone."""
        kind = self.replay.recorder.rotary.kind
        return suffix.prompt == tuple(ids) and kind(suffix.tree.length) == kind(len(ids))

    def _reference_suffixes(
        self, references: ReferenceSet, wanted: list[int]
    ) -> dict[int, PromptSuffix]:
        """The suffixes of references. New ones are read, and kept while there is memory for them."""
        keys = {r: (tuple(references.prompts[r]), tuple(references.golds[r])) for r in wanted}
        found = {
            r: suffix for r, key in keys.items() if (suffix := self._kept.get(key)) is not None
        }
        missing = [key for r, key in keys.items() if r not in found]
        prompts, answers = [prompt for prompt, _ in missing], [[answer] for _, answer in missing]
        read = dict(zip(missing, self.replay.read(prompts, self.budget, answers), strict=True))
        for key, suffix in read.items():
            self._kept.add(key, suffix)
        return found | {r: read[key] for r, key in keys.items() if key in read}


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
            right_answer = (
                None if gold_of is None else lambda text: lm.encode_pair(text, gold_of[text])[1]
            )
            return PathwayEngine(
                model, settings, layers, references, lm.budget, trace, right_answer
            )

        super().__init__(
            model.model, model.tokenizer, **engine_options(config), make_engine=make_engine
        )

    @property
    def cost(self) -> dict[str, int]:
        """`EngineLM.cost` with the counts of `PathwayEngine`."""
        return super().cost | self.engine.counted
