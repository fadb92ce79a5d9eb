"""Passes of routing samples compile as one graph; the later layers alone give what the whole model gives.

Broken by: a value read from the device within a pass, or a hook that stays on the model.
"""

import numpy as np
import pytest
import torch

from moe_lab.engine.forward.batch import Tokens, TokenTree, collate
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.forward.layers import decoder_layers
from moe_lab.engine.forward.suffix_forward import only_layers_from
from moe_lab.routing import GumbelTopK
from tests.support.models import make_model
from tests.support.rounding import assert_close

STEPS = 4
"""The third step and later ones run what the first two have compiled: with a fixed and with any length of the cache."""


def step_logits(model, compiled):
    """Logits of two prompts of different lengths and of `STEPS` tokens after them, and the number of compiled graphs."""
    ensemble = Ensemble(4, GumbelTopK([0.0, 0.5], seed=0), first_noisy=1)
    found, graphs = [], []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    with EnsembleForward(model, ensemble) as forward:
        cache = forward.new_cache(32)
        trees = [TokenTree(prompt, [[0]], noise_key=len(prompt)) for prompt in ([1, 2, 3, 4], [5, 6])]
        forward(collate(trees, 0, forward.device, left=True), cache)
        if compiled:
            forward.model = torch.compile(model, fullgraph=True, backend=backend)
        for step in range(STEPS):
            tokens = Tokens(
                ids_BS=torch.tensor([[7 + step], [90 + step]]),
                position_BS=torch.tensor([[4 + step], [2 + step]]),
                visible_BSK=(torch.arange(5 + step) > torch.tensor([[-1], [1]]))[:, None],
                logit_positions_M=torch.arange(2),
                noise_key_B=torch.tensor([4, 2]),
                sample_index_B=torch.zeros(2, dtype=torch.long),
                most_logits=1,
                real_BS=torch.ones(2, 1, dtype=torch.bool),
                names_BS=lambda: np.zeros((2, 1), dtype=np.int64),
                count=2,
            )
            found.append(forward(tokens, cache))
    return torch.stack(found), len(graphs), ensemble.routing.decisions


@pytest.mark.slow
def test_a_step_is_one_graph():
    """`fullgraph=True` raises at a break, such as a value that the host reads."""
    model = make_model("olmoe", num_hidden_layers=2)
    model.set_experts_implementation("grouped_mm")
    expected, _, decisions = step_logits(model, compiled=False)
    found, graphs, counted = step_logits(model, compiled=True)
    assert graphs == 2 + 1, "two of the pass, and a small one that keeps whether logits were NaN"
    assert counted == decisions and decisions[0] > 0
    assert_close(found, expected)


def test_later_layers_alone_and_the_model_restored():
    model = make_model("olmoe")
    ids = torch.tensor([[1, 2, 3]])
    hidden = []
    hooked = model.model.layers[2].register_forward_pre_hook(lambda layer, args: hidden.append(args[0]))
    with torch.no_grad(), hooked:
        expected = model(ids).logits
    names = list(model.state_dict())
    wrapped = model.model.layers[0].forward  # as accelerate wraps the layers of a device map
    model.model.layers[0].forward = wrapped
    computed = []
    for i, layer in enumerate(model.model.layers):
        layer.mlp.register_forward_hook(lambda *_, i=i: computed.append(i))
    with pytest.raises(KeyError), torch.no_grad(), only_layers_from(model, 2, lambda: hidden[0]):
        assert model(inputs_embeds=torch.zeros(1, 3, 48)).logits.equal(expected)
        assert computed == [2, 3]
        raise KeyError
    with torch.no_grad():
        assert model(ids).logits.equal(expected)
    assert computed == [2, 3, 0, 1, 2, 3] and list(model.state_dict()) == names
    assert [layer.__dict__.get("forward") for layer in decoder_layers(model)] == [wrapped, None, None, None]
    assert not any(layer._forward_pre_hooks for layer in decoder_layers(model))
