"""What the installed lm-eval makes of a task's responses, without a model."""

from collections.abc import Sequence
from typing import Any

from moe_lab.models.lm_eval_internals import instance_of
from moe_lab.tasks.lm_eval_versions.metrics import output_filters


def filtered(task: Any, responses: Sequence[Any]) -> dict[str, Any]:
    """What each of the task's filters returns for several responses to one request.

    One response counts as a list of one.
    """
    instance = instance_of("generate_until", ("", {}))
    instance.resps = list(responses)
    for output_filter in output_filters(task):
        output_filter.apply([instance])
    filtered_answers: dict[str, Any] = {}
    for name, value in instance.filtered_resps.items():
        # lm-eval 0.5 has a list for each request
        in_list = hasattr(task, "scorers") and len(value) == 1
        filtered_answers[name] = value[0] if in_list else value
    return filtered_answers


def scores_of(task: Any, document: Any, *responses: Any) -> dict[str, Any]:
    """The metrics of a document with one response to each of its requests.

    The task has one filter.
    """
    requests = task.construct_requests(doc=document, ctx="", doc_id=0)
    instances = requests if isinstance(requests, list) else [requests]
    for instance, response in zip(instances, responses, strict=True):
        instance.resps = [response]
    task._instances = instances
    if hasattr(task, "scorers"):
        task.process_instances()
        [scorer] = task.scorers
        return dict(scorer.reduced_docs[0])
    task.apply_filters()
    [name] = instances[0].filtered_resps
    return dict(
        task.process_results(document, [instance.filtered_resps[name] for instance in instances])
    )
