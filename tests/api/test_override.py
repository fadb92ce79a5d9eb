"""A policy of one's own changes what the model computes, and one that cannot work is refused."""

from __future__ import annotations

import pytest
import torch

from moe_lab import override
from moe_lab.errors import RoutingError
from tests.support.models import left_padded, make_model, small_model

IDS = torch.tensor([[3, 1, 4, 1, 5]])


def second_best(router, routing):
    scores_TE = router.scores(routing.logits_TE).scatter(-1, routing.index_TK[:, :1], -torch.inf)
    index_TK = router.choose(scores_TE, k=routing.index_TK.shape[-1])
    return routing._replace(index_TK=index_TK, weights_TK=router.weights(routing.logits_TE, index_TK))


def test_without_the_best_expert(olmoe):
    """Equal to a model whose router never chooses them: their logit is lowered in a loop over tokens."""
    seen = {}

    def by_loop(router, args, output):
        logits, weights, index = (tensor.clone() for tensor in output)
        probs = logits.softmax(-1)
        for t in range(len(logits)):
            order = logits[t].argsort(descending=True)[1:3]
            index[t], weights[t] = order, probs[t, order]
        seen[router] = index
        return logits, weights, index

    with torch.no_grad():
        with override(olmoe, second_best) as routers:
            found = olmoe(IDS).logits
        handles = [router.module.register_forward_hook(by_loop) for router in routers]
        expected = olmoe(IDS).logits
        for handle in handles:
            handle.remove()
        assert len(seen) == 4 and torch.allclose(found, expected, atol=1e-5)
        assert not torch.allclose(olmoe(IDS).logits, expected, atol=1e-2)


def test_generate_is_overridden(tokenizer):
    model = small_model("mixtral")
    inputs = left_padded(tokenizer, ["hello", "a longer prompt"])
    plain = model.generate(**inputs, max_new_tokens=6, do_sample=False)
    with override(model, second_best):
        assert not torch.equal(model.generate(**inputs, max_new_tokens=6, do_sample=False), plain)
    with override(model, lambda router, routing: None):
        assert torch.equal(model.generate(**inputs, max_new_tokens=6, do_sample=False), plain)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda r: r._replace(index_TK=r.index_TK[:, :1]), "shape"),
        (lambda r: r._replace(index_TK=r.index_TK.int()), "int64"),
        (lambda r: r._replace(index_TK=r.index_TK + 7), "below 8"),
        (lambda r: r._replace(weights_TK=r.weights_TK * torch.nan), "NaN"),
    ],
)
def test_decisions_that_are_none_are_refused(olmoe, change, says):
    with pytest.raises(RoutingError, match=says), override(olmoe, lambda router, routing: change(routing)):
        olmoe(IDS)


def test_a_policy_that_no_token_meets_is_an_error(olmoe):
    with pytest.raises(RoutingError, match="changed nothing"), override(olmoe, second_best):
        make_model("olmoe", seed=1)(IDS)
    with pytest.raises(ZeroDivisionError), override(olmoe, second_best):
        1 / 0  # noqa: B018
