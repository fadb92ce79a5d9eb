"""The files of a reference set: the base model answers reference questions, and its pathways are
stored.

    references.jsonl              a line for each answered question:
                                  task, document, text, the model's answer, token ids
    pathways.safetensors          pathway [R, W, M, E]
    embeddings-<id8>.safetensors  embedding [R, X], for each kind of embedding in use
                                  (`reference_set.py`)
    references.json               counts and versions, written last

R = references, W = re-routed tokens, M = MoE layers, E = experts.
"""

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_message
from moe_lab.engine.lm import EngineLM
from moe_lab.engine.sampling import GenerationState
from moe_lab.engine.scoring import Budget
from moe_lab.engine.suffix import SuffixReplay
from moe_lab.engine.token_span import check_length, named_tokens
from moe_lab.errors import reading
from moe_lab.methods.references.documents import ReferenceDocuments
from moe_lab.methods.references.questions import Question, answered, reference_questions
from moe_lab.models.facts import LoadedModel
from moe_lab.models.new_text import tokens_of
from moe_lab.results.atomic import write_atomically
from moe_lab.results.versions import versions

ANSWER_TOKENS = 32
"""Tokens of an answer that are stored, from the first on. Losses are computed on them."""
COUNTS = ("asked", "correct", "dropped", "label", "sources")
"""Keys of references.json that describe a set."""
MOST_MOVED = 0.05
"""Share of the routing probability that may differ because of other kernels or another dtype.
Models differ more."""
PORTION = 256
"""Prompts whose keys and values are in memory together while their pathways are read."""


def build(
    folder: Path,
    config: Config,
    tokens: str,
    documents: ReferenceDocuments,
    model: LoadedModel,
    lm: EngineLM,
) -> dict[str, Any]:
    """Answer all questions and write the set. Returns its record, which is not written yet.

    Args:
        folder: locked by this process.
        tokens: the name of the tokens whose pathways are stored.
    """
    start = time.perf_counter()
    questions = reference_questions(config, documents)
    print_message(
        f"{folder.name}: {len(questions):,} reference questions are answered first, once for all "
        "runs"
    )
    lines = _answer_lines(questions, lm)
    texts = [line["text"] for line in lines]
    prompts = [line["prompt_ids"] for line in lines]
    pathway_RWME = pathways(texts, prompts, tokens, model, lm.budget)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    write_atomically(folder / "references.jsonl", text)
    write_atomically(folder / "pathways.safetensors", save({"pathway": pathway_RWME}))
    correct = Counter(line["task"] for line in lines if line["correct"])
    sources = []
    for source in documents.sources:
        correct_of_source = sum(correct[task] for task in source["tasks"])
        sources.append(source | {"correct": correct_of_source})
    return {
        "label": documents.label,
        "asked": len(questions),
        "correct": correct.total(),
        "dropped": documents.dropped,
        "sources": sources,
        "versions": versions(),
        "last_session_seconds": time.perf_counter() - start,
    }


def _answer_lines(questions: list[Question], lm: EngineLM) -> list[dict[str, Any]]:
    """The lines of references.jsonl: the questions with an answer that is not empty."""
    with lm.keeping_tokens() as generated:
        graded = answered(questions, lm)
    lines = []
    for question, (answer, is_right) in zip(questions, graded, strict=True):
        if not answer:
            continue
        ids = _token_ids(question, answer, generated, lm)
        lines.append(
            {
                "task": question.task,
                "document": question.number,
                "text": question.prompt,
                "answer": answer,
                "correct": is_right,
                "prompt_ids": list(ids.prompt),
                "answer_ids": list(ids.answer),
            }
        )
    return lines


class _TokenIds(NamedTuple):
    """A question and its answer as token ids."""

    prompt: Sequence[int]
    answer: Sequence[int]
    """The first `ANSWER_TOKENS` at most."""


def _token_ids(
    question: Question, answer: str, generated: dict[str, GenerationState], lm: EngineLM
) -> _TokenIds:
    """The tokens of a prompt and of its answer, as the model read and wrote them.

    Their texts, encoded again, may be other tokens, which the model finds unlikely.

    Args:
        generated: the tokens generated for each prompt, by its text.
    """
    state = generated.get(question.prompt)
    if question.kind == "generate_until" and state is not None:
        answer_ids = tokens_of(answer, state.prompt, state.generated, ANSWER_TOKENS, lm.new_text)
        return _TokenIds(state.prompt, answer_ids)
    prompt_ids, scored_ids = lm.encode_pair(question.prompt, answer)
    return _TokenIds(prompt_ids, scored_ids[:ANSWER_TOKENS])


def pathways(
    texts: list[str], prompts: list[list[int]], tokens: str, model: LoadedModel, budget: Budget
) -> Tensor:
    """float32 [R, W, M, E]: routing probabilities of the named tokens of prompts.

    Args:
        texts: the prompts' texts, for the error.
        prompts: their token ids; may be empty.
        tokens: the name of the tokens, such as "last1".

    Raises ConfigError for a prompt that has too few tokens.
    """
    facts = model.facts
    span = named_tokens(tokens)
    if not prompts:
        return torch.zeros(0, span.size, facts.moe_layers, facts.experts)
    for text, prompt in zip(texts, prompts, strict=True):
        check_length(span, prompt, text)
    replay = SuffixReplay(model.model, facts.moe_layers - 1, span)
    pathways_WME = []
    for first in range(0, len(prompts), PORTION):
        suffixes = replay.read(prompts[first : first + PORTION], budget)
        pathways_WME += [suffix.pathway_WME for suffix in suffixes]
    return torch.stack(pathways_WME)


def read(folder: Path) -> dict[str, Any]:
    """The questions of a stored set that were answered correctly, as fields of a ReferenceSet.

    These are texts, answers, prompts, golds, pathway_RWME and counts; the embeddings are in files
    of their own. Raises ConfigError if a file is missing or damaged.
    """
    remedy = (
        "Runs of method=c3po write such folders below outputs/references/. Remove a damaged one."
    )
    with reading(f"references={folder}", remedy):
        summary = json.loads((folder / "references.json").read_bytes())
        text = (folder / "references.jsonl").read_text(encoding="utf-8")
        pathway_RWME = load_file(folder / "pathways.safetensors")["pathway"]
        lines = [json.loads(line) for line in text.splitlines()]
        correct = []
        rows = []
        for line, row in zip(lines, range(len(pathway_RWME)), strict=True):
            if line["correct"]:
                correct.append(line)
                rows.append(row)
        return {
            "texts": [line["text"] for line in correct],
            "answers": [line["answer"] for line in correct],
            "prompts": [line["prompt_ids"] for line in correct],
            "golds": [line["answer_ids"] for line in correct],
            "pathway_RWME": pathway_RWME[rows],
            "counts": {key: summary[key] for key in COUNTS},
        }


def check_own(folder: Path, tokens: str, model: LoadedModel, budget: Budget) -> None:
    """Compute a set's first pathway again.

    Raises ConfigError for a set of another model or of other tokens.
    """
    stored = read(folder)
    remedy = f"Use a set of this model and of method.tokens={tokens}."
    with reading(f"references={folder}", remedy, says="does not fit"):
        first_RWME = pathways(stored["texts"][:1], stored["prompts"][:1], tokens, model, budget)
        difference_RWME = first_RWME - stored["pathway_RWME"][: len(first_RWME)]
        if difference_RWME.abs().sum(dim=-1).mean() / 2 > MOST_MOVED:
            raise ValueError("it is of another model")
