"""A router family is one row of `FAMILIES`. Broken by: a second place that has to know it."""

import torch
from torch import nn
from transformers.models.olmoe.modeling_olmoe import OlmoeTopKRouter

from moe_lab.routing import GumbelTopK, find_routers, routed
from moe_lab.routing import families as table
from moe_lab.routing.families import Family, family_of_type
from moe_lab.routing.rules import softmax
from tests.support.models import make_model
from tests.support.slow_routing import noisy_tokens

IDS = torch.arange(20).reshape(2, 10)
ROW = Family("Lab", "lab", "LabRouter", softmax(), module=__name__)


class LabRouter(nn.Module):
    """A router that transformers does not have: the same choice as OLMoE's, in a class of its own."""

    def __init__(self, own: OlmoeTopKRouter):
        super().__init__()
        self.weight = own.weight
        self.top_k = own.top_k
        self.num_experts = own.num_experts
        self.norm_topk_prob = own.norm_topk_prob

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = nn.functional.linear(hidden.reshape(-1, hidden.shape[-1]), self.weight)
        weights, indices = logits.softmax(dim=-1, dtype=torch.float).topk(self.top_k, dim=-1)
        return logits, weights.to(logits.dtype), indices


def lab_model() -> nn.Module:
    model = make_model("olmoe")
    for layer in model.model.layers:
        layer.mlp.gate = LabRouter(layer.mlp.gate)
    return model


def test_one_row_makes_a_family_known(monkeypatch):
    model = lab_model()
    assert not [router for router in model.modules() if table.family_of(router)]
    monkeypatch.setitem(table._BY_CLASS, ROW.router_class, ROW)
    monkeypatch.setitem(table._BY_MODEL_TYPE, ROW.model_type, ROW)
    assert family_of_type("lab") is ROW
    assert len(find_routers(model)) == 4
    with torch.inference_mode():
        plain = model(IDS).logits
        assert torch.equal(plain, make_model("olmoe")(IDS).logits)
        with routed(model, lambda router, routing: None):
            assert torch.equal(model(IDS).logits, plain)
        noise = GumbelTopK([1.0] * 4, seed=0)
        noise.expect(noisy_tokens(IDS.numel()))
        with routed(model, noise):
            assert not torch.equal(model(IDS).logits, plain)
