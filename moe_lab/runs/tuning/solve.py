"""Generates and grades the base model's solutions of a study's tuning documents (`worked.py`)."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moe_lab.methods import get_method
from moe_lab.methods.method import Context
from moe_lab.results.identity import decisive_versions, versions
from moe_lab.results.logs import ResponseLog
from moe_lab.runs.tuning.texts import BIAS, WorkedReferences, check_solved

if TYPE_CHECKING:
    from moe_lab.models.load import LoadedModel
    from moe_lab.runs.tuning.study import Study


def worked_references(study: Study, model: LoadedModel) -> list[tuple[str, str]]:
    """(prompt, correct solution) of the tuning documents that the base model solves.

    They are generated once, greedily or with `gen_kwargs`, and graded by the task's headline metric. Waits for another
    process that generates them. Raises ConfigError if there are none.
    """
    references, name = study.worked, study.task.task_name
    assert references is not None
    stored = references.load_or_make(lambda: _make(study, references, model))
    check_solved(references, name)
    return [(one["prompt"], one["solution"]) for one in stored["solutions"]]


def _make(study: Study, references: WorkedReferences, model: LoadedModel) -> dict[str, Any]:
    """Generate the missing solutions and grade all of them. Returns the content of references.json."""
    from moe_lab.models.tokenizer import prompt_tokenizer

    header = {"run_id": references.id, "versions": decisive_versions()}
    log = ResponseLog(references.folder / "responses.jsonl", header)
    try:
        samples = _graded(study, log, model)
    finally:
        log.close()
    name, tokenizer = study.task.task_name, prompt_tokenizer(study.config)
    solutions = [
        {
            "document": study.samples[name][sample["doc_id"]],
            "prompt": sample["arguments"][0][0],
            "solution": with_first_space(sample["arguments"][0][0], sample["resps"][0][0], tokenizer),
        }
        for sample in samples
        if sample["correct"]
    ]
    print(
        f"{references.folder.name}: the base model solves {len(solutions):,} of {len(samples):,} tuning "
        f"documents; the others are left out of the perplexity.\n{BIAS}",
        file=sys.stderr,
    )
    counts = {"asked": len(samples), "correct": len(solutions)}
    return {"task": name, "split": study.split, "versions": versions(), **counts, "solutions": solutions}


def with_first_space(prompt: str, text: str, tokenizer: Any) -> str:
    """A generated text with the first space that decoders of SentencePiece models drop."""
    drops = not tokenizer.decode(tokenizer.encode(" a", add_special_tokens=False)).startswith(" ")
    dropped = drops and not prompt[-1:].isspace() and not text[:1].isspace()
    return f" {text}" if dropped else text


def _graded(study: Study, log: ResponseLog, model: LoadedModel) -> list[dict[str, Any]]:
    """lm-eval's sample of every tuning document, with `correct`: whether its headline metric is 1."""
    from moe_lab.models.tokenizer import prompt_tokenizer
    from moe_lab.runs.evaluation.lms import RecordedLM
    from moe_lab.runs.evaluation.run_lm_eval import evaluate_tasks

    base = get_method("base")(get_method("base").Config(name="base"))
    config = replace(study.config, method=base.config)
    with ExitStack() as opened:
        lm = RecordedLM(
            log,
            lambda: opened.enter_context(base.open(model, Context(config=config))),
            lambda: prompt_tokenizer(config),
            config.apply_chat_template,
        )
        evaluated = evaluate_tasks(config, study.tasks, lm, None, bootstrap_iters=0)
    samples = evaluated["samples"][study.task.task_name]
    headline = config.task.metric or f"{samples[0]['metrics'][0]},{samples[0]['filter']}"
    metric, _, filter_name = headline.partition(",")
    return [
        sample | {"correct": bool(sample["resps"][0][0]) and float(sample[metric]) == 1}
        for sample in samples
        if sample["filter"] == filter_name
    ]
