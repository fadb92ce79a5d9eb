"""A model split over two processes answers as one in one process does, with the same noise in both.

Broken by: a router whose logits are partial sums, noise that depends on the process, rows that reach split weights.
"""

import json
import os

import pytest
import torch
from torch.distributed.tensor import DTensor

from tests.support import rounding
from tests.support.ensembles import roe_answers
from tests.support.families import ZOO
from tests.support.models import load_folder, save_model, small_config, small_model
from tests.support.ranks import fork_ranks

WITHOUT_A_PLAN = {"dbrx", "gpt_oss", "jetmoe", "moe_design"}
HALVED = ("mixtral", "deepseek")
"""Families with little but attention and experts."""
PARTS = ("mlp", "expert", "feed_forward", "block", "mixer")
"""What names the modules of an MoE layer in plans."""


def plan_of_experts(family):
    """How transformers splits the MoE layers of a family."""
    plan = small_config(family).base_model_tp_plan
    return frozenset((name, way) for name, way in plan.items() if any(part in name for part in PARTS))


@pytest.fixture(scope="module")
def families():
    """One family of each plan for MoE layers, and HALVED."""
    others = sorted(ZOO.keys() - WITHOUT_A_PLAN - {*HALVED})
    return list({plan_of_experts(family): family for family in [*reversed(others), *HALVED]}.values())


@pytest.fixture
def ranks(tmp_path, families):
    """Results of either process, by family."""
    for family in families:
        save_model(small_model(family), tmp_path / family)
    log = tmp_path / "ranks.log"
    codes = fork_ranks(measure_all, tmp_path, [tmp_path / family for family in families], log=log)
    assert codes == [0, 0], log.read_text()
    return [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]


def measured(folder):
    """This rank's results for one model."""
    loaded = load_folder(folder, "float32", tp_plan="auto").model
    local = sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in loaded.parameters())
    with torch.no_grad():
        logits = loaded(torch.arange(12)[None]).logits
    return {"local": local, "logits": logits[0].tolist(), "roe": roe_answers(loaded)}


def measure_all(out, folders):
    """Write this process's results, by the folder's name."""
    results = {folder.name: measured(folder) for folder in folders}
    (out / f"rank{os.environ['RANK']}.json").write_text(json.dumps(results))


def check(family, ranks):
    model = small_model(family)
    with torch.no_grad():
        logits = model(torch.arange(12)[None]).logits[0]
    expected = {str(i): answer for i, answer in roe_answers(model).items()}
    whole = sum(parameter.numel() for parameter in model.parameters())
    share = 0.6 if family in HALVED else 1
    for rank in ranks:
        found = rank[family]
        assert found["local"] < share * whole, "the weights are split, not copied"
        torch.testing.assert_close(torch.tensor(found["logits"]), logits, rtol=1e-5, atol=5e-5)
        assert found["roe"] == rounding.approx(expected)
    assert ranks[0][family]["roe"] == ranks[1][family]["roe"], "bit for bit: both go on with the same tokens"


@pytest.mark.slow
def test_two_processes_are_one_model(ranks, families, subtests):
    """One test for all families, as the processes are started once."""
    assert len(families) > 12 and {*families} >= {*HALVED}
    for family in families:
        with subtests.test(family):
            check(family, ranks)
