"""The later layers alone give what the whole model gives, and leave nothing behind."""

from __future__ import annotations

import pytest
import torch

from moe_lab.engine.forward.layers import decoder_layers
from moe_lab.engine.forward.suffix_forward import only_layers_from
from tests.support.models import make_model


def test_later_layers_alone_and_the_model_restored():
    model = make_model("olmoe")
    ids = torch.tensor([[1, 2, 3]])
    hidden = []
    handle = model.model.layers[2].register_forward_pre_hook(lambda layer, args: hidden.append(args[0]))
    with torch.no_grad():
        expected = model(ids).logits
    handle.remove()
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
