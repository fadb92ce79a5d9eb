"""Breaks if runs of a hub's model get another id."""

from __future__ import annotations

import pytest

from moe_lab.cli.main import compose_or_explain
from moe_lab.runs.config import to_config
from moe_lab.runs.prepare import prepare
from tests.support.runs import small_data

HUB = {
    "method=roe model=olmoe task=addsub method.skip_layers=0": "06dae058f6fe39956240cd07a047aed62216b9ef165f642bb6f4f4b01c83bf20",
    "method=base model=olmoe model.revision=main task=arc_easy limit=3": "f330ee47528d512155fba7be8ec9d358d707ecb43aaf992b268d5abb79e4b794",
}
"""Run ids by command line: the hub's id and the revision as it is typed count, and no commit."""


@pytest.mark.parametrize("line", HUB)
def test_a_run_of_a_hubs_model_keeps_its_id(line, hub, client, tmp_path):
    data = small_data(tmp_path / "data")
    common = ["device=cpu", "dtype=float32", f"data_dir={data}", f"output_dir={tmp_path}"]
    (cell,) = compose_or_explain([*line.split(), *common])
    assert prepare(to_config(cell)).run_id == HUB[line]
