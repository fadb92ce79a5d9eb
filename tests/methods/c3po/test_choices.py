"""The weights of a re-routed token, against whole prompts without a cache in which a hook writes the pathway.

Broken by the weights of another question or token, and by layers that are told in another order.
"""

from __future__ import annotations

import pytest
import torch

from moe_lab.engine.suffix.token_span import TokenSpan
from moe_lab.methods.c3po.choices import rerouted_choices
from moe_lab.routing import find_routers
from tests.support import rounding
from tests.support.brute_prompt_tail import whole_logits
from tests.support.c3po import setting_of
from tests.support.models import make_model


@pytest.mark.parametrize("family", ["olmoe", "mixtral"])
@pytest.mark.parametrize("span", [TokenSpan(), TokenSpan("middle", 2)], ids=str)
def test_as_a_hook_on_the_experts_sees_them(family, span):
    model = make_model(family)
    setting = setting_of(model, span)
    torch.manual_seed(0)
    pathways = setting.pathways()
    with torch.no_grad():
        pathways.theta += torch.randn(pathways.theta.shape)
    found = rerouted_choices(setting.tails, setting.questions, pathways)
    seen = {}
    for layer, router in enumerate(find_routers(model)):
        router.block.experts.register_forward_pre_hook(
            lambda module, args, layer=layer: seen.update({layer: args[1:3]})
        )
    changed = 0
    for number, (choices, question) in enumerate(zip(found, setting.questions, strict=True)):
        start = span.start(len(question.prompt))
        at = start + span.size - 1
        own = {layer: probs[number].detach() for layer, probs in pathways.probs().items()}
        with torch.no_grad():
            whole_logits(model, question.prompt, start, own)
        assert choices.read == question.prompt[: at + 1]
        assert [set(layer) for layer in choices.layers] == [
            set(index_TK[at].tolist()) for index_TK, _ in (seen[layer] for layer in sorted(seen))
        ]
        for layer, (index_TK, weights_TK) in seen.items():
            expected = dict(zip(index_TK[at].tolist(), weights_TK[at].tolist(), strict=True))
            assert choices.layers[layer] == rounding.approx(expected)
        with torch.no_grad():
            model(torch.tensor([question.prompt]), use_cache=False)
        changed += any(set(seen[layer][0][at].tolist()) != set(choices.layers[layer]) for layer in seen)
    assert changed, "the pathways take other experts"
