"""`moe_lab.tiny` gives the embedded model as the command loads it.

Broken by: another dtype or number, a model that two callers share, a progress bar in a notebook, a download.
"""

from __future__ import annotations

import torch

import moe_lab
from moe_lab.config.schema import ModelConfig
from moe_lab.models.load import load_model


def test_it_is_the_model_of_the_command(capfd):
    model, tokenizer = moe_lab.tiny()
    assert capfd.readouterr() == ("", "")
    loaded = load_model(ModelConfig(), dtype="auto", device="auto", offline=True)
    ids = tokenizer("ben has 3 apples .", return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(model(ids).logits, loaded.model(ids).logits)
    assert model.dtype == loaded.model.dtype and not model.training


def test_the_noisy_model_is_the_one_on_which_roe_has_an_effect():
    model, _ = moe_lab.tiny(noisy=True)
    assert (model.config.num_hidden_layers, model.config.num_experts) == (3, 8)
    loaded = load_model(ModelConfig(name="tiny-noisy"), dtype="auto", device="auto", offline=True)
    assert torch.equal(model.lm_head.weight, loaded.model.lm_head.weight)


def test_prompts_are_padded_on_the_left_and_no_model_is_shared():
    (model, tokenizer), (other, _) = moe_lab.tiny(), moe_lab.tiny()
    mask = tokenizer(["1", "1 2 3 4 5"], padding=True).attention_mask
    assert mask[0][0] == 0 and mask[0][-1] == 1
    with torch.no_grad():
        next(model.parameters()).zero_()
    assert next(other.parameters()).any()
