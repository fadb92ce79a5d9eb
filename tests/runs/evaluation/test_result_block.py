"""Breaks if a stored difference has the other sign or is over other documents than both runs have,
if a cost is counted from the wrong moment, or if energy is invented where none can be read."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from lm_eval.api.metrics import mean, weighted_perplexity

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.methods.roe import RoE
from moe_lab.models.memory import reset_peak_memory
from moe_lab.results.atomic import plain
from moe_lab.results.samples import Sample
from moe_lab.runs.evaluation import cost
from moe_lab.runs.evaluation.result_block import run_block
from moe_lab.runs.evaluation.run_lm_eval import Evaluated
from moe_lab.runs.evaluation.scored import StoredScores
from tests.support.lm_eval_logs import samples_of
from tests.support.runs import facts


class Task:
    data_source = "generated"

    def aggregation(self) -> dict[str, Any]:
        return {"acc": mean, "flagged": mean, "bleu": mean, "word_perplexity": weighted_perplexity}

    def higher_is_better(self) -> dict[str, bool]:
        return {"acc": True, "flagged": False, "bleu": True, "word_perplexity": False}


def stored(
    results_a: dict[str, Any], results_b: dict[str, Any], name: str = "baseline"
) -> dict[str, Any]:
    """The block of a run with these values of each metric, compared with a run of those."""
    of_run = {
        "run_id": "mine",
        "tasks": {"tasks": {"t": Task()}},
        "samples": {},
        "partial": False,
        "judges": (),
    }
    config = Config(method=RoE.Config(), task=TaskConfig(name="t"))
    method = SimpleNamespace(
        random=False, reports_changed_answers=True, report=lambda *arguments: {"roe": {}}
    )
    run: Any = SimpleNamespace(**of_run, facts=facts(), config=config, method=method)
    samples = {"t": list(map(Sample.of, samples_of(**results_b)))}
    compared_scores = StoredScores(
        run_id="theirs", results={"t": {}}, samples=samples, rounding=None
    )
    scores = {f"{key},none": 0.0 for key in results_a}
    evaluated = Evaluated({"results": {"t": scores}}, {"t": samples_of(**results_a)}, [])
    log: Any = SimpleNamespace(cost={}, environment={}, session_info={})
    block = plain(run_block(run, evaluated, log, {name: compared_scores}, {}))
    assert isinstance(block, dict)
    return block


@pytest.mark.parametrize(("metric", "to_right"), [("acc", 3), ("flagged", 1)])
def test_a_difference_is_this_run_minus_the_other_of_the_documents_of_both(metric, to_right):
    """Three documents go from 0 to 1 and one from 1 to 0.

    This is better for an accuracy, and worse where 1 is a flagged answer.
    """
    block = stored({metric: [1.0, 1, 1, 0, 1, 0]}, {metric: [0.0, 0, 0, 1, 1, 0]})
    paired = block["paired"]["t"][f"{metric},none"]
    assert paired["n"] == 6
    assert paired["difference"] == pytest.approx(1 / 3)
    assert (paired["to_right"], paired["to_wrong"]) == (to_right, 4 - to_right)
    assert block["roe"] == {"flipped_to_right": to_right, "flipped_to_wrong": 4 - to_right}
    low, high = paired["ci95"]
    assert low < 1 / 3 < high
    assert high - 1 / 3 < 1
    block = stored({"acc": [1.0, 1, 0]}, {"acc": [0.0]})
    assert block["paired"]["t"]["acc,none"]["n"] == 1
    assert block["paired"]["t"]["acc,none"]["difference"] == 1


@pytest.mark.parametrize("name", ["baseline", "full"])
def test_the_sign_is_the_same_for_other_scores_and_other_runs(name):
    bleu = [10.0 + number % 3 for number in range(20)]
    logs = [(-9.0 - number % 3, 5) for number in range(20)]
    results_a = {"bleu": bleu, "word_perplexity": logs}
    results_b = {
        "bleu": [value - 2 for value in bleu],
        "word_perplexity": [(log - 5, n) for log, n in logs],
    }
    block = stored(results_a, results_b, name)
    if name != "baseline":
        block = block["compared"][name]
    paired = block["paired"]["t"]
    assert paired["bleu,none"]["difference"] == pytest.approx(2)
    assert paired["bleu,none"]["ci95"][0] > 0
    assert paired["word_perplexity,none"]["difference"] < 0
    assert paired["word_perplexity,none"]["ci95"][1] < 0


# The cost


def test_working_memory_is_what_answering_added():
    """Broken by memory that an earlier run freed and the process still holds,
    and by counting the model."""
    held = [bytearray(b"x" * 2**20) for _ in range(64)]
    model: Any = SimpleNamespace(cost={}, device=SimpleNamespace(type="cpu"))
    freed = [bytes(60_000) + bytes([index % 256]) for index in range(3000)]
    del freed
    reset_peak_memory(None)
    meter = cost.CostMeter(model)
    block = b"x" * (100 * 2**20)
    del block
    spent = meter.spent()
    assert 90 * 2**20 < spent["peak_working_bytes"] < 150 * 2**20
    assert spent["peak_memory_bytes"] > spent["peak_working_bytes"] + len(held) * 2**20


def test_energy_is_the_difference_of_two_readings(monkeypatch):
    readings = iter([1000, 5000, 9500])
    nvml = SimpleNamespace(nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(readings))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(cost, "_nvml_handle", lambda device: "handle")
    monkeypatch.setattr(cost, "peak_memory_bytes", lambda device: 1)
    monkeypatch.setattr(cost, "memory_bytes", lambda device: 1)
    model: Any = SimpleNamespace(cost={}, device=SimpleNamespace(type="cuda"))
    meter = cost.CostMeter(model)
    assert meter.spent()["energy_joules"] == 4.0
    assert meter.spent()["energy_joules"] == 4.5


def test_what_an_engine_counts_is_stored():
    counts = {
        "tokens_in": 40.0,
        "tokens_out": 7.0,
        "near_ties": 3.0,
        "cut_prompts": 2.0,
        "wall_seconds": 4.0,
    }
    log: Any = SimpleNamespace(cost=counts, environment={})
    block = cost.cost_of(log).to_json()
    assert [block[key] for key in ("tokens_in", "tokens_out", "near_ties", "cut_prompts")] == [
        40,
        7,
        3,
        2,
    ]
    assert block["tokens_per_second"] == 10.0


@pytest.mark.parametrize(
    ("environment", "device"), [({"device": "cuda:1"}, "cuda:1"), ({}, None)], ids=str
)
def test_a_cost_names_the_device_of_the_answers(environment, device):
    log: Any = SimpleNamespace(cost={}, environment=environment)
    assert cost.cost_of(log).to_json()["device"] == device
