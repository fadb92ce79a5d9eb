"""The `moe_lab` block of results.json: scores with intervals, paired differences, judges and costs."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import torch

from moe_lab.engine.lm import EngineLM
from moe_lab.methods.trained import training_folder
from moe_lab.models.memory import memory_bytes, peak_memory_bytes
from moe_lab.results.identity import SCHEMA_VERSION, versions
from moe_lab.results.logs import ResponseLog
from moe_lab.results.rounding import Rounding
from moe_lab.results.samples import (
    Log,
    Sample,
    Values,
    aggregation,
    headline_of,
    logged_values,
    metric_values,
    reported,
)
from moe_lab.results.significance import paired
from moe_lab.results.statistics import VERSION, interval
from moe_lab.results.stored_files import whole_mapping
from moe_lab.runs.run import Run
from moe_lab.tasks.judges import Judge
from moe_lab.tasks.judges.toy import ToyJudge

# The cost of a run: time, tokens, peak memory, energy


class Meter:
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
        spent: dict[str, float] = {name: count - self._counts.get(name, 0) for name, count in counts.items()}
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
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
            pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            return handle
    return None


COUNTS = (
    *("tokens_in", "tokens_out", "near_ties", "cut_prompts", "cut_reasoning"),
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

    Counts are {"documents", "judged", "failed": {reason: count}}.
    """
    if not judges:
        return {}
    judged = {
        task: lines for task, lines in samples.items() if isinstance(lines[0]["filtered_resps"][0], dict)
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
    }


# The `moe_lab` block of results.json (schema version 1). A block that does not apply is absent


def moe_lab_block(
    run: Run,
    evaluated: dict[str, Any],
    cost: dict[str, Any],
    report: dict[str, Any],
    before: Mapping[str, dict[str, Any]],
) -> dict[str, Any]:
    """The block that this package adds to lm-eval's result dictionary.

    Args:
        evaluated: the result of `lm_eval.evaluate`, samples included.
        report: the method's own blocks.
        before: {"run_id", "results", "samples", "rounding"} of each run that this one is compared with, the base
            model's as "baseline".
    """
    facts, config, tasks = run.facts, run.config, run.tasks["tasks"]
    values = {name: logged_values(evaluated["samples"][name]) for name in tasks}
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
            **{name: getattr(facts, name) for name in ("family", "dtype", "moe_layers", "experts", "top_k")},
        },
        "method": {"name": config.method.name, "config": asdict(config.method)},
        "task": {
            "name": config.task.name,
            "tasks": list(tasks),
            "data": {name: task.data_source for name, task in tasks.items()},
            "metric": headline_of(config.task.metric, evaluated["results"].get(next(iter(tasks)), {})),
        },
        "seed": config.seed if run.method.random else trained.get("seed"),
        "overrides": list(config.overrides),
        **({"config_dirs": config.config_dirs} if config.config_dirs else {}),
        "versions": versions(),
        "statistics": VERSION,
        "rounding": measured,
        "samples": run.samples,
        "cost": cost,
        "intervals": {
            name: {
                metric: interval(list(by_document.values()), aggregation(task, metric))
                for metric, by_document in values[name].items()
            }
            for name, task in tasks.items()
        },
    }
    compared: dict[str, dict[str, Any]] = {}
    for key, other in before.items():
        scores = {name: other["results"][name] for name in tasks if name in other["results"]}
        compared[key] = {
            "run_id": other["run_id"],
            "results": {name: {metric: of[metric] for metric in reported(of)} for name, of in scores.items()},
            "paired": {
                name: _paired(task, values[name], other["samples"][name], rounding)
                for name, task in tasks.items()
            },
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
    return block | report


def _paired(task: Any, values: Values, samples: Sequence[Sample], rounding: Rounding) -> dict[str, Any]:
    before = metric_values(samples)
    words = {sample.document: sample.scored_words for sample in samples}
    compared = {}
    for metric, by_document in values.items():
        documents = [document for document in by_document if document in before.get(metric, {})]
        if documents:
            mine, theirs = (
                [run[document] for document in documents] for run in (by_document, before[metric])
            )
            lower_is_better = task.higher_is_better().get(metric.partition(",")[0]) is False
            difference = paired(
                mine,
                theirs,
                aggregation(task, metric),
                lower_is_better=lower_is_better,
                equal=rounding.equals(mine, theirs, [words[document] for document in documents]),
            )
            compared[metric] = difference.to_json()
    return compared
