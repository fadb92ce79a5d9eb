"""The engine as the decoding loop of `model.generate`: with one sample it generates what transformers generates.

Broken by: padding that is read, positions of padded prompts, an argument of `model.generate` that is dropped in silence.
"""

from __future__ import annotations

import pytest
import torch

from moe_lab import RoE
from moe_lab.errors import ConfigError
from tests.support.models import left_padded, make_model, small_model
from tests.support.tiers import by_family

PROMPTS = ["hello", "what is a cat and why", "abc" * 5]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"repetition_penalty": 1.3},
        {"min_new_tokens": 5},
        {"max_length": 30},
        {"bad_words_ids": [[61], [42]]},
    ],
)
@pytest.mark.parametrize("family", by_family(["olmoe", "mixtral", "gpt_oss"]))
def test_one_sample_generates_as_transformers(family, tokenizer, options):
    model, inputs = small_model(family), left_padded(tokenizer, PROMPTS)
    options = {"max_new_tokens": 8} | options if "max_length" not in options else options
    plain = model.generate(**inputs, do_sample=False, **options)
    one = model.generate(**inputs, do_sample=False, custom_generate=RoE(model, tokenizer, n=1), **options)
    assert torch.equal(one, plain)


def test_sampled_tokens_have_the_probabilities_of_the_model(olmoe, tokenizer):
    """4,000 answers of one token: each of the ten likeliest tokens within five standard errors (odds below 1e-5)."""
    draws, ids = 4000, tokenizer.encode("hello")
    sampled = olmoe.generate(
        torch.tensor([ids]), custom_generate=RoE(olmoe, tokenizer, n=1), do_sample=True, top_k=0,
        max_new_tokens=1, num_return_sequences=draws,
    )[:, -1]  # fmt: skip
    with torch.no_grad():
        probs = olmoe(torch.tensor([ids])).logits[0, -1].softmax(-1)
    for token in probs.topk(10).indices.tolist():
        p = float(probs[token])
        assert float((sampled == token).float().mean()) == pytest.approx(p, abs=5 * (p / draws) ** 0.5)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_beams": 2}, "num_beams=2 is not supported"),
        ({"output_scores": True, "return_dict_in_generate": True}, "return_dict_in_generate"),
        ({"prompt_lookup_num_tokens": 2}, "prompt_lookup_num_tokens=2"),
        ({"guidance_scale": 2.0}, "guidance_scale=2.0"),
    ],
)
def test_what_is_not_supported_is_refused(olmoe, tokenizer, options, says):
    roe = RoE(olmoe, tokenizer, n=2)
    with pytest.raises(ConfigError, match=says):
        roe.generate("hello", **options)
    with pytest.raises(ValueError, match=says):
        olmoe.generate(torch.tensor([[1, 2]]), custom_generate=roe, **options)


def test_padding_on_the_right_and_other_models_are_refused(olmoe, tokenizer):
    roe = RoE(olmoe, tokenizer, n=2)
    ids, mask = torch.tensor([[1, 2, 256], [3, 4, 5]]), torch.tensor([[1, 1, 0], [1, 1, 1]])
    with pytest.raises(ValueError, match="on the left"):
        olmoe.generate(ids, attention_mask=mask, custom_generate=roe, max_new_tokens=2)
    with pytest.raises(ValueError, match="another model"):
        make_model("olmoe", seed=1).generate(ids, custom_generate=roe, max_new_tokens=2)
    cache = olmoe(ids[:, :1]).past_key_values
    with pytest.raises(ValueError, match="past_key_values"):
        olmoe.generate(ids, past_key_values=cache, custom_generate=roe, max_new_tokens=2)
