"""`metrics=expert`: the expert metrics of a run (MoE-Bench, section 4.1)."""

import logging
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval.tasks.manager import TaskDict

from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_message
from moe_lab.errors import ConfigError, ModelError
from moe_lab.methods import methods_with_expert_metrics
from moe_lab.methods.method import Method
from moe_lab.metrics.counts import PHASES, Counts, SelectedExperts, count, documents_of
from moe_lab.metrics.differences import differences
from moe_lab.metrics.entropies import entropies_of
from moe_lab.metrics.losses import losses
from moe_lab.metrics.registry import METRICS, Selections, counted_metrics, intervention_metrics
from moe_lab.metrics.stored import (
    COUNTS,
    FILE,
    FOLDER,
    SCHEMA_VERSION,
    read_arrays,
    without_arrays,
    write_arrays,
)
from moe_lab.models.facts import ModelFacts
from moe_lab.models.memory import ModelPool
from moe_lab.results.atomic import write_file, write_json
from moe_lab.results.response_log import ResponseLog
from moe_lab.results.samples import Log
from moe_lab.results.versions import versions
from moe_lab.routing.hook import no_router_message
from moe_lab.runs.evaluation.cost import cost_of
from moe_lab.runs.evaluation.run_lm_eval import ask_again, evaluate_answers
from moe_lab.runs.run import Run
from moe_lab.tasks.judges import is_judged
from moe_lab.tasks.metric_errors import check_scores

logger = logging.getLogger("moe_lab")


def check(method: Method, config: Config, facts: ModelFacts, tasks: TaskDict) -> None:
    """Raise ConfigError for a method that mixes routings, a model whose routing is fixed or takes
    all experts, predict_only, and judged tasks: none of these has expert metrics. Raise ModelError
    for a dense model."""
    name = facts.path or facts.name
    if method.expert_metrics == "none":
        raise ConfigError(
            "metrics=expert counts the choices of one router for each token, and "
            f"method={config.method.name} routes otherwise or reads other texts.\n"
            f"Use one of these: method={', '.join(methods_with_expert_metrics())}."
        )
    if facts.fixed_routing:
        raise ConfigError(
            f"metrics=expert reads and changes the routing of single tokens, which {name} does not "
            f"allow: {facts.fixed_routing}."
        )
    if config.predict_only:
        raise ConfigError(
            "metrics=expert compares scores, and predict_only=true computes none. Leave one out."
        )
    if any(is_judged(task) for task in tasks["tasks"].values()):
        raise ConfigError(
            "metrics=expert compares accuracies, and answers of this task are judged. Leave it out."
        )
    if not facts.moe_layers:
        raise ModelError(no_router_message(name, facts.family))
    if facts.top_k >= facts.experts:
        raise ConfigError(
            "metrics=expert masks an expert, and this model takes all of its "
            f"{facts.experts} for every token."
        )


def _evaluate_policy(
    run: Run, models: ModelPool, name: str, policy: Any
) -> tuple[Log, dict[str, Any]]:
    """Evaluate the run's documents under a routing policy: (lm-eval's samples, the cost).

    The log of the policy (by its `identity`) keeps the answers, so that an interrupted evaluation
    continues.
    """
    path = run.folder / FOLDER / f"{name}.jsonl"
    is_rerun = run.config.rerun
    log = ResponseLog(
        path.with_suffix(".rerun.jsonl") if is_rerun else path,
        run.answers_header | {"policy": policy.identity},
    )
    logger.info("%s under %s, %d answers stored", run.run_id, name, len(log))
    print_message(f"{run.folder.name}: {name}")
    try:
        evaluated = evaluate_answers(run, models, log, policy)
    finally:
        log.close()
    if is_rerun:
        os.replace(log.path, path)
    check_scores(evaluated.failures)
    return evaluated.samples, _cost_with_rounding(log)


def _cost_with_rounding(log: ResponseLog) -> dict[str, Any]:
    """The cost as in results.json, with the measured bound of rounding in its place."""
    cost: dict[str, Any] = {}
    for key, value in cost_of(log).to_json().items():
        if key == "tokens_per_second":
            cost["rounding"] = log.cost.get("peak_rounding")
        cost[key] = value
    return cost


def measure(run: Run, models: ModelPool, samples: Log, routes: SelectedExperts) -> None:
    """Compute the metrics and write the run's files, expert_metrics.json last.

    Args:
        samples: the samples of the run.
        routes: the routing of the run's answers. Requests that it lacks are answered again, because
            the run was interrupted, or stored without metrics.
    """
    documents, by_key = documents_of(run.tasks)
    missing = [request for key, request in by_key.items() if key not in routes.reads]
    start = time.perf_counter()
    if missing:
        ask_again(run, models, routes, missing)
    answered = time.perf_counter()
    counts = count(routes, documents)
    top_k = [routes.top_k[layer] for layer in routes.layers]
    content = _counted(run, counts, top_k)
    content["cost"] = {
        "asked_again": len(missing),
        "asking_again_seconds": answered - start if missing else 0.0,
        "counting_seconds": time.perf_counter() - answered,
    }
    content |= dict.fromkeys(intervention_metrics())
    write_counts(run.folder / FOLDER / COUNTS, counts)
    if run.method.expert_metrics == "all":
        content |= _interventions(run, models, samples, counts, top_k)
    content, arrays = without_arrays(content)
    write_arrays(run.folder / FOLDER, arrays)
    content |= _compared(run, arrays)
    write_json(run.folder / FILE, content)


def _counted(run: Run, counts: Counts, top_k: list[int]) -> dict[str, Any]:
    """The content of expert_metrics.json that follows from counts alone."""
    tokens = dict(zip(PHASES, counts.tokens_P, strict=True))
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": run.run_id,
        "commit": run.facts.commit,
        "versions": versions(),
        "metric": run.config.task.metric,
        "documents": counts.documents,
        "groups": len(counts.pairs_GPLEE),
        "experts": counts.experts,
        "top_k": top_k,
        "tokens": tokens | {"all": sum(counts.tokens_P)},
        **entropies(counts),
    }


def _interventions(
    run: Run, models: ModelPool, samples: Log, counts: Counts, top_k: list[int]
) -> dict[str, Any]:
    """The metrics that change the routing and evaluate the run again, by name."""
    counts_LE = counts.selections_GPLE.sum(axis=(0, 1), dtype=np.int64)
    selections = Selections(counts_LE, counts.experts, top_k)
    evaluate = partial(_evaluate_policy, run, models)
    lost = partial(losses, run.tasks["tasks"], samples)
    metrics = {}
    for name, metric in intervention_metrics().items():
        metrics[name] = metric.evaluate(selections, evaluate, lost)
    return metrics


def _compared(run: Run, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """`baseline`, the base model's metrics (absent if it has none), and `differences` to the other
    runs that have metrics, by name.

    Args:
        arrays: the arrays of this run's metrics (`without_arrays`).
    """
    compared: dict[str, Any] = {}
    if run.baseline is not None:
        baseline = run.baseline.stored_metrics()
        if baseline is not None:
            compared["baseline"] = {key: baseline.content[key] for key in ("run_id", *METRICS)}
    compared["differences"] = {}
    for name, compared_run in run.compared_runs.items():
        if compared_run.stored_metrics() is not None:
            other_arrays = read_arrays(compared_run.folder / FOLDER)
            compared["differences"][name] = differences(arrays, other_arrays)
    return compared


def entropies(counts: Counts) -> dict[str, Any]:
    """Every counted metric by phase: {metric: {"all": ..., "prefill": ..., "decode": ...}}.

    The values are those of `metrics/entropies.py: entropies_of`, None for a metric that it does not
    compute.
    """
    by_phase = {"all": _entropies_in(counts, list(range(len(PHASES))))}
    for number, phase in enumerate(PHASES):
        has_other_tokens = sum(counts.tokens_P) > counts.tokens_P[number]
        if has_other_tokens:
            by_phase[phase] = _entropies_in(counts, [number])
        else:
            by_phase[phase] = by_phase["all"]
    metrics: dict[str, Any] = {}
    for metric in counted_metrics():
        metrics[metric] = {phase: values.get(metric) for phase, values in by_phase.items()}
    return metrics


def _entropies_in(counts: Counts, phases: list[int]) -> dict[str, Any]:
    """The counted metrics of the tokens of some phases."""
    return entropies_of(counts.pairs_GPLEE[:, phases].sum(axis=1), counts.experts)


def write_counts(path: Path, counts: Counts) -> None:
    """Write the counts over all documents.

    `selections.<phase>` is int64 [L, E], and `pairs.<phase>` int64 [L, E, E] without its diagonal.
    """
    from safetensors.numpy import save

    tensors = {}
    for number, phase in enumerate(PHASES):
        pairs_LEE = counts.pairs_GPLEE[:, number].sum(axis=0, dtype=np.int64)
        selections_LE = np.diagonal(pairs_LEE, axis1=-2, axis2=-1)
        off_diagonal_EE = 1 - np.eye(pairs_LEE.shape[-1], dtype=np.int64)
        tensors[f"selections.{phase}"] = np.ascontiguousarray(selections_LE)
        tensors[f"pairs.{phase}"] = np.ascontiguousarray(pairs_LEE * off_diagonal_EE)
    write_file(path, save(tensors))
