"""Breaks if what is written into results.json is read as something else, or if its keys move."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from moe_lab.results.atomic import plain
from moe_lab.results.measured import Paired
from moe_lab.results.model import RunBlock, RunResult
from moe_lab.results.reading import stored_results
from moe_lab.results.stored_files import DamagedError
from tests.support.stored_results import block_of, result_with

DIFFERENCE = {
    "n": 4,
    "difference": 0.25,
    "ci95": [-0.5, 1.0],
    "p_mcnemar": 1.0,
    "p_randomization": None,
    "to_right": 1,
    "to_wrong": 0,
    "equal": False,
}
WRITTEN: dict[str, Any] = {
    "schema_version": 1,
    "run_id": "r",
    "status": "failed",
    "partial": True,
    "model": {
        "name": "tiny",
        "path": None,
        "revision": None,
        "commit": None,
        "identified_by": "content",
        "family": "olmoe",
        "dtype": "float32",
        "moe_layers": 8,
        "experts": 16,
        "top_k": 4,
        "experts_implementation": "weights_first",
        "attn_implementation": "sdpa",
    },
    "method": {"name": "c3po", "config": {"name": "c3po", "space": {"scale": 1.0}}},
    "task": {"name": "t", "tasks": ["t"], "data": {"t": "generated"}, "metric": "acc,none"},
    "seed": None,
    "overrides": ["method=c3po"],
    "config_dirs": ["mine"],
    "versions": {"moe_lab": "1.0.0"},
    "statistics": 4,
    "rounding": None,
    "samples": {"t": [0, 1, 2, 3]},
    "cost": {
        "wall_seconds": 2.0,
        "load_seconds": 0.5,
        "tokens_in": 40,
        "tokens_out": 7,
        "near_ties": 0,
        "cut_prompts": 0,
        "cut_reasoning": 0,
        "decoded_in_context": 0,
        "eos_added": 0,
        "bos_scored": 0,
        "no_end_token": 0,
        "tokens_per_second": 20.0,
        "peak_memory_bytes": 2**20,
        "peak_working_bytes": None,
        "weight_bytes": 2**10,
        "energy_joules": None,
        "device": "cpu",
    },
    "intervals": {"t": {"acc,none": [0.25, 0.75], "odd,none": None}},
    "paired": {"t": {"acc,none": DIFFERENCE}},
    "baseline": {"run_id": "b", "results": {"t": {"acc,none": 0.5}}},
    "compared": {
        "full": {
            "run_id": "f",
            "results": {"t": {"acc,none": 0.5}},
            "paired": {"t": {"acc,none": dict(DIFFERENCE)}},
        }
    },
    "failed": [{"task": "t", "metric": "odd,none", "document": 1, "reason": "no number"}],
    "untuned": True,
    "tuning": {"study": "s"},
    "c3po": {"k": 3, "upper_bound": True},
    "chat_template": {"sha256": "0", "plain": False},
    "judges": {
        "toy": {
            "identity": {"version": 1},
            "toy": True,
            "metrics": ["toy,none"],
            "tasks": {"t": {"documents": 4, "judged": 4, "failed": {}, "empty": 0, "cut": {}}},
        }
    },
}
"""A block with every key, in the order of the file."""


def test_a_block_is_written_as_it_was_read():
    block = RunBlock.model_validate(WRITTEN)
    assert json.dumps(plain(block)) == json.dumps(WRITTEN)
    assert block.paired["t"]["acc,none"] == Paired.model_validate(DIFFERENCE)
    assert block.report == {"k": 3, "upper_bound": True}
    assert block.is_reported("upper_bound")
    assert not block.is_reported("sha256"), "chat_template is no report of the method"


def test_a_part_that_does_not_apply_is_absent():
    """Broken by an empty `compared` or `judges` in the file of a run of the base model."""
    of_base = {
        "paired": {},
        "baseline": None,
        "compared": {},
        "judges": {},
        "failed": [],
        "config_dirs": [],
        "untuned": False,
        "tuning": {},
        "chat_template": {},
    }
    written = plain(RunBlock.model_validate(WRITTEN | of_base))
    assert not of_base.keys() & written.keys()
    assert {"seed": None, "rounding": None}.items() <= written.items(), "a missing value is null"


def test_an_earlier_version_wrote_less_and_other_things():
    run = result_with(
        {"t": {"acc,none": 0.5}},
        cost={"tokens_in": 40.0, "requests": 4},
        intervals={"t": {"acc,none": [None, 0.75]}},
        paired={"t": {"acc,none": {"difference": 0.25, "ci95": [None, None], "better": 1}}},
        baseline={"run_id": "b"},
    )
    assert run.cost.tokens_in == 40.0
    assert run.cost.tokens_out is None
    assert run.cost.known() == {"tokens_in": 40.0, "requests": 4}
    assert run.interval("t", "acc,none") is None
    assert run.difference("t", "acc,none") == Paired(difference=0.25)
    assert run.difference("t", "f1,none") == run.difference("t", "acc,none", "full") == Paired()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("model.name", None),
        ("cost.device", 5),
        ("baseline.run_id", ""),
        ("paired.t.acc,none.difference", "0.25"),
        ("paired.t.acc,none.ci95", [0.5]),
        ("compared.full.paired.t.acc,none.to_right", 0.5),
        ("judges.toy.tasks.t.judged", "4"),
    ],
)
def test_a_damaged_part_is_named(place, value):
    block = copy.deepcopy(WRITTEN)
    part = block
    *names, last = place.split(".")
    for name in names:
        part = part[name]
    part[last] = value
    with pytest.raises(DamagedError, match=rf"results\.json is damaged: moe_lab\.{place}"):
        stored_results({"results": {}, "moe_lab": block}, Path("results.json"))


def test_the_content_of_a_file_is_kept():
    """Broken by a copy in which numbers have another type or keys another order."""
    content = {"n-shot": {"t": 0}, "results": {"t": {}}, "moe_lab": block_of(seed=3), "date": 1}
    run = RunResult(content)
    assert dict(run.content) == content
    assert list(run.content) == list(content)
