"""Operations of a step of decoding. Broken by: a part of the step that is computed for each layer, sample or sequence
where once is enough.
"""

from functools import cache

import pytest
import torch

from benchmarks import step


@cache
def operations(layers, batch, n):
    return step.operations_of_a_step(step.by_engine(step.make_model(layers), batch, n))


def test_views_and_casts_that_change_nothing_are_not_counted():
    with step.Operations() as counted:
        tensor = torch.zeros(4, 4)
        tensor.t()[1:].float().add_(1)
    assert counted.counts == {"aten::zeros": 1, "aten::add_.Tensor": 1}


@pytest.mark.slow
def test_a_step_has_as_many_operations_for_any_number_of_samples_and_sequences():
    assert operations(6, 1, 3) == operations(6, 1, 9)
    assert abs(operations(6, 4, 3) - operations(6, 1, 3)) <= 3, "a mask of padding"


@pytest.mark.slow
def test_noise_adds_few_operations_to_a_layer_and_to_a_step():
    """In 12 of OLMoE's 16 layers these are 160 of 1,200 operations (`python -m benchmarks.step`)."""
    four, two = (operations(layers, 1, 3) - operations(layers, 1, 1) for layers in (8, 6))
    assert (four - two) / 2 <= 8 and two <= 82
