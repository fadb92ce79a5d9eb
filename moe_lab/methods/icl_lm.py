"""The language model of `method=icl`, which puts the nearest references before every question.

Q = questions.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moe_lab.config.schema import Config
from moe_lab.engine.lm import EngineLM, OnAnswer, Request
from moe_lab.methods.base import engine_options
from moe_lab.methods.references.neighbours import neighbours
from moe_lab.methods.references.reference_set import ReferenceSet
from moe_lab.models.facts import LoadedModel
from moe_lab.results.atomic import writing
from moe_lab.tasks.loading import load_tasks

FILE = "demonstrations.jsonl"
"""File in the run's folder with a line per question: lm-eval's `prompt`, and `asked`, the prompt
that the model reads. After an interruption or `rerun=true`, a question may have several equal
lines."""


@dataclass(frozen=True)
class ScoredPrompt:
    """What is scored after a prompt."""

    delimiter: str
    """The text between two examples."""
    continuations: set[str] = field(default_factory=set)


Prompts = dict[str, ScoredPrompt]


def scored_prompts(config: Config) -> Prompts:
    """All prompts that lm-eval builds for this run.

    The number of demonstrations that fit depends on the longest continuation. All continuations are
    known from the beginning, so a resumed run has the same demonstrations.
    """
    prompts: Prompts = {}
    for task in load_tasks(config)["tasks"].values():
        for instance in task.instances:
            prompt, continuation = instance.args
            if prompt not in prompts:
                prompts[prompt] = ScoredPrompt(task.config.fewshot_config.fewshot_delimiter)
            prompts[prompt].continuations.add(continuation)
    return prompts


class DemonstrationLM(EngineLM):
    """Scores multiple-choice questions after their demonstrations.

    Args:
        prompts: of the run (`scored_prompts`).
        folder: of the run, for `demonstrations.jsonl`; None: it is not written.
    """

    def __init__(
        self,
        model: LoadedModel,
        config: Config,
        settings: Any,
        references: ReferenceSet,
        prompts: Prompts,
        folder: Path | None = None,
    ):
        super().__init__(model.model, model.tokenizer, **engine_options(config))
        self._loaded = model
        self._settings = settings
        self._references = references
        self._prompts = prompts
        self._folder = folder
        self._demonstrated = {"": ""}
        """The text that the model reads for each prompt: the prompt after its demonstrations. An
        empty prompt (of a choice that is scored alone) has none."""
        self._reference_counts = {
            "reference_dropped": 0,
            "reference_none": 0,
            "demonstrations_dropped": 0,
        }

    @property
    def cost(self) -> dict[str, int]:
        """`EngineLM.cost` with the numbers of references that were too similar, questions without a
        neighbour, and demonstrations that did not fit."""
        return super().cost | self._reference_counts

    def answer(self, kind: str, requests: Sequence[Request], on_answer: OnAnswer) -> None:
        """As `EngineLM.answer`, with each prompt after its demonstrations."""
        assert kind == "loglikelihood", "data_identity refuses other tasks"
        self._choose([request.args[0] for request in requests])
        demonstrated = []
        for request in requests:
            prompt, *others = request.args
            arguments = (self._demonstrated[prompt], *others)
            demonstrated.append(Request(arguments, request.repeat))
        super().answer(kind, demonstrated, on_answer)

    def _choose(self, prompts: list[str]) -> None:
        """Choose demonstrations for new prompts."""
        new = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._demonstrated]
        if not new:
            return
        near = neighbours(
            self._references.embed(new, self._loaded),
            self._references.embedding_RX,
            k=self._settings.k,
            epsilon=None,
            most_similar=self._settings.most_similar,
        )
        self._reference_counts["reference_dropped"] += int(near.dropped_Q.sum())
        self._reference_counts["reference_none"] += int((near.index_QK < 0).all(dim=1).sum())
        for prompt, index_K in zip(new, near.index_QK.tolist(), strict=True):
            nearest = [number for number in index_K if number >= 0]
            self._demonstrated[prompt] = self._with_demonstrations(prompt, nearest)
        if self._folder is not None:
            self._write(self._folder / FILE, new)

    def _write(self, path: Path, prompts: list[str]) -> None:
        """Append a line for each prompt: {"prompt", "asked": the prompt after its
        demonstrations}."""
        lines = []
        for prompt in prompts:
            line = {"prompt": prompt, "asked": self._demonstrated[prompt]}
            lines.append(json.dumps(line) + "\n")
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.writelines(lines)

    def _with_demonstrations(self, prompt: str, nearest: list[int]) -> str:
        """The prompt after its demonstrations, the nearest last.

        The farthest are left out if not all of them fit.
        """
        scored = self._prompts[prompt]
        references = self._references
        demonstrations = [references.texts[r] + references.answers[r] for r in reversed(nearest)]
        while True:
            asked = scored.delimiter.join([*demonstrations, prompt])
            fits = self._longest(asked, scored) <= self.max_length + 1  # the last token is not read
            if fits or not demonstrations:
                return asked
            del demonstrations[0]
            self._reference_counts["demonstrations_dropped"] += 1

    def _longest(self, asked: str, scored: ScoredPrompt) -> int:
        """The tokens of a prompt with its longest continuation."""
        lengths = []
        for continuation in scored.continuations:
            context_ids, continuation_ids = self._encode_pair(asked, continuation)
            lengths.append(len(context_ids) + len(continuation_ids))
        return max(lengths)
