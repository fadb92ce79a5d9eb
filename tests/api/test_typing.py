"""Breaks if a type checker takes correct code of a user for wrong, or wrong code for correct."""

import sys
from pathlib import Path

import pytest

from tests.support.sources import PACKAGE

CORRECT = """
from typing import assert_type
from torch import nn
from moe_lab import RoE, override
from moe_lab.api.language_model import GeneratedTexts
from moe_lab.routing import Router, Routing

def unchanged(router: Router, routing: Routing) -> Routing | None:
    return None

def use(roe: RoE, model: nn.Module) -> None:
    assert_type(roe.generate("a"), str)
    assert_type(roe.generate(["a", "b"], max_new_tokens=3), list[str])
    assert_type(roe.generate("a", num_return_sequences=2), str | list[str])
    assert_type(roe.generate("a", return_dict_in_generate=True), GeneratedTexts)
    assert_type(roe.loglikelihood("a", "b"), float)
    assert_type(roe.loglikelihood("a", ["b"]), list[float])
    assert_type(roe.loglikelihood(["a"], ["b"]), list[float])
    with override(model, unchanged) as routers:
        assert_type(routers[0].layer, int)
"""
WRONG = """
import moe_lab
from torch import nn

def use(model: nn.Module) -> None:
    moe_lab.tinny()
    moe_lab.override(model, 3)
"""


@pytest.mark.slow
def test_a_type_checker_knows_the_public_names(tmp_path: Path, monkeypatch):
    from mypy import api

    (tmp_path / "correct.py").write_text(CORRECT)
    (tmp_path / "wrong.py").write_text(WRONG)
    monkeypatch.setenv("MYPYPATH", str(PACKAGE.parent))
    common = [
        "--python-executable",
        sys.executable,
        "--ignore-missing-imports",
        "--follow-imports=silent",
    ]
    assert api.run([*common, str(tmp_path / "correct.py")])[2] == 0, api.run(
        [str(tmp_path / "correct.py")]
    )[0]
    output = api.run([*common, str(tmp_path / "wrong.py")])[0]
    assert 'has no attribute "tinny"' in output
    assert 'incompatible type "int"' in output
