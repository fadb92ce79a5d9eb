"""Breaks if expert metrics do not reach W&B, under other names, or with another layer's values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moe_lab.metrics.stored import StoredMetrics
from moe_lab.reports.expert import layer_frame, logged_values
from tests.support.command import run_forked
from tests.support.wandb_log import Logged


@pytest.mark.slow
@pytest.mark.parametrize("method", ["base", "c2r"])
def test_expert_metrics_can_be_read_back(method, tmp_path):
    keys = f"method={method} task=toy_choice limit=3 metrics=expert logger=wandb baseline=false"
    own = ["method.dataset_size=8"] if method == "c2r" else []
    ended = run_forked(tmp_path, *keys.split(), *own, f"output_dir={tmp_path}", WANDB_MODE="offline")
    assert ended.code == 0, ended.err
    folder = Path(ended.out.splitlines()[-1]).parent
    found = json.loads((folder / "expert_metrics.json").read_text())
    (run,) = (Logged(path) for path in (tmp_path / "wandb").glob("offline-run-*"))
    summary = run.summary["summary"]
    scores = logged_values(StoredMetrics(found))
    assert scores["expert/load_balance/all"] == found["load_balance"]["all"]["value"]
    assert ("expert/specialization/toy_choice/acc,none" in scores) == (method == "base")
    for key, value in scores.items():
        assert summary[key] == pytest.approx(value), key
    table = run.table("expert/layers")
    frame = layer_frame(StoredMetrics(found))
    assert table["columns"] == list(frame.columns) and len(table["data"]) == len(frame) == 2 * 2 * 8
    last = found["collaboration"]["prefill"]["layers"][7]
    assert table["data"][-1] == pytest.approx(
        ["collaboration", "prefill", 7, last["value"], *last["ci95"], last["maximum"]]
    )
    images = run.folder / "files" / "media" / "images" / "figures"
    for name in ("coactivation", "selections"):
        assert list(images.glob(f"{name}*.png"))
        assert run.table(f"tables/{name}")["data"]
