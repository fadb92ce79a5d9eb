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
from tests.support.tiers import by_family

FAMILIES = sorted(ZOO.keys() - {"dbrx", "gpt_oss", "jetmoe"})
"""All but those for which transformers has no plan."""
HALVED = ("olmoe", "mixtral", "deepseek")
"""Families with little beside attention and experts."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Results of either process, by family."""
    folder = tmp_path_factory.mktemp("tp")
    for family in FAMILIES:
        small_model(family).save_pretrained(folder / family)
        make_tokenizer().save_pretrained(folder / family)
    log = folder / "ranks.log"
    codes = fork_ranks(measure_all, folder, [folder / family for family in FAMILIES], log=log)
    assert codes == [0, 0], log.read_text()
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("family", by_family(FAMILIES))
def test_two_processes_are_one_model(family, ranks):
    model = small_model(family)
    with torch.no_grad():
        logits = model(torch.arange(12)[None]).logits[0]
    expected = {str(i): answer for i, answer in roe_answers(model).items()}
    whole = sum(parameter.numel() for parameter in model.parameters())
    for rank in ranks:
        found = rank[family]
        assert found["local"] < (0.6 if family in HALVED else 1) * whole, "the weights are split, not copied"
        torch.testing.assert_close(torch.tensor(found["logits"]), logits, rtol=1e-5, atol=5e-5)
        assert found["roe"] == rounding.approx(expected)
    assert ranks[0][family]["roe"] == ranks[1][family]["roe"], "bit for bit: both go on with the same tokens"
