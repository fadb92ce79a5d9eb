"""Few-shot examples from the evaluated split. No prompt contains its own document.

lm-eval's sampler draws one example more and drops the document itself, but only where the task
names one split as `test_split` and as `fewshot_split`. Elsewhere (a task with a test split only,
such as HumanEval; a task that is evaluated on its validation split) lm-eval draws from all
documents of the split.
"""

from functools import partial, wraps
from typing import Any

from lm_eval.api.samplers import ContextSampler, FirstNSampler

from moe_lab.errors import TaskError
from moe_lab.tasks.document_hashes import content_bytes

OTHER_EXAMPLES = "Use num_fewshot=0, or examples of another split: task.fewshot_split=<split>."


def prepare_examples(task: Any) -> None:
    """Check the number of few-shot examples of an lm-eval task, and have its sampler leave out the
    document itself.

    The task's settings, and so the run's id, change only where lm-eval would show a document its
    own answer.

    Raises TaskError for too many examples, and where a document cannot be recognized among the
    examples.
    """
    number = task.get_config("num_fewshot")
    if not number or not hasattr(task, "sampler"):
        return
    evaluated = task.config.test_split or task.config.validation_split
    of_evaluated = examples_split(task) == evaluated
    if of_evaluated and not _leaves_out_the_document(task):
        # lm-eval compares these two names, and leaves out the document where they are equal
        task.config.test_split = evaluated
        task.config.fewshot_config.split = evaluated
    available = len(task.sampler.df)
    if _draws_one_more(task):
        available -= 1
    if number > available:
        raise TaskError(
            f"num_fewshot={number} is more than the {available} examples that {task.task_name} has."
        )
    if of_evaluated:
        _check_examples(task)


def examples_split(task: Any) -> str | None:
    """The split that lm-eval draws few-shot examples from; None: the task's YAML lists them."""
    if task.config.fewshot_config.split is not None:
        return str(task.config.fewshot_config.split)
    if task.config.fewshot_config.samples is not None:
        return None
    config = task.config
    split: str | None = config.training_split or config.validation_split or config.test_split
    return split


def _leaves_out_the_document(task: Any) -> bool:
    """Whether lm-eval hands the document to the sampler (`ConfigurableTask.fewshot_context`)."""
    return bool(task.config.fewshot_config.split == task.config.test_split)


def _draws_one_more(task: Any) -> bool:
    """Whether the sampler draws one example more than it returns.

    lm-eval's own sampler does if it gets the document. Another sampler may not, unless the task
    names the split of its examples.
    """
    if not _leaves_out_the_document(task):
        return False
    names_the_split = task.config.fewshot_config.split is not None
    return names_the_split or type(task.sampler) is ContextSampler


def _check_examples(task: Any) -> None:
    """Have the sampler raise TaskError where it returns the document itself, which lm-eval
    recognizes by `==`.

    It does not recognize one with a NaN. A sampler of the user's may return anything.
    """
    if task.config.fewshot_config.process_docs is not task.config.process_docs:
        raise TaskError(
            f"Task {task.task_name} draws few-shot examples from the evaluated split, and its "
            "fewshot_config has another process_docs:\na document cannot be recognized among its "
            f"own examples. {OTHER_EXAMPLES}"
        )
    sample = task.sampler.sample
    if type(task.sampler) is FirstNSampler:
        sample = partial(_first_others, task.sampler)

    @wraps(task.sampler.sample)
    def checked(n: int, eval_doc: Any = None, **options: Any) -> Any:
        try:
            examples = sample(n, eval_doc=eval_doc, **options)
        except (AssertionError, ValueError) as error:  # too many rows equal the document
            raise TaskError(
                f"Task {task.task_name} has fewer than num_fewshot={n} examples that differ from "
                f"the document that is asked.\n{OTHER_EXAMPLES}"
            ) from error
        if eval_doc is None:
            return examples
        document = content_bytes(eval_doc)
        if any(content_bytes(example) == document for example in examples):
            raise TaskError(
                f"Task {task.task_name} shows a document as an example in its own prompt: its "
                f"sampler ({type(task.sampler).__name__}) does not leave it out.\n{OTHER_EXAMPLES}"
            )
        return examples

    task.sampler.sample = checked


def _first_others(sampler: FirstNSampler, n: int, eval_doc: Any = None, **_: Any) -> Any:
    """The first n examples without the document itself, which 0.5's `first_n` does not leave
    out."""
    others = sampler.rm_eval_doc(eval_doc, sampler.df)
    if n > len(others):
        raise ValueError(f"{n} of {len(others)} examples were asked for")
    return others[:n]
