"""Metrics that a method, a model or a task does not have are refused before weights load; one line says what to use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import run_command

ROE = ["method=roe", "task=toy_text"]


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        (["method=base", "task=toy_text"], "Use method=roe"),
        (["method=icl", "task=toy_choice"], "method=icl proposes none"),
        ([*ROE, "method.cache=standard"], "method.cache=standard computes others"),
        ([*ROE, "method.weights=perturbed"], "method.weights=perturbed computes others"),
        ([*ROE, "method.include_clean=false"], "method.include_clean=False computes others"),
        (
            [*ROE, "method.adaptive=margin", "method.bands=[[0.5,8]]"],
            "method.adaptive=margin computes others",
        ),
        ([*ROE, "method.n=1"], "method.n=1 proposes no route"),
        (["method=roe"], "toy_math are generated"),
        (["method=roe", "task=lm_eval", "task.name=[toy_text,toy_math]"], "toy_math are generated"),
        ([*ROE, "metrics=counterfactal"], "Did you mean 'counterfactual'"),
    ],
)
def test_what_proposes_no_routes_is_refused_before_weights_load(
    typed: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], loads: list[str]
) -> None:
    ended = run_command(capsys, "metrics=counterfactual", *typed, f"output_dir={tmp_path / 'out'}")
    assert ended.code == 2
    assert named in ended.err
    assert loads == []
    assert not (tmp_path / "out").exists()
