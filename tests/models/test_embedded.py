"""The models that come with the package. Broken by: one that is not found by its name, or not the one that its page says."""

from __future__ import annotations

import pytest

from moe_lab.config.schema import ModelConfig
from moe_lab.models.facts import model_facts
from moe_lab.models.source import EMBEDDED, TINY, model_source


@pytest.mark.parametrize(
    ("name", "layers", "experts", "top_k"), [("tiny", 8, 16, 4), ("tiny-noisy", 3, 8, 2)]
)
def test_an_embedded_model_is_found_by_its_name(name, layers, experts, top_k):
    model = ModelConfig(name=name)
    assert model_source(model) == str(EMBEDDED / name)
    facts = model_facts(model, dtype="auto", device="cpu", offline=True)
    assert (facts.moe_layers, facts.experts, facts.top_k) == (layers, experts, top_k)
    assert (EMBEDDED / name / "README.md").is_file()


def test_another_name_without_a_path_has_the_tokenizer_of_tiny():
    assert model_source(ModelConfig(name="a-design")) == str(TINY)
