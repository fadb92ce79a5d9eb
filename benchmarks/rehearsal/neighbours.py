"""The tokens of runs whose neighbours are known with the weights alone (C3PO and in-context
learning), after the run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

if TYPE_CHECKING:
    from moe_lab.engine.suffix import PromptSuffix
    from moe_lab.engine.token_span import TokenSpan
    from moe_lab.methods.c3po.config import C3POConfig
    from moe_lab.tasks.workload import Workload

FILE = "neighbours.json"
"""File in the folder of a run of C3PO: the tokens of its pathways."""


@dataclass
class Pathways:
    """The questions and neighbours of a run of C3PO, as its engine reads them."""

    questions: list[PromptSuffix] = field(default_factory=list)
    read: dict[Any, PromptSuffix] = field(default_factory=dict)
    """By prompt and answer: the neighbours, each once."""
    paired: list[PromptSuffix] = field(default_factory=list)
    """The neighbours of each question that have a weight."""

    def tokens(self, settings: C3POConfig, span: TokenSpan, scored: bool) -> int:
        """The tokens of questions and neighbours, and of the suffixes that pass the later layers
        again.

        Neighbours do so in every pass, scored questions at the end, and with a trace in every
        state, too.
        """
        scorings = 0
        if scored:
            scorings = 1 + settings.passes if settings.trace else 1
        read = _read(self.questions, span) + _read(list(self.read.values()), span)
        return read + settings.passes * _length(self.paired) + scorings * _length(self.questions)


def _length(suffixes: Sequence[PromptSuffix]) -> int:
    return sum(len(suffix.tree) for suffix in suffixes)


def _read(suffixes: Sequence[PromptSuffix], span: TokenSpan) -> int:
    """Tokens of prompts and answers; beginnings that prompts share are read once."""
    from moe_lab.engine.forward.batch import group_by_prefix

    total = _length(suffixes)
    starts = [span.start(len(suffix.prompt)) for suffix in suffixes]
    beginnings = []
    for suffix, start in zip(suffixes, starts, strict=True):
        beginnings.append(suffix.prompt[: start + 1])
    for group in group_by_prefix(beginnings):
        total += group.shared
        total += sum(starts[i] - group.shared for i in group.members)
    return total


@contextmanager
def watched() -> Iterator[Pathways]:
    """Yields what C3PO's engine is given inside the context."""
    from moe_lab.methods.c3po.descent import NeighbourLoss
    from moe_lab.methods.c3po.engine import PathwayEngine

    pathways = Pathways()
    optimize = PathwayEngine.optimize
    prepare = NeighbourLoss.__init__

    def optimized(
        engine: Any, texts: Any, suffixes: Sequence[PromptSuffix], *arguments: Any
    ) -> Any:
        pathways.questions.extend(suffixes)
        return optimize(engine, texts, suffixes, *arguments)

    def prepared(loss: Any, replay: Any, neighbours: Any, weight_Nk: Any, *arguments: Any) -> None:
        for row in neighbours:
            for suffix in row:
                if suffix is not None:
                    pathways.read[suffix.prompt, suffix.tree.continuations[0]] = suffix
        for n, j in weight_Nk.nonzero().tolist():
            if neighbours[n][j]:
                pathways.paired.append(neighbours[n][j])
        prepare(loss, replay, neighbours, weight_Nk, *arguments)

    with (
        patch.object(PathwayEngine, "optimize", optimized),
        patch.object(NeighbourLoss, "__init__", prepared),
    ):
        yield pathways


def pathway_tokens(run: Any, pathways: Pathways, workload: Workload) -> int:
    """The tokens of a run of C3PO, which ran now or in an earlier call.

    Args:
        workload: of the run, with the lengths of the answers.
    """
    from moe_lab.engine.forward.ensemble import Ensemble
    from moe_lab.engine.token_span import named_tokens

    file = run.folder / FILE
    settings = run.method.config
    generated = any(request.generated for _, request in workload.asked)
    if pathways.questions:
        tokens = pathways.tokens(settings, named_tokens(settings.tokens), scored=not generated)
        file.write_text(json.dumps(tokens), encoding="utf-8")
    tokens = int(json.loads(file.read_text(encoding="utf-8")))
    if generated:
        tokens += round(workload.tokens(Ensemble()))
    return tokens


def demonstrated_tokens(run: Any) -> int:
    """The tokens of a run of in-context learning: its prompts after the demonstrations that it
    stored."""
    from moe_lab.engine.forward.ensemble import Ensemble
    from moe_lab.engine.hf import encoder_of
    from moe_lab.engine.planned import Asked, planned_tokens
    from moe_lab.methods.icl_lm import FILE as DEMONSTRATIONS
    from moe_lab.models.source import load_config
    from moe_lab.models.tokenizer import Framing, prompt_tokenizer
    from moe_lab.tasks.requests import build_requests

    config = run.config
    asked_texts = Asked()
    shown_texts: dict[str, str] = {}
    for line in (run.folder / DEMONSTRATIONS).read_text(encoding="utf-8").splitlines():
        demonstrated = json.loads(line)
        shown_texts[demonstrated["prompt"]] = demonstrated["asked"]
    framing = Framing(lambda: prompt_tokenizer(config), config.apply_chat_template)
    design = load_config(config.model, offline=config.offline)
    encoder = encoder_of(design, framing.tokenizer, config.max_length, config.model.add_bos_token)
    for name, task in run.tasks["tasks"].items():
        for instances in build_requests(config, task, framing, samples=run.samples[name]):
            for instance in instances:
                prompt, continuation = instance.args
                asked_texts.read(
                    encoder, instance.request_type, (shown_texts[prompt], continuation)
                )
    return planned_tokens(asked_texts, Ensemble())
