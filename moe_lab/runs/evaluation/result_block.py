"""Fills the block `moe_lab` of results.json."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from moe_lab.methods.trained import training_folder
from moe_lab.results.lm_eval_results import Scores
from moe_lab.results.model import RunBlock
from moe_lab.results.response_log import ResponseLog
from moe_lab.results.rounding import Rounding
from moe_lab.results.run_parts import Comparisons, MethodPart, ModelPart, OtherRun, TaskPart
from moe_lab.results.statistics import VERSION
from moe_lab.results.stored_files import whole_mapping
from moe_lab.results.task_scores import headline_of, reported
from moe_lab.results.versions import SCHEMA_VERSION, versions
from moe_lab.runs.evaluation.cost import cost_of
from moe_lab.runs.evaluation.judge_verdicts import verdicts_of
from moe_lab.runs.evaluation.run_lm_eval import Evaluated
from moe_lab.runs.evaluation.scored import Scored, StoredScores
from moe_lab.runs.run import Run


def run_block(
    run: Run,
    evaluated: Evaluated,
    log: ResponseLog,
    others: Mapping[str, StoredScores],
    template: Mapping[str, Any],
) -> RunBlock:
    """The block that this package adds to lm-eval's result dictionary.

    Args:
        evaluated: what lm-eval says of the answers. Metrics whose interval or comparison fails are
            added to its failures.
        log: the run's answers, with their cost.
        others: the runs that this one is compared with, the base model's as "baseline".
        template: {"chat_template"} (`template_block`); empty without one.
    """
    task = _task_part(run, evaluated.results)
    counters = {name: int(amount) for name, amount in log.cost.items()}
    report = run.method.report(run.facts, counters, log.session_info)
    rounding = _rounding(run, log, others)
    scored = Scored(run.tasks["tasks"], evaluated.samples, evaluated.failures)
    intervals = scored.intervals()
    compared = _compared_runs(run, scored, others, rounding)

    baseline = compared.pop("baseline", None)
    differences: Comparisons = {}
    if baseline is not None:
        differences = baseline.paired
        baseline = baseline.model_copy(update={"paired": {}})
        if run.method.reports_changed_answers:
            report[run.config.method.name] |= _changed_answers(task.metric, differences)

    what_came_out = {
        "status": "failed" if evaluated.failures else "success",
        "cost": cost_of(log),
        "intervals": intervals,
        "paired": differences,
        "baseline": baseline,
        "compared": compared,
        "failed": [asdict(failure) for failure in evaluated.failures],
        "judges": verdicts_of(run.judges, evaluated.samples),
    }
    what_ran = _what_ran(run) | {
        "model": _model_part(run, log),
        "task": task,
        "rounding": rounding.measured,
    }
    return RunBlock(**(what_ran | what_came_out | dict(template) | report))


def _what_ran(run: Run) -> dict[str, Any]:
    """The fields of the block that are known before the run."""
    config = run.config
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": run.run_id,
        "partial": run.partial,
        "method": MethodPart(name=config.method.name, config=asdict(config.method)),
        "seed": _seed(run),
        "overrides": list(config.overrides),
        "config_dirs": config.config_dirs,
        "versions": versions(),
        "statistics": VERSION,
        "samples": run.samples,
    }


def _rounding(run: Run, log: ResponseLog, others: Mapping[str, StoredScores]) -> Rounding:
    """Which values are equal within rounding: by the bound that the base model's run measured, or
    this run if it is compared with none."""
    measured = log.cost.get("peak_rounding")
    if "baseline" in others:
        measured = others["baseline"].rounding
    return Rounding(run.facts.dtype, measured)


def _compared_runs(
    run: Run, scored: Scored, others: Mapping[str, StoredScores], rounding: Rounding
) -> dict[str, OtherRun]:
    """The other runs, each with its scores and the differences to it, by name."""
    compared = {}
    for name, other in others.items():
        compared[name] = OtherRun(
            run_id=other.run_id,
            results=_scores_of(other, run.tasks["tasks"]),
            paired=scored.differences(other, rounding),
        )
    return compared


def _model_part(run: Run, log: ResponseLog) -> ModelPart:
    """The model, and the implementations of experts and attention on which it ran last."""
    facts = run.facts
    environment = dict(log.environment)
    environment.pop("device", None)
    return ModelPart(
        name=facts.name,
        path=facts.path,
        revision=facts.revision,
        commit=facts.commit,
        identified_by="content" if facts.commit is None else "commit",
        family=facts.family,
        dtype=facts.dtype,
        moe_layers=facts.moe_layers,
        experts=facts.experts,
        top_k=facts.top_k,
        **environment,
    )


def _task_part(run: Run, results: Mapping[str, Any]) -> TaskPart:
    """The tasks, and the headline metric of lm-eval's scores (`results`)."""
    tasks = run.tasks["tasks"]
    first = next(iter(tasks))
    settings = run.config.task
    return TaskPart(
        name=settings.name,
        tasks=list(tasks),
        data={name: task.data_source for name, task in tasks.items()},
        metric=headline_of(settings.metric, results.get(first, {})),
    )


def _seed(run: Run) -> int | None:
    """The seed of the method, else that of the training that made the model, else None."""
    if run.method.random:
        return run.config.seed
    training = whole_mapping(training_folder(run.config) / "training.json")
    if training is None:
        return None
    return training.get("seed")


def _scores_of(other: StoredScores, tasks: Iterable[str]) -> Scores:
    """The other run's scores by task; a task that it does not have is left out."""
    results: Scores = {}
    for name in tasks:
        if name in other.results:
            scores = other.results[name]
            results[name] = {metric: scores[metric] for metric in reported(scores)}
    return results


def _changed_answers(metric: str | None, differences: Comparisons) -> dict[str, int | None]:
    """`flipped_to_right` and `flipped_to_wrong`: the numbers of answers that the method changed by
    the headline metric, over all tasks.

    Both are None if no task has scores of 0 or 1.
    """
    changed = []
    for of_task in differences.values():
        difference = of_task.get(metric or "")
        if difference is not None and difference.changed is not None:
            changed.append(difference.changed)
    if not changed:
        return {"flipped_to_right": None, "flipped_to_wrong": None}
    return {
        "flipped_to_right": sum(right for right, _ in changed),
        "flipped_to_wrong": sum(wrong for _, wrong in changed),
    }
