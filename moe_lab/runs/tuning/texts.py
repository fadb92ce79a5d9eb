"""The answers whose perplexity a study minimizes (`tuning.text`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import ConfigError, TaskError

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.tasks.documents import Holdout


TRIMMING = frozenset({"take_first", "take_first_k", "remove_whitespace", "lowercase", "uppercase"})
"""lm-eval's filters that keep the whole answer; any other extracts it from a longer text."""


def has_bare_answers(task: Any) -> bool:
    """Whether a generation task's data has final answers without steps, which filters extract from the output."""
    if task.get_config("output_type") != "generate_until":
        return False
    filters = [one["function"] for each in task.config.filter_list or [] for one in each["filter"]]
    targets = map(task.doc_to_target, () if TRIMMING.issuperset(filters) else task.task_docs)
    answers = [str(one) for target in targets for one in (target if isinstance(target, list) else [target])]
    # bare: one word, apart from marks such as `####`
    return bool(answers) and all(
        sum(any(map(str.isalnum, word)) for word in answer.split()) <= 1 for answer in answers
    )


# The answers whose perplexity a study measures (`tuning.text`)
#
# | text | answers | written by |
# |---|---|---|
# | data | the data's own (GSM8K, toy_math, right choices, running text) | others |
# | gsm8k | GSM8K's worked answers: GSM8K is tuned, and its profile is used for the task | others |
# | equations | the equation of each row, then the bare answer | others |

DATA, GSM8K, EQUATIONS = "data", "gsm8k", "equations"
EQUATION_COLUMNS = ("equation", "Equation", "lEquations")
"""Columns with a row's equation. SVAMP.json has `Equation`; AddSub, MultiArith and SingleEq have `lEquations`."""
SOURCE = TaskConfig(name="gsm8k", metric="exact_match,strict-match", category="math")
"""`conf/task/gsm8k.yaml`."""
_CHOICES = "Choose tuning.text=equations (rows with an equation), or tuning.metric=accuracy."


def text_of(config: Config, metric: str, task: Any) -> str | None:
    """The answers that a study of `task` scores: `tuning.text`, by default written by others. None: by accuracy.

    Raises ConfigError for answers that the task does not have.
    """
    given, name = config.tuning.text, task.task_name
    if metric != "perplexity":
        if given is not None:
            raise ConfigError(
                f"tuning.text={given} says whose answers' perplexity is tuned, and tuning.metric={metric} scores none. "
                "Leave one of them out."
            )
        return None
    if task.get_config("output_type") != "generate_until":
        if given not in (None, DATA):
            raise ConfigError(
                f"tuning.text={given}: {name} generates no answers; its data has the right ones. Leave it out."
            )
        return DATA
    bare = has_bare_answers(task)
    if given == DATA and bare:
        raise ConfigError(
            f"tuning.text=data: the answers of {name} are bare, without steps. Leave it out for GSM8K's profile.\n"
            f"{_CHOICES}"
        )
    text = given or (GSM8K if bare else DATA)
    if text == EQUATIONS and not all(map(equation, task.task_docs)):
        raise ConfigError(
            f"tuning.text=equations: not every row of {name} has an equation (column {', '.join(EQUATION_COLUMNS)}).\n"
            "Add the column to the data, or leave tuning.text out for GSM8K's profile."
        )
    return text


def on_gsm8k(config: Config, holdout: Holdout) -> tuple[Config, TaskDict]:
    """The configuration of GSM8K's own study with the settings of another task's, and its tuning documents.

    Settings of generation are left out: they do not change the perplexity of given answers. Raises TaskError if GSM8K's
    worked answers are not at hand.
    """
    from moe_lab.tasks.loading import load_tasks

    source = replace(config, task=SOURCE, gen_kwargs=None, limit=None, samples=None)
    try:
        tasks = load_tasks(source, holdout)
    except TaskError as error:
        reason = str(error).splitlines()[0]
        raise TaskError(
            f"tuning.text=gsm8k, the default where a task's answers are bare, needs GSM8K's data. {reason}\n{_CHOICES}"
        ) from error
    if has_bare_answers(tasks["tasks"][GSM8K]):
        raise TaskError(
            f"tuning.text=gsm8k: GSM8K's answers in data_dir={config.data_dir} are bare, without steps.\n{_CHOICES}"
        )
    return source, tasks


def equation(document: dict[str, Any]) -> str | None:
    """The equation of a document, as its data has it; None if there is none."""
    for column in EQUATION_COLUMNS:
        found = document.get(column)
        text = ", ".join(map(str, found)) if isinstance(found, list) else str(found or "")
        if text.strip():
            return text.strip()
    return None


def with_equation(document: dict[str, Any], answer: str) -> str:
    """A bare answer after its equation, for example ` 8 - 3 = 5\\n#### 5` of ` #### 5`."""
    target = answer.lstrip()
    written = equation(document) or ""
    steps = written if "=" in written else f"{written} = {target.split()[-1]}"
    return f"{answer[: len(answer) - len(target)]}{steps}\n{target}"
