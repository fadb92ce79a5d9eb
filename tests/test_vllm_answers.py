"""The answers that `make test-vllm` compares vLLM with are those of `moe_lab.RoE` today, and vLLM can import what it uses.

Broken by: a change of the noise or of RoE without `python -m integrations.vllm.tests.write_answers`; another name of
something that integrations/vllm imports; an import of transformers in the modules that vLLM's environment imports.
"""

import ast
import json
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from integrations.vllm.tests.cases import ANSWERS, CASES
from integrations.vllm.tests.write_answers import answers_of, context_of, loaded, prompts_of
from tests.support.rounding import approx
from tests.support.tiers import first_fast

PACKAGE = Path(__file__).resolve().parents[1] / "integrations" / "vllm" / "moe_lab_vllm"
FEW, NEW = 1, 8
"""Prompts, and new tokens of each, that are computed again."""

stored = json.loads(ANSWERS.read_text(encoding="utf-8"))
of_model = cache(loaded)


@pytest.mark.parametrize("name", first_fast(CASES))
def test_stored_answers_are_current(name):
    """Of the first prompts; their texts do not depend on the other prompts."""
    model, tokenizer, weights = of_model(CASES[name].model)
    known = stored[name]
    assert known["weights"] == weights
    assert known["prompts"] == prompts_of(CASES[name], tokenizer)
    found = answers_of(CASES[name], known["prompts"][:FEW], NEW, model, tokenizer)
    for kind, values in found.items():
        if kind.endswith("texts"):
            assert values == [text[:NEW] for text in known[kind][:FEW]], kind
        else:
            scored = max(len(prompt) - context_of(prompt) for prompt in known["prompts"][:FEW])
            assert values == approx(known[kind][:FEW], scored), kind


def test_no_case_is_missing():
    assert list(stored) == list(CASES)


def imported() -> list[tuple[str, str]]:
    """(module of moe_lab, name) of every import in the package."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in sorted(PACKAGE.glob("*.py"))]
    nodes: list[Any] = [node for tree in trees for node in ast.walk(tree)]
    statements = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    own = [node for node in statements if node.module.split(".")[0] == "moe_lab"]
    return sorted({(node.module, alias.name) for node in own for alias in node.names})


def test_imported_names_exist():
    names = imported()
    assert names and not [name for module, name in names if not hasattr(import_module(module), name)]


@pytest.mark.slow
def test_imports_need_no_transformers():
    """vLLM's environment has an older transformers than this package needs."""
    modules = sorted({module for module, _ in imported()})
    code = f"import sys; sys.modules['transformers'] = None; import {', '.join(modules)}"
    subprocess.run([sys.executable, "-c", code], check=True)
