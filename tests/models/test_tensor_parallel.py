"""A model split over two processes answers as one in one process does, with the same noise in both.

Broken by: a router whose logits are partial sums, noise that depends on the process, rows that reach split weights.
"""

from __future__ import annotations

import json

import pytest
import torch

from tests.support import rounding
from tests.support.families import ZOO
from tests.support.models import make_tokenizer, small_model
from tests.support.ranks import fork_ranks
from tests.support.roe_answers import roe_answers
from tests.support.tensor_parallel_rank import measure_all

FAMILIES = sorted(ZOO.keys() - {"dbrx", "gpt_oss", "jetmoe", "moe_design"})
"""All but those without a plan."""
HALVED = ("olmoe", "mixtral", "deepseek")
"""Families with little but attention and experts."""


@pytest.fixture
def ranks(tmp_path):
    """Results of either process, by family."""
    for family in FAMILIES:
        small_model(family).save_pretrained(tmp_path / family)
        make_tokenizer().save_pretrained(tmp_path / family)
    log = tmp_path / "ranks.log"
    codes = fork_ranks(measure_all, tmp_path, [tmp_path / family for family in FAMILIES], log=log)
    assert codes == [0, 0], log.read_text()
    return [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]


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
def test_two_processes_are_one_model(ranks, subtests):
    """One test for all families, as the processes are started once."""
    for family in FAMILIES:
        with subtests.test(family):
            check(family, ranks)
