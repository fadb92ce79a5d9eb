"""The files of a reference set: built in portions, joined, read.

    references.jsonl             one line per answered question: task, document, text, what was answered, token ids
    pathways.safetensors         pathway [R, W, M, E]
    embeddings-<id8>.safetensors embedding [R, X], for each kind of embedding in use (`reference_set.py`)
    references.json              counts and versions, written last
    parts/                       finished portions while the set is being built

R = references, W = re-routed tokens, M = MoE layers, E = experts.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from moe_lab.engine.suffix.token_span import check_length, named_tokens
from moe_lab.errors import ConfigError
from moe_lab.methods.references.questions import Graded, Question, answered, reference_questions
from moe_lab.progress import Progress
from moe_lab.results.artifact import Artifact
from moe_lab.results.atomic import write_atomically
from moe_lab.results.shapes import REFERENCE
from moe_lab.results.stored_files import (
    DamagedError,
    damaged,
    opened,
    read_lines,
    read_mapping,
    whole_mapping,
)
from moe_lab.results.versions import versions

if TYPE_CHECKING:
    from moe_lab.config.schema import Config
    from moe_lab.engine.lm import EngineLM
    from moe_lab.engine.scoring.scoring import Budget
    from moe_lab.methods.references.documents import ReferenceDocuments
    from moe_lab.models.load import LoadedModel

ANSWER_TOKENS = 32
"""First tokens of an answer that are kept: what losses are of."""
COUNTS = {"label", "asked", "correct", "dropped", "sources"}
"""What references.json tells of a set."""
PARTS = "parts"
MOST_MOVED = 0.05
"""Share of the routing probability that other kernels or another dtype may move; another model moves more."""
PORTION = 256
"""Documents that are asked, and kept, together: what a killed command computes again at most."""


class References(Artifact):
    """A set of references on disk."""

    def stored(self) -> dict[str, Any] | None:
        """The record of the set, undamaged; None otherwise. Raises ConfigError where the folder holds another set."""
        file = self.folder / self.record
        content = whole_mapping(file)
        if content is not None and isinstance(content.get("id"), str) and content["id"] != self.id:
            raise ConfigError(
                f"{self.folder} holds the references of another model, prompt or choice of documents, which this run "
                "cannot use.\nRemove that folder, or give another output_dir=."
            )
        if content is not None and not isinstance(content.get("id"), str):
            print(f"{file} names no set. The set is made again.", file=sys.stderr)
        return super().stored()

    def is_whole(self, content: dict[str, Any]) -> bool:
        try:
            read(self.folder, correct=True)
        except DamagedError as error:
            print(f"{error.problem}. The set is made again.", file=sys.stderr)
            return False
        return True


def build(
    folder: Path,
    config: Config,
    tokens: str,
    documents: ReferenceDocuments,
    model: LoadedModel,
    lm: EngineLM,
) -> dict[str, Any]:
    """Ask what is not asked yet, and write the set but for its record, which is returned. The folder is held.

    Args:
        tokens: the name of the tokens whose pathways are stored.
    """
    start = time.perf_counter()
    questions = reference_questions(config, documents)
    parts = folder / PARTS
    parts.mkdir(exist_ok=True)
    with Progress(len(questions), "references", "question") as progress:
        for first in range(0, len(questions), PORTION):
            portion = questions[first : first + PORTION]
            part = parts / f"{first:08}.safetensors"
            if not _is_finished(part):
                _ask(part, portion, tokens, model, lm)
            progress.update(len(portion))
    _join(folder, parts)
    lines = read_lines(folder / "references.jsonl") or []
    correct = Counter(line["task"] for line in lines if line["correct"])
    counts = {"asked": len(questions), "correct": correct.total(), "dropped": documents.dropped}
    sources = [
        source | {"correct": sum(correct[task] for task in source["tasks"])} for source in documents.sources
    ]
    seconds = time.perf_counter() - start
    return {
        "label": documents.label,
        **counts,
        "sources": sources,
        "versions": versions(),
        "last_session_seconds": seconds,
    }


def _is_finished(part: Path) -> bool:
    """Whether a portion is stored, with as many lines as pathways."""
    try:
        pathways = len(load_file(part)["pathway"]) if part.exists() else None
        return pathways is not None and len(read_lines(part.with_suffix(".jsonl")) or []) == pathways
    except (OSError, SafetensorError, KeyError, DamagedError):
        return False  # damaged by another program: asked again


def _ask(part: Path, portion: list[Question], tokens: str, model: LoadedModel, lm: EngineLM) -> None:
    """Write a portion's references: the lines first, then the pathways, which say that the portion is finished."""
    lines = [_line(graded, lm) for graded in answered(portion, lm) if graded.text]
    texts, prompts = [line["text"] for line in lines], [line["prompt_ids"] for line in lines]
    pathway_RWME = pathways(texts, prompts, tokens, model, lm.budget)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    write_atomically(part.with_suffix(".jsonl"), text)
    write_atomically(part, save({"pathway": pathway_RWME}))


def pathways(
    texts: list[str], prompts: list[list[int]], tokens: str, model: LoadedModel, budget: Budget
) -> Tensor:
    """float32 [R, W, M, E]: routing probabilities of the named tokens of prompts (token ids).

    Raises ConfigError for a prompt that has too few tokens.
    """
    from moe_lab.engine.suffix.replay import SuffixReplay

    facts, span = model.facts, named_tokens(tokens)
    if not prompts:
        return torch.zeros(0, span.size, facts.moe_layers, facts.experts)
    for text, prompt in zip(texts, prompts, strict=True):
        check_length(span, prompt, text)
    read = SuffixReplay(model.model, facts.moe_layers - 1, span).read(prompts, budget)
    return torch.stack([tail.pathway_WME for tail in read])


def _line(graded: Graded, lm: EngineLM) -> dict[str, Any]:
    question = graded.question
    prompt, answer = lm.encode_pair(question.prompt, graded.text)
    return {
        "task": question.task,
        "document": question.number,
        "text": question.prompt,
        "answer": graded.text,
        "correct": graded.correct,
        "prompt_ids": list(prompt),
        "answer_ids": list(answer[:ANSWER_TOKENS]),
    }


def _join(folder: Path, parts: Path) -> None:
    finished = sorted(parts.glob("*.safetensors"))
    text = "".join(part.with_suffix(".jsonl").read_text(encoding="utf-8") for part in finished)
    write_atomically(folder / "references.jsonl", text)
    pathway_RWME = torch.cat([load_file(part)["pathway"] for part in finished])
    write_atomically(folder / "pathways.safetensors", save({"pathway": pathway_RWME}))


def read(folder: Path, correct: bool) -> dict[str, Any]:
    """Fields of a ReferenceSet of the questions that were answered correctly, or of those that were not.

    Raises DamagedError where a file is gone or damaged, or the files do not belong together.
    """
    summary = read_mapping(folder / "references.json") or {}
    lines = read_lines(folder / "references.jsonl", shape=REFERENCE) or []
    try:
        opened(folder / "pathways.safetensors").close()  # a FIFO would be waited for
        pathway_RWME = load_file(folder / "pathways.safetensors")["pathway"]
    except (OSError, SafetensorError, KeyError) as error:
        raise damaged(folder / "pathways.safetensors", error) from error
    if not COUNTS <= summary.keys():
        raise damaged(folder / "references.jsonl", "fields are missing")
    if len(lines) != len(pathway_RWME) or summary["correct"] != sum(line["correct"] for line in lines):
        raise damaged(folder / "references.jsonl", "the set's files differ in length")
    wanted = [i for i, line in enumerate(lines) if line["correct"] == correct]
    return {
        "texts": [lines[i]["text"] for i in wanted],
        "answers": [lines[i]["answer"] for i in wanted],
        "prompts": [lines[i]["prompt_ids"] for i in wanted],
        "golds": [lines[i]["answer_ids"] for i in wanted],
        "pathway_RWME": pathway_RWME[wanted],
        "counts": {key: summary[key] for key in sorted(COUNTS)},
    }


def check_own(folder: Path, tokens: str, model: LoadedModel, budget: Budget) -> None:
    """Read a set's first prompt again. Raises ConfigError for a set of another model or of other tokens than named.

    Raises DamagedError as `read`, and ConfigError where there is no folder, or none of a set.
    """
    if not (folder / "references.json").exists():
        raise ConfigError(
            f"references={folder}: {'it has no references.json' if folder.exists() else 'there is no such folder'}.\n"
            "Give a folder of outputs/references/, which a run with method=c3po makes, or (prompt, answer) pairs."
        )
    found = read(folder, correct=True)
    if not found["prompts"]:
        return
    prompt, stored_WME = found["prompts"][0], found["pathway_RWME"][0]
    shape = named_tokens(tokens).size, model.facts.moe_layers, model.facts.experts
    if stored_WME.shape == shape and max(prompt) < model.model.get_input_embeddings().num_embeddings:
        [own_WME] = pathways(found["texts"][:1], [prompt], tokens, model, budget)
        if (own_WME - stored_WME).abs().sum(dim=-1).mean() / 2 <= MOST_MOVED:
            return
    raise ConfigError(
        f"{folder} holds references of another model, or of other tokens than method.tokens={tokens}.\n"
        "Give the folder of a set that was made with this model and these tokens."
    )
