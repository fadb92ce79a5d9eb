"""integrations/vllm: the answers that `make test-vllm` compares vLLM with are those
of `moe_lab.RoE` today, and vLLM can import what it uses.

Broken by: a change of the noise or of RoE without
`python -m integrations.vllm.tests.write_answers`; another name of something that integrations/vllm
imports; an import of transformers in the modules that vLLM's environment imports.
"""

import ast
import json
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from integrations.vllm.moe_lab_vllm.options import Options
from integrations.vllm.tests.cases import ANSWERS, CASES
from integrations.vllm.tests.write_answers import answers_of, context_of, loaded, prompts_of
from tests.support.rounding import approx
from tests.support.tiers import first_fast

PACKAGE = Path(__file__).resolve().parents[1] / "integrations" / "vllm" / "moe_lab_vllm"
FEW = 1
"""Prompts that are answered again."""
NEW = 8
"""New tokens of each."""

stored = json.loads(ANSWERS.read_text(encoding="utf-8"))
of_model = cache(loaded)


@pytest.mark.parametrize("name", first_fast(CASES))
def test_stored_answers_are_current(name):
    """Of the first prompts; their texts do not depend on the other prompts."""
    model, tokenizer, weights = of_model(CASES[name].model)
    stored_answers = stored[name]
    assert stored_answers["weights"] == weights
    assert stored_answers["prompts"] == prompts_of(CASES[name], tokenizer)

    prompts = stored_answers["prompts"][:FEW]
    answers = answers_of(CASES[name], prompts, NEW, model, tokenizer)
    scored_tokens = max(len(prompt) - context_of(prompt) for prompt in prompts)
    for kind, values in answers.items():
        known_values = stored_answers[kind][:FEW]
        if kind.endswith("texts"):
            assert values == [text[:NEW] for text in known_values], kind
        else:
            assert values == approx(known_values, scored_tokens), kind


def test_no_case_is_missing():
    assert list(stored) == list(CASES)


class Import(NamedTuple):
    module: str
    name: str


def imports_of_moe_lab() -> set[Import]:
    """What the package imports of moe_lab."""
    imports = set()
    for file in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            if node.module.split(".")[0] == "moe_lab":
                for alias in node.names:
                    imports.add(Import(node.module, alias.name))
    return imports


def test_imported_names_exist():
    imports = imports_of_moe_lab()
    assert imports
    for module, name in imports:
        assert hasattr(import_module(module), name), f"{module}.{name}"


@pytest.mark.slow
def test_imports_need_no_transformers():
    """vLLM's environment has an older transformers than this package needs."""
    modules = sorted({imported.module for imported in imports_of_moe_lab()})
    code = f"import sys; sys.modules['transformers'] = None; import {', '.join(modules)}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_policy_of_ones_own_is_refused():
    config = SimpleNamespace(additional_config={"policy": "idea.py:f", "roe": {"n": 2}})
    with pytest.raises(ValueError, match="additional_config policy='idea.py:f'.*Use method=policy"):
        Options.of(config)
