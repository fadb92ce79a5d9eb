"""What tasks of lm-eval 0.4 and of the development release of 0.5 have in other places, in one place.

In 0.4 a task reads its documents when it is made, has filters and metric functions, and computes all metrics of a
document in `process_results`. In 0.5 it reads documents when they are asked for, and has scorers: each has a filter and
its metrics. This package's own task files are written for 0.4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from inspect import unwrap
from typing import Any

from moe_lab.models.lm_eval_internals import TEXT, answers_of_lm_eval

# Documents


def evaluated_documents(task: Any) -> Any:
    """The documents that a task evaluates, read once."""
    if not hasattr(task, "task_docs"):
        task.task_docs = task.test_docs() if task.has_test_docs() else task.validation_docs()
    return task.task_docs


def read_first_document(task: Any) -> None:
    """Read the task's documents, and fill the templates with the first one, as 0.4 does while it loads a task."""
    if hasattr(task, "task_docs"):
        return
    documents = evaluated_documents(task)
    task.fewshot_docs()
    if documents is None or len(documents) == 0:
        return
    task.doc_to_text(documents[0])
    task.doc_to_target(documents[0])
    if task.config.doc_to_choice is not None:
        task.doc_to_choice(documents[0])


def has_prompt_per_choice(task: Any) -> bool:
    """Whether each choice has a prompt of its own, as in WinoGrande."""
    return bool(
        getattr(task, "multiple_input", 0) or getattr(task.config, "multiple_inputs", False)
    )


def number_of_choices(task: Any, document: Any) -> int:
    """The number of a document's choices. Some metrics ask for more: each choice without its prompt."""
    if getattr(task.config, "multiple_inputs", False):
        return len(task.doc_to_text(document))
    return len(task.doc_to_choice(document))


def gold_of(task: Any, document: Any) -> Any:
    """The index or the text of a document's right choice; a list where several are right."""
    if getattr(task, "multiple_input", 0):
        return task.doc_to_text(document)
    return task.doc_to_target(document)


def error_of_template(error: Exception) -> Exception:
    """The error of a template that 0.5 wraps into one with the whole document; any other error as it is."""
    if isinstance(error.__cause__, Exception) and str(error).startswith("Error rendering template"):
        return error.__cause__
    return error


# What a task is


def executes_code(task: Any) -> bool:
    """Whether the task executes programs that the model wrote."""
    return bool(task.config.unsafe_code or getattr(task, "UNSAFE_CODE", False))


def is_multimodal(task: Any) -> bool:
    """Whether the task has images or sound."""
    config = task.config
    return bool(getattr(task, "MULTIMODAL", False) or config.doc_to_image or config.doc_to_audio)


# Configurations


def without_group(config: Mapping[str, Any]) -> dict[str, Any]:
    """A task's configuration without the name of its group, which 0.5 puts in front of the task's name in results."""
    return {key: value for key, value in config.items() if key != "_qualified_name"}


def as_installed(config: Mapping[str, Any]) -> dict[str, Any]:
    """A task's configuration for the installed lm-eval.

    0.5 reads the split of few-shot examples in `fewshot_split` alone, and takes no mapping of choices. A filter gives a
    list for each document there, whose items the metrics take; those of this package that end a pipeline give one value
    for each document.
    """
    if not _has_scorers():
        return dict(config)
    split = (config.get("fewshot_config") or {}).get("split")
    if split is not None:
        config = {**config, "fewshot_split": split}
    if isinstance(config.get("doc_to_choice"), dict):
        config = {**config, "doc_to_choice": list(config["doc_to_choice"].values())}
    if not isinstance(config.get("filter_list"), list):
        return dict(config)
    pipelines = []
    for pipeline in config["filter_list"]:
        *steps, last = pipeline["filter"]
        function = last.get("filter_fn")
        if function is not None and _is_own(function):
            last = {**last, "filter_fn": partial(_in_lists, function)}
        pipelines.append({**pipeline, "filter": [*steps, last]})
    return {**config, "filter_list": pipelines}


def _is_own(function: Any) -> bool:
    while isinstance(function, partial):
        function = function.func
    module: str = unwrap(function).__module__
    return module.partition(".")[0] == "moe_lab"


def _in_lists(
    filter_fn: Callable[..., Sequence[Any]], responses: Any, documents: Any
) -> list[list[Any]]:
    """An lm-eval filter: the value of each document as the only item of a list."""
    return [[value] for value in filter_fn(list(responses), documents)]


def keep_given_form(task: Any, given: Mapping[str, Any]) -> None:
    """Let a task's configuration have metrics and filters as they were given, once its documents are read.

    0.5 replaces them by what it makes of them. Run ids, and all that reads the configuration, take them as given.
    """
    for key in ("metric_list", "filter_list", "fewshot_split"):
        setattr(task.config, key, given.get(key))
    if not task.config.generation_kwargs:
        task.config.generation_kwargs = None


def choices_as_prompts(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration whose choices are the prompts of a task that has one for each, in 0.4's form.

    In 0.5 `doc_to_text` has the prompts of such a task (`multiple_inputs`), `doc_to_choice` the text after them, and
    `doc_to_target` the place of the right prompt. In 0.4 these are `doc_to_choice`, `doc_to_target` and `doc_to_text`.
    """
    if not config.get("multiple_inputs"):
        return dict(config)
    rest = config["doc_to_choice"]

    def shared_rest(document: Any) -> str:
        [text] = rest(document)
        return str(text)

    forms = {
        "doc_to_text": config["doc_to_target"],
        "doc_to_choice": config["doc_to_text"],
        "doc_to_target": shared_rest,
    }
    return {**config, **forms, "multiple_inputs": False}


# Filters and metrics


def _has_scorers() -> bool:
    from lm_eval.api.task import Task

    return hasattr(Task, "scorers")


def output_filters(task: Any) -> list[Any]:
    """The filters of a task's responses, lm-eval's `FilterEnsemble`s."""
    if hasattr(task, "scorers"):
        return [scorer.filter for scorer in task.scorers]
    return list(task._filters)


def keep_metrics(task: Any, names: Collection[str]) -> None:
    """Let a task report these metrics alone."""
    if hasattr(task, "scorers"):
        for scorer in task.scorers:
            scorer.metrics = [metric for metric in scorer.metrics if metric.name in names]
        return
    for known in (task._aggregation_list, task._higher_is_better):
        for name in known.keys() - set(names):
            del known[name]


def leave_out_metrics(task: Any, *, keep_filters: bool) -> None:
    """Let a task compute no metric, but lm-eval's placeholder `bypass`."""
    if hasattr(task, "scorers"):
        own = list(task.scorers)
        task.override_metric(metric_name="bypass")
        [placeholder] = task.scorers
        if keep_filters:
            for scorer in own:
                scorer.metrics = placeholder.metrics
            task.scorers[:] = own
        task.config.metric_list = [{"metric": "bypass"}]
        task.config.process_results = (
            "process_results"  # 0.5 would call a function; run ids have 0.4's text
        )
        return
    from lm_eval.filters import build_filter_ensemble

    task.override_metric(metric_name="bypass")
    if not keep_filters:
        task._filters = [build_filter_ensemble("none", [("take_first", None)])]


def scores_of_response(task: Any, instance: Any, response: Any, filter_name: str) -> dict[str, Any]:
    """The metrics of one response to an instance, which is filtered by the filter of this name."""
    instance.resps, instance.filtered_resps = [response], {}
    for output_filter in output_filters(task):
        if output_filter.name == filter_name:
            output_filter.apply([instance])
    filtered = instance.filtered_resps[filter_name]
    if not hasattr(task, "scorers"):
        return dict(task.process_results(instance.doc, [filtered]))
    scores = task.process_results(instance.doc, list(filtered))
    if scores is not None:
        return dict(scores)
    [scorer] = [scorer for scorer in task.scorers if scorer.name == filter_name]
    scored = scorer.score_doc(instance.doc_id, [instance])
    return dict(scorer.reduce({instance.doc_id: scored})[instance.doc_id])


COMPUTED = {
    "loglikelihood": ("perplexity", "acc"),
    "loglikelihood_rolling": ("word_perplexity", "byte_perplexity", "bits_per_byte"),
    "multiple_choice": (
        *("acc", "acc_norm", "acc_bytes", "acc_mutual_info", "exact_match"),
        *("f1", "mcc", "brier_score", "likelihood"),
    ),
    "generate_until": ("exact_match", "bleu", "chrf", "chrf++", "ter"),
}
"""The metrics that lm-eval 0.4 computes by output type, where the task has no `process_results`. Of generated texts it
also computes functions and metrics of the package `evaluate`."""


def computed_metrics(kind: str) -> tuple[str, ...]:
    """The metrics that lm-eval computes for an output type, where the task has no `process_results`."""
    if not _has_scorers():
        return COMPUTED[kind]
    from lm_eval.api.registry import metric_registry

    names = [name for name in metric_registry if name != "bypass"]
    return tuple(name for name in names if kind in metric_registry.get(name).output_type)


def loads_metrics_of_evaluate() -> bool:
    """Whether lm-eval loads metrics that it does not know from the package `evaluate`."""
    return not _has_scorers()


def metric_keys() -> frozenset[str]:
    """The keys of a metric in a task's YAML; others are arguments of its function."""
    from lm_eval.api import metrics

    of_0_4 = {"metric", "aggregation", "higher_is_better", "hf_evaluate"}
    return frozenset(getattr(metrics, "METRIC_KEYS", of_0_4))


# Logged samples


def logged_samples(
    tasks: Mapping[str, Any], samples: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, list[dict[str, Any]]]:
    """The samples that lm-eval logs of each task, in 0.4's form.

    0.5 has a list for each filtered response, ("", text) for a whole text, and the place of the right answer in place
    of a text that is scored.
    """
    if not _has_scorers():
        return {name: [dict(line) for line in lines] for name, lines in samples.items()}
    return {
        name: [_logged_sample(tasks[name], line) for line in lines]
        for name, lines in samples.items()
    }


def _logged_sample(task: Any, line: Mapping[str, Any]) -> dict[str, Any]:
    from lm_eval.utils import hash_string

    filtered = [
        response[0] if len(response) == 1 else response for response in line["filtered_resps"]
    ]
    sample = {**line, "filtered_resps": filtered}
    if task.OUTPUT_TYPE == TEXT:
        sample["arguments"] = [arguments[-1:] for arguments in line["arguments"]]
        sample["resps"] = [answers_of_lm_eval(TEXT, list(responses)) for responses in line["resps"]]
        sample["filtered_resps"] = answers_of_lm_eval(TEXT, filtered)
        sample["prompt_hash"] = hash_string(sample["arguments"][0][0])
    sample["target"] = task.doc_to_target(line["doc"])
    sample["target_hash"] = hash_string(str(sample["target"]))
    return sample
