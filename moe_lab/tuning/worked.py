"""Worked references: the untouched model's own correct solutions of a study's tuning documents.

Perplexity is over worked answers. Where a task's own answers are bare final ones that its filters look for behind the
steps (AddSub: `#### 15`), the model is asked once, and what it solves is scored in their place.

    outputs/references/<model>-<task>-worked-<id8>/
        responses.jsonl     the model's answers, each as it is given: a killed command continues
        references.json     the correct solutions, and how many documents were asked; written last
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.results.files import write_json
from moe_lab.results.responses import ResponseLog
from moe_lab.results.schema import DECISIVE, versions
from moe_lab.results.store import RunFolder
from moe_lab.results.stored import whole_mapping

if TYPE_CHECKING:
    from moe_lab.models.load import LoadedModel
    from moe_lab.tuning.study import Study

NUMERICS = 2
"""Raised whenever solutions, or which of them are correct, may change."""
TRIMMING = frozenset({"take_first", "take_first_k", "remove_whitespace", "lowercase", "uppercase"})
"""lm-eval's filters that leave an answer what it is; any other looks for it in a longer text."""


@dataclass(frozen=True, kw_only=True)
class WorkedReferences:
    """Where the solutions of a study's tuning documents are kept; studies of one model and documents share them."""

    folder: Path
    digest: str
    """SHA-256 of what determines them: the model, the task's settings, the documents."""

    def stored(self) -> dict[str, Any] | None:
        """The content of references.json: `asked`, `correct` and `solutions`; None before it is written."""
        content = whole_mapping(self.folder / "references.json")
        return content if content is not None and self._is_whole(content) else None

    def _is_whole(self, content: dict[str, Any]) -> bool:
        """Whether it is what `_make` writes for this id: as many solutions as it says, each with its prompt."""
        solutions = content.get("solutions")
        return (
            content.get("id") == self.digest
            and isinstance(content.get("asked"), int)
            and isinstance(solutions, list)
            and len(solutions) == content.get("correct")
            and all(isinstance(one, dict) and {"prompt", "solution"} <= one.keys() for one in solutions)
        )


def needs_worked_references(task: Any) -> bool:
    """Whether the answers of a generated task's data are bare final ones that its filters look for in a longer text."""
    if task.get_config("output_type") != "generate_until":
        return False
    filters = [one["function"] for each in task.config.filter_list or [] for one in each["filter"]]
    return not TRIMMING.issuperset(filters) and all(_is_bare(task, document) for document in task.task_docs)


def _is_bare(task: Any, document: dict[str, Any]) -> bool:
    """Whether a document's own answer is one word, marks such as `####` aside."""
    target = task.doc_to_target(document)
    answers = target if isinstance(target, list) else [target]
    return all(sum(any(map(str.isalnum, word)) for word in str(answer).split()) <= 1 for answer in answers)


def check_solved(references: WorkedReferences, task: str) -> None:
    """Raise ConfigError where the stored references are none: the model solved no tuning document."""
    stored = references.stored()
    if stored is not None and not stored["correct"]:
        raise ConfigError(
            f"The untouched model solves none of the {stored['asked']} tuning documents of {task}, so there is no "
            "worked answer whose perplexity could be tuned: tuning.metric=accuracy, or a larger tuning.num_samples."
        )


def worked_references(study: Study, model: LoadedModel) -> list[tuple[str, str]]:
    """(prompt, correct solution) of the tuning documents that the untouched model solves.

    They are made once, by greedy decoding or as `gen_kwargs` say, and graded by the task's headline metric; another
    process that makes them is waited for. Raises ConfigError where there are none.
    """
    references, name = study.worked, study.task.task_name
    assert references is not None
    if references.stored() is None:
        store = RunFolder(references.folder, references.digest)
        with store.held(wait=True):
            if references.stored() is None:
                with store.status():
                    _make(study, references, model)
    check_solved(references, name)
    stored = references.stored()
    assert stored is not None
    return [(one["prompt"], one["solution"]) for one in stored["solutions"]]


def _make(study: Study, references: WorkedReferences, model: LoadedModel) -> None:
    """Ask what is not asked yet, grade all of it, and write references.json."""
    from moe_lab.models.tokenizer import prompt_tokenizer

    now = versions()
    header = {"run_id": references.digest, "versions": {name: now[name] for name in DECISIVE}}
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
            "solution": behind(sample["arguments"][0][0], sample["resps"][0][0], tokenizer),
        }
        for sample in samples
        if sample["correct"]
    ]
    content = {"id": references.digest, "task": name, "split": study.split, "versions": now}
    counts = {"asked": len(samples), "correct": len(solutions)}
    write_json(references.folder / "references.json", content | counts | {"solutions": solutions})
    print(
        f"{references.folder.name}: the untouched model solves {len(solutions):,} of {len(samples):,} tuning "
        "documents; the others are left out of the perplexity",
        file=sys.stderr,
    )


def behind(prompt: str, text: str, tokenizer: Any) -> str:
    """A generated text as it stands behind its prompt: decoders of SentencePiece models drop a first space."""
    drops = not tokenizer.decode(tokenizer.encode(" a", add_special_tokens=False)).startswith(" ")
    dropped = drops and not prompt[-1:].isspace() and not text[:1].isspace()
    return f" {text}" if dropped else text


def _graded(study: Study, log: ResponseLog, model: LoadedModel) -> list[dict[str, Any]]:
    """lm-eval's sample of every tuning document, with `correct` beside it: its headline metric is 1."""
    from moe_lab.asking import evaluate_tasks
    from moe_lab.models.tokenizer import prompt_tokenizer
    from moe_lab.results.recorded import RecordedLM

    base = get_method("base")(get_method("base").Config(name="base"))
    config = replace(study.config, method=base.config)
    with ExitStack() as opened:
        lm = RecordedLM(
            log,
            lambda: opened.enter_context(base.open(model, config)),
            lambda: prompt_tokenizer(config),
            config.apply_chat_template,
        )
        evaluated = evaluate_tasks(config, study.tasks, lm, None, bootstrap_iters=0)
    samples = evaluated["samples"][study.task.task_name]
    headline = config.task.metric or f"{samples[0]['metrics'][0]},{samples[0]['filter']}"
    metric, _, wanted = headline.partition(",")
    return [
        sample | {"correct": bool(sample["resps"][0][0]) and float(sample[metric]) == 1}
        for sample in samples
        if sample["filter"] == wanted
    ]
