"""The tokens of runs whose neighbours are known with the weights alone (C3PO and in-context learning), after the run."""

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
        """The tokens of questions and neighbours, and of the suffixes that pass the later layers again: neighbours in
        every pass, and scored questions at the end, with a trace in every state, too."""
        scorings = 1 + (settings.passes if settings.trace else 0) if scored else 0
        passed = settings.passes * _length(self.paired) + scorings * _length(self.questions)
        return _read(self.questions, span) + _read(list(self.read.values()), span) + passed


def _length(suffixes: Sequence[PromptSuffix]) -> int:
    return sum(len(suffix.tree) for suffix in suffixes)


def _read(suffixes: Sequence[PromptSuffix], span: TokenSpan) -> int:
    """Tokens of prompts and answers; beginnings that prompts share are read once."""
    from moe_lab.engine.forward.batch import group_by_prefix

    total = _length(suffixes)
    for group in group_by_prefix(
        [each.prompt[: span.start(len(each.prompt)) + 1] for each in suffixes]
    ):
        starts = [span.start(len(suffixes[i].prompt)) for i in group.members]
        total += group.shared + sum(start - group.shared for start in starts)
    return total


@contextmanager
def watched() -> Iterator[Pathways]:
    """Yields what C3PO's engine is given inside the context."""
    from moe_lab.methods.c3po.descent import NeighbourLoss
    from moe_lab.methods.c3po.engine import PathwayEngine

    found, optimize, prepare = Pathways(), PathwayEngine.optimize, NeighbourLoss.__init__

    def optimized(engine: Any, texts: Any, suffixes: Sequence[PromptSuffix], *rest: Any) -> Any:
        found.questions.extend(suffixes)
        return optimize(engine, texts, suffixes, *rest)

    def prepared(loss: Any, replay: Any, neighbours: Any, weight_Nk: Any, *rest: Any) -> None:
        of_questions = [[suffix for suffix in row if suffix is not None] for row in neighbours]
        found.read.update(
            {(s.prompt, s.tree.continuations[0]): s for row in of_questions for s in row}
        )
        found.paired.extend(
            neighbours[n][j] for n, j in weight_Nk.nonzero().tolist() if neighbours[n][j]
        )
        prepare(loss, replay, neighbours, weight_Nk, *rest)

    with (
        patch.object(PathwayEngine, "optimize", optimized),
        patch.object(NeighbourLoss, "__init__", prepared),
    ):
        yield found


def pathway_tokens(run: Any, found: Pathways, workload: Workload) -> int:
    """The tokens of a run of C3PO, which ran now or in an earlier call.

    Args:
        workload: of the run, with the lengths of the answers.
    """
    from moe_lab.engine.forward.ensemble import Ensemble
    from moe_lab.engine.token_span import named_tokens

    file, settings = run.folder / FILE, run.method.config
    generated = any(asked.generated for _, asked in workload.asked)
    if found.questions:
        tokens = found.tokens(settings, named_tokens(settings.tokens), scored=not generated)
        file.write_text(json.dumps(tokens), encoding="utf-8")
    tokens = json.loads(file.read_text(encoding="utf-8"))
    return tokens + (round(workload.tokens(Ensemble())) if generated else 0)


def demonstrated_tokens(run: Any) -> int:
    """The tokens of a run of in-context learning: its prompts after the demonstrations that it stored."""
    from moe_lab.engine.forward.ensemble import Ensemble
    from moe_lab.engine.hf import encoder_of
    from moe_lab.engine.planned import Asked, planned_tokens
    from moe_lab.methods.icl_lm import FILE as DEMONSTRATIONS
    from moe_lab.models.source import load_config
    from moe_lab.models.tokenizer import Framing, prompt_tokenizer
    from moe_lab.tasks.requests import build_requests

    config, asked = run.config, Asked()
    lines = (run.folder / DEMONSTRATIONS).read_text(encoding="utf-8").splitlines()
    shown = {line["prompt"]: line["asked"] for line in map(json.loads, lines)}
    framing = Framing(lambda: prompt_tokenizer(config), config.apply_chat_template)
    design = load_config(config.model, offline=config.offline)
    encoder = encoder_of(design, framing.tokenizer, config.max_length, config.model.add_bos_token)
    for name, task in run.tasks["tasks"].items():
        for instances in build_requests(config, task, framing, samples=run.samples[name]):
            for instance in instances:
                prompt, continuation = instance.args
                asked.read(encoder, instance.request_type, (shown[prompt], continuation))
    return planned_tokens(asked, Ensemble())
