"""Worked references: the untouched model's own correct solutions of a study's tuning documents.

With `tuning.text=own` the model solves the documents once, and its correct solutions are scored. They favour
temperature 0 (`texts.py`).

    outputs/references/<model>-<task>-worked-<id8>/
        responses.jsonl     the model's answers, appended one by one: a killed command continues
        references.json     the correct solutions, and how many documents were asked; written last
"""

from __future__ import annotations

from typing import Any

from moe_lab.errors import ConfigError
from moe_lab.results.artifact import Artifact

RECORD = "references.json"
NUMERICS = 2
"""Raised whenever solutions or their grades may change."""
TRIMMING = frozenset({"take_first", "take_first_k", "remove_whitespace", "lowercase", "uppercase"})
"""lm-eval's filters that keep the whole answer; any other extracts it from a longer text."""


class WorkedReferences(Artifact):
    """The stored solutions of a study's tuning documents, shared by studies of the same model and documents.

    The record has `asked`, `correct` and `solutions`.
    """

    def is_whole(self, content: dict[str, Any]) -> bool:
        """Whether the record has as many solutions as its count, each with its prompt."""
        solutions = content.get("solutions")
        return (
            isinstance(content.get("asked"), int)
            and isinstance(solutions, list)
            and len(solutions) == content.get("correct")
            and all(isinstance(one, dict) and {"prompt", "solution"} <= one.keys() for one in solutions)
        )


def has_bare_answers(task: Any) -> bool:
    """Whether a generation task's data has final answers without steps, which filters extract from the output."""
    if task.get_config("output_type") != "generate_until":
        return False
    filters = [one["function"] for each in task.config.filter_list or [] for one in each["filter"]]
    return not TRIMMING.issuperset(filters) and all(_is_bare(task, document) for document in task.task_docs)


def _is_bare(task: Any, document: dict[str, Any]) -> bool:
    """Whether a document's answer is one word, apart from marks such as `####`."""
    target = task.doc_to_target(document)
    answers = target if isinstance(target, list) else [target]
    return all(sum(any(map(str.isalnum, word)) for word in str(answer).split()) <= 1 for answer in answers)


def check_solved(references: WorkedReferences, task: str) -> None:
    """Raise ConfigError if the model solved no tuning document."""
    stored = references.stored()
    if stored is not None and not stored["correct"]:
        raise ConfigError(
            f"The untouched model solves none of the {stored['asked']} tuning documents of {task}, so there is no "
            "worked answer whose perplexity could be tuned: tuning.metric=accuracy, or a larger tuning.num_samples."
        )
