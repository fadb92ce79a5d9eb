"""Which greedy choices count as near ties. Broken by: a bound that is not the dtype's, that depends on whether scores are
logits or log-probabilities, or that excluded tokens change.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig

from moe_lab.engine.generation.sampling import NEAR, Sampler, near


def model(dtype: torch.dtype):
    """What a `Sampler` reads of a model."""
    return SimpleNamespace(
        dtype=dtype,
        device=torch.device("cpu"),
        _prepare_special_tokens=lambda *args, **keys: None,
        _get_logits_processor=lambda *args, **keys: [],
    )


SCORES = torch.tensor([[12.125, 12.0625, -4.0, 0.0], [12.125, 11.0, -4.0, 0.0]])
"""A runner-up one bfloat16 step away, and one far away."""


@pytest.mark.parametrize("dtype, ties", [(torch.bfloat16, 1), (torch.float16, 0), (torch.float32, 0)])
def test_ties_are_judged_at_the_dtypes_rounding(dtype, ties):
    decoder = Sampler(model(dtype), GenerationConfig(do_sample=False), 0)
    assert decoder(SCORES, [None, None]) == [0, 0]
    assert decoder.near_ties == ties


def test_the_bound_is_the_same_for_logits_and_log_probabilities_and_without_excluded_tokens():
    epsilon = torch.finfo(torch.bfloat16).eps
    bound = near(SCORES, epsilon)
    assert torch.allclose(bound, torch.full((2,), epsilon * 16.125))
    assert torch.allclose(near(SCORES.log_softmax(dim=-1), epsilon), bound, rtol=1e-5)
    excluded = torch.cat([SCORES, torch.full((2, 1), -torch.inf)], dim=-1)
    assert torch.equal(near(excluded, epsilon), bound)


def test_in_float32_it_is_what_passes_of_other_shapes_differ_by():
    assert near(SCORES, torch.finfo(torch.float32).eps).tolist() == pytest.approx([NEAR, NEAR])
