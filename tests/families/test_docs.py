"""The table of families in docs/models.md is what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from moe_lab.engine.forward.layers import runs_on_kv_cache
from moe_lab.routing.families import FAMILIES, UNSUPPORTED, every_layer
from tests.support.models import small_model

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def row(family) -> str:
    model = small_model(family.model_type)
    shared = any(
        re.fullmatch(r"shared_(experts?|mlp)", name.split(".")[-1]) for name, _ in model.named_modules()
    )
    cells = (
        family.name,
        f"`{family.model_type}`",
        family.rule.text,
        family.rule.noise + (" + bias" if family.bias else ""),
        "yes" if shared else "",
        "all" if family.moe_layers is every_layer else "as configured",
        "KV cache" if runs_on_kv_cache(model) else "recurrent",
    )
    return f"| {' | '.join(cells)} |"


@pytest.mark.slow
def test_every_family_is_described_as_it_is():
    table = "\n".join(row(family) for family in FAMILIES)
    assert table in PAGE.read_text(), f"the table should be\n{table}"


def test_families_that_cannot_be_routed_are_named_with_the_reason():
    text = " ".join(PAGE.read_text().split())
    assert all(f"`{model_type}`: {reason}" in text for model_type, reason in UNSUPPORTED.items())
