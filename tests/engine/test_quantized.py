"""Quantized layers with one scale for all tokens of a pass: each number is that of
the text alone, or refused.

Broken by: texts that share a pass or a prefix, a routing sample next to another,
layers that are not recognized.
"""

import copy

import pytest
import torch
from torch import nn
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, PerRow, PerTensor, quantize_

from moe_lab import RoE
from moe_lab.engine.forward.quantized import quantizes_passes
from moe_lab.engine.lm import EngineLM
from moe_lab.errors import ConfigError
from tests.support import rounding
from tests.support.ensembles import answered, greedy_by_transformers
from tests.support.models import make_model, make_tokenizer, small_model

PAIRS = [
    ("x" * 20, " no"),
    ("x" * 20, " it is longer"),
    ("b", " no"),
    ("b", " it is longer"),
    ("abcdefgh" * 3, " no"),
    ("abcdefgh" * 3, " it is longer"),
]
LEVELS = 7
"""Steps of a quantized number. Scales that differ then change scores clearly."""


class Rounded(nn.Linear):
    """Rounds its input to a few levels of a scale."""

    per_token = False

    def forward(self, x):
        over = -1 if self.per_token else None
        scale = x.abs().amax(dim=over, keepdim=self.per_token) / LEVELS
        return super().forward((x / scale).round() * scale)


class RoundedByToken(Rounded):
    per_token = True


def quantized(kind):
    model = copy.deepcopy(make_model("olmoe"))
    for layer in model.model.layers:
        layer.self_attn.q_proj.__class__ = kind
    return model


def alone(model, context, continuation):
    ids = make_tokenizer().encode(context)
    target = make_tokenizer().encode(continuation)
    with torch.no_grad():
        logits = model(torch.tensor([[*ids, *target[:-1]]])).logits[0, len(ids) - 1 :]
    return logits.log_softmax(dim=-1)[range(len(target)), target].sum().item()


def test_layers_are_recognized_by_what_they_compute():
    assert (
        quantizes_passes(quantized(Rounded))
        == "Rounded quantizes all tokens of a pass with one scale"
    )
    assert quantizes_passes(quantized(RoundedByToken)) is None
    for family in ("olmoe", "deepseek", "gpt_oss", "jetmoe"):
        assert quantizes_passes(small_model(family)) is None


@pytest.mark.parametrize(
    ("granularity", "expected"), [(PerRow(), None), (PerTensor(), "Int8Tensor quantizes")]
)
def test_torchao_s_layers_are_recognized(granularity, expected):
    model = make_model("olmoe")
    quantize_(model, Int8DynamicActivationInt8WeightConfig(granularity=granularity))
    is_recognized = quantizes_passes(model)
    assert is_recognized is None if expected is None else is_recognized.startswith(expected)


@pytest.mark.parametrize("kind", [Rounded, RoundedByToken])
def test_scores_and_texts_are_those_of_each_text_alone(kind):
    model = quantized(kind)
    lm = EngineLM(model, make_tokenizer(), batch_size=4, progress=False)
    assert (lm.engine is None) == (kind is Rounded)
    for (value, _), pair in zip(answered(lm, "loglikelihood", PAIRS), PAIRS, strict=True):
        # a level of rounding moves a score by more than 1e-3
        assert value == pytest.approx(
            alone(model, *pair), abs=1e-2 if kind is RoundedByToken else 1e-4
        ), pair
    texts = [text for text, _ in PAIRS[::2]]
    requests = [(text, {"until": [], "max_gen_toks": 5}) for text in texts]
    if kind is Rounded:
        for text, answer in zip(texts, answered(lm, "generate_until", requests), strict=True):
            ids = greedy_by_transformers(model, make_tokenizer().encode(text), 5)
            assert answer == make_tokenizer().decode(ids, skip_special_tokens=True)


def test_ensembles_are_refused():
    with pytest.raises(
        ConfigError, match="Rounded quantizes all tokens of a pass with one scale.*method=base"
    ):
        RoE(quantized(Rounded), make_tokenizer(), n=2)
    [value] = RoE(quantized(Rounded), make_tokenizer(), n=1).loglikelihood("ab", [" c"])
    assert value == rounding.approx(alone(quantized(Rounded), "ab", " c"), 2)
