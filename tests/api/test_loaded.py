"""Models of the caller's own: their facts, and which are refused."""

from __future__ import annotations

import pytest

from moe_lab.api.loaded import loaded_model
from moe_lab.errors import ModelError
from tests.support.models import make_model


def test_facts_are_those_of_the_configuration(tokenizer):
    loaded = loaded_model(make_model("mixtral").bfloat16(), tokenizer)
    facts = loaded.facts
    assert (facts.family, facts.dtype, facts.experts, facts.top_k) == ("mixtral", "bfloat16", 6, 2)
    assert facts.moe_layers == 4 and facts.routers is not None and loaded.device.type == "cpu"


def test_models_that_cannot_be_routed_otherwise_are_refused(tokenizer):
    with pytest.raises(ModelError, match="No router was found"):
        loaded_model(make_model("llama"), tokenizer)
    with pytest.raises(ModelError, match=r"model\.eval"):
        loaded_model(make_model("olmoe").train(), tokenizer)
