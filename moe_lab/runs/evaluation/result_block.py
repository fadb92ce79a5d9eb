"""The `moe_lab` block of results.json: scores with intervals, paired differences, judges and costs."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache, partial
from typing import Any, TypeVar

import torch

from moe_lab.engine.lm import EngineLM
from moe_lab.methods.trained import training_folder
from moe_lab.models.memory import memory_bytes, peak_memory_bytes
from moe_lab.results.identity import SCHEMA_VERSION, versions
from moe_lab.results.logs import ResponseLog
from moe_lab.results.measured import Interval, Paired
from moe_lab.results.rounding import Rounding
from moe_lab.results.samples import (
    Log,
    Values,
    aggregation,
    headline_of,
    logged_values,
    metric_values,
    reported,
)
from moe_lab.results.significance import paired
from moe_lab.results.statistics import VERSION, score_interval
from moe_lab.results.stored_files import whole_mapping
from moe_lab.runs.run import Run
from moe_lab.tasks.judges import Judge
from moe_lab.tasks.judges.toy import ToyJudge
from moe_lab.tasks.metric_boundaries import MetricFailure, reason_of

T = TypeVar("T")

# The cost of a run: time, tokens, peak memory, energy


class CostMeter:
    """Time, energy and the engine's counters since the last reading."""

    def __init__(self, model: EngineLM):
        self._model = model
        self._start = memory_bytes(model.device)
        self._counts = dict(model.cost)
        self._since = time.perf_counter()
        self._energy = energy_joules(model.device)

    def spent(self) -> dict[str, float]:
        """The cost since the last call, and the peaks so far in bytes. Zeros are left out.

        `peak_working_bytes` is the peak minus the memory before the first answer: that of the model, and outside of
        CUDA devices also that of Python and its libraries.
        """
        now, counts = time.perf_counter(), dict(self._model.cost)
        spent: dict[str, float] = {
            name: count - self._counts.get(name, 0) for name, count in counts.items()
        }
        spent["wall_seconds"] = now - self._since
        spent["peak_memory_bytes"] = peak_memory_bytes(self._model.device)
        spent["peak_working_bytes"] = max(0, spent["peak_memory_bytes"] - self._start)
        energy = energy_joules(self._model.device)
        if energy is not None and self._energy is not None:
            spent["energy_joules"] = spent.get("energy_joules", 0) + energy - self._energy
        self._counts, self._since, self._energy = counts, now, energy
        return {name: amount for name, amount in spent.items() if amount}


def energy_joules(device: Any) -> float | None:
    """Energy that a CUDA device has drawn since its driver was loaded, in joules.

    None elsewhere, without the package nvidia-ml-py, and where the device does not report it.
    """
    handle = _nvml_handle(str(device)) if getattr(device, "type", None) == "cuda" else None
    if handle is None:
        return None
    import pynvml

    return pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000


@lru_cache(maxsize=8)
def _nvml_handle(device: str) -> Any:
    with suppress(ImportError):
        import pynvml

        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(
                f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            )
            pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            return handle
    return None


COUNTS = (
    *("tokens_in", "tokens_out", "near_ties", "cut_prompts", "cut_reasoning", "decoded_in_context"),
    *("eos_added", "bos_scored", "no_end_token"),
)


def cost_block(log: ResponseLog) -> dict[str, Any]:
    """The `cost` of results.json, over all sessions of a run. Tokens per second count the tokens in."""
    cost = log.cost
    wall, tokens_in = cost.get("wall_seconds", 0.0), int(cost.get("tokens_in", 0))
    return {
        "wall_seconds": wall,
        "load_seconds": cost.get("load_seconds", 0.0),
        **{name: int(cost.get(name, 0)) for name in COUNTS},
        "rounding": cost.get("peak_rounding"),
        "tokens_per_second": tokens_in / wall if wall else None,
        "peak_memory_bytes": _whole(cost.get("peak_memory_bytes")),
        "peak_working_bytes": _whole(cost.get("peak_working_bytes")),
        "weight_bytes": _whole(cost.get("peak_weight_bytes")),
        "energy_joules": cost.get("energy_joules"),
        "device": log.environment.get("device"),
    }


def _whole(amount: float | None) -> int | None:
    return None if amount is None else int(amount)


# The `judges` block of results.json: the judges, and the number of judged answers of each task


def judges_block(judges: Sequence[Judge], samples: Log) -> dict[str, Any]:
    """{"judges": {name: {"identity", "metrics", "tasks": {task: counts}}}}; empty without judges.

    Counts are {"documents", "judged", "failed": {reason: count}, "empty", "cut": {"prompt" or "answer": count}}.
    """
    if not judges:
        return {}
    judged = {
        task: lines
        for task, lines in samples.items()
        if isinstance(lines[0]["filtered_resps"][0], dict)
    }
    block = {}
    for judge in judges:
        block[judge.name] = {
            "identity": judge.identity,
            "toy": isinstance(judge, ToyJudge),
            "metrics": [f"{metric},none" for metric in judge.metrics],
            "tasks": {task: _counts(judge.name, lines) for task, lines in judged.items()},
        }
    return {"judges": block}


def _counts(judge: str, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    verdicts = [line["filtered_resps"][0][judge] for line in lines]
    failed = Counter(verdict["failed"] for verdict in verdicts if "failed" in verdict)
    return {
        "documents": len(verdicts),
        "judged": sum("scores" in verdict for verdict in verdicts),
        "failed": dict(failed),
        "empty": sum("empty" in verdict for verdict in verdicts),
        "cut": dict(Counter(verdict["cut"] for verdict in verdicts if "cut" in verdict)),
    }


# The `moe_lab` block of results.json (schema version 1). A block that does not apply is absent


def moe_lab_block(
    run: Run,
    evaluated: dict[str, Any],
    cost: dict[str, Any],
    report: dict[str, Any],
    before: Mapping[str, dict[str, Any]],
    failures: list[MetricFailure],
) -> dict[str, Any]:
    """The block that this package adds to lm-eval's result dictionary.

    Args:
        evaluated: the result of `lm_eval.evaluate`, samples included.
        failures: the metrics without a score. Those whose interval or comparison fails are added.
        report: the method's own blocks.
        before: {"run_id", "results", "samples", "rounding"} of each run that this one is compared with, the base
            model's as "baseline".
    """
    facts, config, tasks = run.facts, run.config, run.tasks["tasks"]
    scored = _Scored(tasks, evaluated, failures)
    own = cost.pop("rounding")
    measured = before["baseline"]["rounding"] if "baseline" in before else own
    rounding = Rounding(facts.dtype, measured)
    trained = whole_mapping(training_folder(config) / "training.json") or {}
    block: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "run_id": run.run_id,
        "status": "success",
        "partial": run.partial,
        "model": {
            **{name: getattr(facts, name) for name in ("name", "path", "revision", "commit")},
            "identified_by": "content" if facts.commit is None else "commit",
            **{
                name: getattr(facts, name)
                for name in ("family", "dtype", "moe_layers", "experts", "top_k")
            },
        },
        "method": {"name": config.method.name, "config": asdict(config.method)},
        "task": {
            "name": config.task.name,
            "tasks": list(tasks),
            "data": {name: task.data_source for name, task in tasks.items()},
            "metric": headline_of(
                config.task.metric, evaluated["results"].get(next(iter(tasks)), {})
            ),
        },
        "seed": config.seed if run.method.random else trained.get("seed"),
        "overrides": list(config.overrides),
        **({"config_dirs": config.config_dirs} if config.config_dirs else {}),
        "versions": versions(),
        "statistics": VERSION,
        "rounding": measured,
        "samples": run.samples,
        "cost": cost,
        "intervals": scored.intervals(),
    }
    compared: dict[str, dict[str, Any]] = {}
    for key, other in before.items():
        scores = {name: other["results"][name] for name in tasks if name in other["results"]}
        compared[key] = {
            "run_id": other["run_id"],
            "results": {
                name: {metric: of[metric] for metric in reported(of)} for name, of in scores.items()
            },
            "paired": scored.paired(other, rounding),
        }
    if "baseline" in compared:
        block["paired"] = compared["baseline"].pop("paired")
        block["baseline"] = compared.pop("baseline")
        if run.method.reports_changed_answers:
            # by the headline metric, over all tasks
            own = (of_task.get(block["task"]["metric"], {}) for of_task in block["paired"].values())
            pairs = [pair for pair in own if pair.get("to_right") is not None]
            for way in ("to_right", "to_wrong"):
                count = sum(pair[way] for pair in pairs) if pairs else None
                report[config.method.name][f"flipped_{way}"] = count
    if compared:
        block["compared"] = compared
    if failures:
        block["status"] = "failed"
        block["failed"] = [asdict(failure) for failure in failures]
    return block | report


class _Scored:
    """The values of all documents by task and metric, without metrics that could not be computed.

    A metric whose own aggregation fails on resampled documents has no interval, and joins the failures.
    """

    def __init__(
        self, tasks: Mapping[str, Any], evaluated: Mapping[str, Any], failures: list[MetricFailure]
    ):
        self._tasks, self._failures = tasks, failures
        failed = {(failure.task, failure.metric) for failure in failures}
        self._values: dict[str, Values] = {}
        for name in tasks:
            logged = logged_values(evaluated["samples"][name])
            self._values[name] = {
                metric: values for metric, values in logged.items() if (name, metric) not in failed
            }

    def _computed(self, task: str, metric: str, what: str, compute: Callable[[], T]) -> T | None:
        """What is computed; None with a failure for an error of the metric."""
        try:
            return compute()
        except Exception as error:
            reason = f"{what}: {reason_of(error)}"
            failure = MetricFailure(task=task, metric=metric, document=None, reason=reason)
            self._failures.append(failure)
            return None

    def intervals(self) -> dict[str, dict[str, Interval | None]]:
        """By task and metric."""
        found: dict[str, dict[str, Interval | None]] = {}
        for name, task in self._tasks.items():
            found[name] = {}
            for metric, by_document in self._values[name].items():
                values, aggregate = list(by_document.values()), aggregation(task, metric)
                found[name][metric] = self._computed(
                    name, metric, "its interval", partial(score_interval, values, aggregate)
                )
        return found

    def paired(self, other: Mapping[str, Any], rounding: Rounding) -> dict[str, dict[str, Any]]:
        """The differences to another run, by task and metric; `other` as in `moe_lab_block`."""
        found: dict[str, dict[str, Any]] = {}
        for name, task in self._tasks.items():
            found[name] = {}
            before, scores = metric_values(other["samples"][name]), other["results"].get(name, {})
            words = {sample.document: sample.scored_words for sample in other["samples"][name]}
            for metric, by_document in self._values[name].items():
                documents = [
                    document for document in by_document if document in before.get(metric, {})
                ]
                failed_there = metric in scores and scores[metric] is None
                if not documents or failed_there:
                    continue
                mine = [by_document[document] for document in documents]
                theirs = [before[metric][document] for document in documents]
                of_texts = [words[document] for document in documents]
                difference = self._computed(
                    name,
                    metric,
                    "its difference",
                    partial(_difference, task, metric, mine, theirs, of_texts, rounding),
                )
                if difference is not None:
                    found[name][metric] = difference.to_json()
        return found


def _difference(
    task: Any, metric: str, mine: list[Any], theirs: list[Any], words: list[int], rounding: Rounding
) -> Paired:
    """The difference of a metric between two runs on the same documents."""
    return paired(
        mine,
        theirs,
        aggregation(task, metric),
        lower_is_better=task.higher_is_better().get(metric.partition(",")[0]) is False,
        equal=rounding.equals(mine, theirs, words),
    )
