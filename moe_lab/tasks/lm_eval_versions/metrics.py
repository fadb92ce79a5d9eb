"""A task's filters and metrics."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from moe_lab.tasks.lm_eval_versions import has_scorers


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
    for by_metric in (task._aggregation_list, task._higher_is_better):
        for name in by_metric.keys() - set(names):
            del by_metric[name]


def leave_out_metrics(task: Any, *, keep_filters: bool) -> None:
    """Let a task compute no metric, but lm-eval's placeholder `bypass`."""
    if not hasattr(task, "scorers"):
        from lm_eval.filters import build_filter_ensemble

        task.override_metric(metric_name="bypass")
        if not keep_filters:
            task._filters = [build_filter_ensemble("none", [("take_first", None)])]
        return
    scorers = list(task.scorers)
    task.override_metric(metric_name="bypass")
    [placeholder] = task.scorers
    if keep_filters:
        for scorer in scorers:
            scorer.metrics = placeholder.metrics
        task.scorers[:] = scorers
    task.config.metric_list = [{"metric": "bypass"}]
    # 0.5 would call a function; run ids have 0.4's text
    task.config.process_results = "process_results"


def scores_of_response(task: Any, instance: Any, response: Any, filter_name: str) -> dict[str, Any]:
    """The metrics of one response to an instance, which is filtered by the filter of this name."""
    instance.resps = [response]
    instance.filtered_resps = {}
    for output_filter in output_filters(task):
        if output_filter.name == filter_name:
            output_filter.apply([instance])
    filtered = instance.filtered_resps[filter_name]
    if not hasattr(task, "scorers"):
        return dict(task.process_results(instance.doc, [filtered]))
    scores = task.process_results(instance.doc, list(filtered))
    if scores is not None:
        return dict(scores)
    scorer = next(scorer for scorer in task.scorers if scorer.name == filter_name)
    scored = scorer.score_doc(instance.doc_id, [instance])
    return dict(scorer.reduce({instance.doc_id: scored})[instance.doc_id])


COMPUTED = {
    "loglikelihood": ("perplexity", "acc"),
    "loglikelihood_rolling": ("word_perplexity", "byte_perplexity", "bits_per_byte"),
    "multiple_choice": (
        "acc",
        "acc_norm",
        "acc_bytes",
        "acc_mutual_info",
        "exact_match",
        "f1",
        "mcc",
        "brier_score",
        "likelihood",
    ),
    "generate_until": ("exact_match", "bleu", "chrf", "chrf++", "ter"),
}
"""The metrics that lm-eval 0.4 computes by output type, where the task has no `process_results`. Of
generated texts it also computes functions and metrics of the package `evaluate`."""


def computed_metrics(kind: str) -> tuple[str, ...]:
    """The metrics that lm-eval computes for an output type, where the task has no
    `process_results`."""
    if not has_scorers():
        return COMPUTED[kind]
    from lm_eval.api.registry import metric_registry

    names = []
    for name in metric_registry:
        if name != "bypass" and kind in metric_registry.get(name).output_type:
            names.append(name)
    return tuple(names)


def loads_metrics_of_evaluate() -> bool:
    """Whether lm-eval loads metrics that it does not know from the package `evaluate`."""
    return not has_scorers()


def metric_keys() -> frozenset[str]:
    """The keys of an entry of `metric_list` in a task's YAML. Other keys are arguments of the
    metric's function."""
    from lm_eval.api import metrics

    if hasattr(metrics, "METRIC_KEYS"):  # lm-eval 0.5
        return frozenset(metrics.METRIC_KEYS)
    return frozenset({"metric", "aggregation", "higher_is_better", "hf_evaluate"})
