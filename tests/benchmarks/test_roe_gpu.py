"""The GPU benchmark runs through on a CPU with a tiny shape, and says plainly where there
is no GPU.

Breaks if the engine's or transformers' interfaces move away under a script that is seldom run.

Operations of a step of decoding. Broken by: a part of the step that is computed for each layer,
sample or sequence where once is enough.
"""

import sys
from functools import cache, partial

import pytest
import torch

from benchmarks import roe_gpu, step

TINY = {"hidden_size": 32, "intermediate_size": 16, "vocab_size": 64, "max_position_embeddings": 64}
TINY |= {"num_hidden_layers": 5, "num_attention_heads": 2, "num_key_value_heads": 2}
TINY |= {"num_experts": 4, "num_experts_per_tok": 2}


def test_every_setting_is_measured(capsys):
    device = torch.device("cpu")
    model = roe_gpu.random_model(TINY, device)
    roe_gpu.compare(model, device, batches=[1, 2], rows=[1, 3], past=6, steps=4)
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    names = ["generate", "n=1, temperature 0.0", "n=3, temperature 0.0", "n=3, temperature 0.3"]
    assert [row[0] for row in rows] == ["| 1"] * 4 + ["| 2"] * 4
    assert [row[1] for row in rows] == names + names
    for row in rows:
        assert float(row[2]) > 0


def test_a_step_is_counted_for_every_token():
    device = torch.device("cpu")
    model = roe_gpu.random_model(TINY, device)
    prompts = roe_gpu.random_prompts(64, 2, 6)
    for run in (
        roe_gpu.by_transformers(model, prompts, 4),
        roe_gpu.by_roe(model, prompts, 4, 3, 0.3),
    ):
        steps: list[None] = []
        run(partial(steps.append, None))
        assert len(steps) == 4


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["roe_gpu"])
    roe_gpu.main()
    assert "No CUDA device" in capsys.readouterr().out


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
    """In 12 of OLMoE's 16 layers these are 160 of 1,200 operations.

    `python -m benchmarks.step` counts them.
    """
    four = operations(8, 1, 3) - operations(8, 1, 1)
    two = operations(6, 1, 3) - operations(6, 1, 1)
    assert (four - two) / 2 <= 8
    assert two <= 82
