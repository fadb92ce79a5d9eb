"""The answers whose perplexity a study minimizes: the data's own, or GSM8K's where these are bare.

The model wrote none of them.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from lm_eval.tasks.manager import TaskDict

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import TaskError
from moe_lab.tasks.holdout import Holdout
from moe_lab.tasks.lm_eval_versions.documents import evaluated_documents
from moe_lab.tasks.loading import load_tasks

TRIMMING = frozenset({"take_first", "take_first_k", "remove_whitespace", "lowercase", "uppercase"})
"""lm-eval's filters that keep the whole answer; any other extracts it from a longer text."""
SOURCE = TaskConfig(name="gsm8k", metric="exact_match,strict-match", category="math")
"""`conf/task/gsm8k.yaml`."""


def has_bare_answers(task: Any) -> bool:
    """Whether a generation task's data has final answers without steps, such as "72".

    Only for tasks whose filters extract the answer from a longer text. False without documents.
    """
    if task.get_config("output_type") != "generate_until" or not _extracts_answers(task):
        return False
    answers: list[Any] = []
    for document in evaluated_documents(task):
        target = task.doc_to_target(document)
        answers += target if isinstance(target, list) else [target]
    return bool(answers) and all(_is_bare(str(answer)) for answer in answers)


def _extracts_answers(task: Any) -> bool:
    """Whether a filter of the task takes the answer from a longer text."""
    for pipeline in task.config.filter_list or []:
        for step in pipeline["filter"]:
            if step["function"] not in TRIMMING:
                return True
    return False


def _is_bare(answer: str) -> bool:
    """Whether an answer is one word, apart from marks such as `####`."""
    words = [word for word in answer.split() if any(map(str.isalnum, word))]
    return len(words) <= 1


class WorkedAnswers(NamedTuple):
    """The task whose answers a study scores in the place of another task's."""

    config: Config
    tasks: TaskDict
    """The task over its tuning documents."""


def on_gsm8k(config: Config, holdout: Holdout) -> WorkedAnswers:
    """GSM8K's configuration with the settings of another task's study, and its tuning documents.

    Settings of generation are left out: they do not change the perplexity of given answers. Raises
    TaskError if GSM8K's worked answers are not at hand.
    """
    source = replace(config, task=SOURCE, gen_kwargs=None, limit=None, samples=None)
    try:
        tasks = load_tasks(source, holdout)
        if has_bare_answers(tasks["tasks"]["gsm8k"]):
            raise TaskError(f"GSM8K's answers in data_dir={config.data_dir} are bare, too.")
    except TaskError as error:
        raise TaskError(
            f"The answers of {config.task.name} are bare, so the study is GSM8K's. "
            f"{str(error).splitlines()[0]}\n"
            "tuning.metric=accuracy tunes on the task itself."
        ) from error
    return WorkedAnswers(source, tasks)
