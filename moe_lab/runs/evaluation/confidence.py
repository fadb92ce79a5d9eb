"""`metrics=confidence`: how well a model's confidence says which of its answers are right."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from lm_eval.tasks.manager import TaskDict

from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_message
from moe_lab.engine.hf import Request
from moe_lab.errors import ConfigError, ResultsError
from moe_lab.models.memory import ModelPool
from moe_lab.results.confidence import (
    BINS,
    difference_of_aurocs,
    difference_of_errors,
    summary,
)
from moe_lab.results.confidence_files import (
    SCHEMA_VERSION,
    TaskAnswers,
    answers_of,
    read_answers,
    with_all,
    write_confidence,
)
from moe_lab.results.response_log import ResponseLog, request_key
from moe_lab.results.samples import Log
from moe_lab.results.scores import headline
from moe_lab.results.statistics import is_binary
from moe_lab.results.versions import versions
from moe_lab.runs.evaluation.run_lm_eval import Evaluated, opened_again
from moe_lab.runs.run import Run
from moe_lab.tasks.judges import is_judged

Choices = Sequence[str]
COMPARED_BY: dict[str, Callable[[np.ndarray, Choices], np.ndarray]] = {
    "acc": lambda scores_C, choices: scores_C,
    "acc_norm": lambda scores_C, choices: scores_C / [len(choice) for choice in choices],
    "acc_bytes": lambda scores_C, choices: scores_C / [len(choice.encode()) for choice in choices],
}
"""What each of lm-eval's accuracies maximizes over the C choices, from their log-likelihoods."""


def check(config: Config, tasks: TaskDict) -> None:
    """Raise ConfigError for tasks without an answer whose confidence is known: whole texts, judged
    answers, several answers to a document, choices under another metric; and for predict_only."""
    if config.predict_only:
        raise ConfigError(
            "metrics=confidence needs scores, and predict_only=true computes none. Leave one out."
        )
    for name, task in tasks["tasks"].items():
        reason = _obstacle(config, task)
        if reason is not None:
            raise ConfigError(f"metrics=confidence: {name} {reason}. Leave it out.")


def _obstacle(config: Config, task: Any) -> str | None:
    """Why a task's answers have no confidence; None if they have."""
    if is_judged(task):
        return "is judged, so that no answer is right or wrong"
    kind = task.OUTPUT_TYPE
    if kind not in ("multiple_choice", "generate_until"):
        return "has neither choices nor generated answers"
    is_alone = config.samples_per_document is not None or (task.get_config("repeats") or 1) == 1
    if kind == "generate_until" and not is_alone:
        return "evaluates several answers together, which have no probability in common"
    metrics = list(task.aggregation())
    asked = (config.task.metric or "").partition(",")[0]
    metric = asked if asked in metrics else metrics[0]
    if kind == "multiple_choice" and metric not in COMPARED_BY:
        known = ", ".join(COMPARED_BY)
        return f"has choices, which {metric} does not compare by probability (but {known})"
    return None


def measure(run: Run, models: ModelPool, evaluated: Evaluated) -> None:
    """Compute ECE and AUROC of a run's answers, and write confidence.json and confidence.jsonl.

    Generated answers whose log-probability is not stored are asked again.
    """
    by_task: dict[str, TaskAnswers] = {}
    metrics: dict[str, str] = {}
    asked_again = 0
    for name, task in run.tasks["tasks"].items():
        key = headline(evaluated.results[name], run.config.task.metric)
        metrics[name] = key
        samples = _samples_of(evaluated.samples, name, key)
        right = []
        for sample in samples:
            right.append(_right_answers(task, sample, key.partition(",")[0]))
        if not all(is_binary(values) for values in right):
            print_message(f"metrics=confidence: {key} of {name} is not 0 or 1 for each answer.")
            continue
        if task.OUTPUT_TYPE == "multiple_choice":
            confidence = [[_of_choice(task, sample, key.partition(",")[0])] for sample in samples]
        else:
            confidence, asked = _of_texts(run, models, samples)
            asked_again += asked
        by_task[name] = _joined(samples, confidence, right)
    blocks: dict[str, Any] = dict.fromkeys(run.tasks["tasks"])
    for name, of_task in with_all(by_task).items():
        metric = metrics.get(name) or "/".join(dict.fromkeys(metrics.values()))
        blocks[name] = {"metric": metric} | summary(of_task.answers)
    content = {
        "schema_version": SCHEMA_VERSION,
        "run_id": run.run_id,
        "commit": run.facts.commit,
        "versions": versions(),
        "metric": run.config.task.metric,
        "bins": BINS,
        "tasks": blocks,
        "differences": _differences(run, by_task),
        "asked_again": asked_again,
    }
    write_confidence(run.folder, content, by_task)


def _samples_of(samples: Log, task: str, key: str) -> list[Mapping[str, Any]]:
    """The samples of a task that its headline metric (`metric,filter`) scores."""
    filter_name = key.partition(",")[2]
    return [sample for sample in samples[task] if sample["filter"] == filter_name]


def _of_choice(task: Any, sample: Mapping[str, Any], metric: str) -> float:
    """The probability of the chosen choice: the largest of the softmax of what `metric`
    compares."""
    choices = task.doc_to_choice(sample["doc"])
    responses = sample["resps"][: len(choices)]  # acc_mutual_info asks for each choice alone, too
    scores_C = np.array([response[0][0] for response in responses], dtype=float)
    compared_C = COMPARED_BY[metric](scores_C, choices)
    return float(1 / np.exp(compared_C - compared_C.max()).sum())


def _right_answers(task: Any, sample: Mapping[str, Any], metric: str) -> list[Any]:
    """Whether each answer to a document is right, by the task's metric: 0 or 1, or another
    value."""
    several = getattr(task, "several_answers", None)
    if several is None:
        return [sample[metric]]
    [answers] = sample["filtered_resps"]
    return [several.is_right(sample["doc"], answer) for answer in answers]


def _of_texts(
    run: Run, models: ModelPool, samples: Sequence[Mapping[str, Any]]
) -> tuple[list[list[float]], int]:
    """The confidence of each generated answer to each sample's document; and how many answers were
    asked again."""
    requests: dict[str, Request] = {}
    keys = []
    for sample in samples:
        keys_of_document = []
        for repeat in range(len(sample["resps"][0])):
            request = Request(tuple(sample["arguments"][0]), repeat)
            key = request_key("generate_until", *request)
            requests[key] = request
            keys_of_document.append(key)
        keys.append(keys_of_document)
    log = ResponseLog(run.folder / "responses.jsonl", run.answers_header)
    try:
        missing = {}
        for key, request in requests.items():
            if key not in log.log_probabilities:
                missing[key] = request
        if missing:
            _ask_again(run, models, log, missing)
    finally:
        log.close()
    confidence = []
    for keys_of_document in keys:
        confidence.append([math.exp(log.log_probabilities[key]) for key in keys_of_document])
    return confidence, len(missing)


def _joined(
    samples: Sequence[Mapping[str, Any]],
    confidence: Sequence[Sequence[float]],
    right: Sequence[Sequence[float]],
) -> TaskAnswers:
    """The answers to all documents of a task, from those to each."""
    documents: list[int] = []
    all_confidence: list[float] = []
    all_right: list[float] = []
    for sample, confidence_of, right_of in zip(samples, confidence, right, strict=True):
        documents += [sample["doc_id"]] * len(right_of)
        all_confidence += confidence_of
        all_right += right_of
    return answers_of(documents, all_confidence, all_right)


def _ask_again(
    run: Run, models: ModelPool, log: ResponseLog, requests: Mapping[str, Request]
) -> None:
    """Generate stored answers again, and store their log-probabilities.

    Raises ConfigError for a model that lm-eval's own code runs, and ResultsError where an answer is
    another one now.
    """
    print_message(
        f"{run.folder.name}: {len(requests):,} stored answers have no log-probability, and are "
        "generated again"
    )
    keys = list(requests)
    changed = 0

    def store(index: int, answer: Any) -> None:
        nonlocal changed
        if answer == log[keys[index]]:
            log.answer(keys[index], answer, {})
        else:
            changed += 1

    with opened_again(run, models) as lm:
        if lm.engine is None:
            raise ConfigError(
                f"metrics=confidence: lm-eval's own code runs {type(lm.model).__name__}, and tells "
                "no probability of generated tokens.\nUse a task with choices, or leave it out."
            )
        lm.answer("generate_until", list(requests.values()), store)
    if changed:
        raise ResultsError(
            f"metrics=confidence: {changed:,} of {len(requests):,} stored answers are others when "
            "they are generated again (another machine or version).\nrerun=true computes all anew."
        )


def _differences(run: Run, by_task: Mapping[str, TaskAnswers]) -> dict[str, Any]:
    """The differences to the runs that this one is compared with, by name and task."""
    differences: dict[str, Any] = {}
    for name, compared_run in run.compared_runs.items():
        if compared_run.confidence() is None:
            continue
        others = with_all(read_answers(compared_run.folder))
        differences[name] = {}
        for task, of_task in with_all(by_task).items():
            other = others.get(task)
            if other is None or other.documents != of_task.documents:
                continue
            differences[name][task] = {
                "ece": difference_of_errors(of_task.answers, other.answers).to_json(),
                "auroc": difference_of_aurocs(of_task.answers, other.answers).to_json(),
            }
    return differences
