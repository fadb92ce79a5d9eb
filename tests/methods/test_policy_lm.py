"""The counts of the language model of a policy leave padding out.

Broken by: padding that is counted as tokens of a text, by a policy whose tokens all count;
an observer of the same passes that leaves padding unknown; lm-eval's own code,
which pads, for a policy that counts.
"""

from typing import Any

import pytest
import torch

from moe_lab.engine.forward.forward import observed
from moe_lab.methods.policy_lm import PolicyLM
from moe_lab.metrics.counts import SelectedExperts
from moe_lab.routing import Policy, Router, Routing, find_routers, routed
from moe_lab.routing.dynamic import TopP
from moe_lab.routing.policies import PartnersOnly, Steered, partners_of
from tests.support.models import small_model
from tests.support.opened_methods import answered

TEXTS = [("three red pens",), ("a",), ("one and two",)]


def experts_of(model: Any) -> tuple[int, int]:
    """(MoE layers, experts of each)"""
    routers = find_routers(model)
    return len(routers), routers[0].module.weight.shape[0]


def partners(model: Any) -> Policy:
    L, E = experts_of(model)
    pairs = torch.randint(0, 99, (L, E, E), generator=torch.Generator().manual_seed(1))
    return PartnersOnly(partners_of(pairs, 2))


def steered(model: Any) -> Policy:
    sign_LE = torch.zeros(experts_of(model), dtype=torch.int8)
    sign_LE[1, 3], sign_LE[2, 0] = 1, -1
    return Steered(sign_LE)


def top_p(model: Any) -> Policy:
    return TopP(0.5, 4)


MAKERS = {"partners": partners, "steered": steered, "top-p": top_p}


def by_hand(lm: PolicyLM, policy: Policy) -> dict[str, int]:
    """The counts of each text alone, in a pass of the model without padding."""
    counted = 0
    changed = 0
    experts = 0

    def count(router: Router, routing: Routing) -> Routing | None:
        nonlocal counted, changed, experts
        decided = policy(router, routing) or routing
        for token, before in enumerate(routing.index_TK.tolist()):
            after = decided.index_TK[token][decided.weights_TK[token] != 0].tolist()
            counted += 1
            changed += set(after) != set(before)
            experts += len(after)
        return decided

    for (text,) in TEXTS:
        ids = [lm.prefix_token_id, *lm.tok_encode(text)][:-1]
        with torch.no_grad(), routed(lm.model, count):
            lm.model(torch.tensor([ids]))
    if isinstance(policy, TopP):
        return {"chosen_experts": experts, "routing_decisions": counted}
    return {"constrained_decisions": changed, "routing_decisions": counted}


def lm_of(model: Any, tokenizer: Any, policy: Policy) -> PolicyLM:
    return PolicyLM(model, tokenizer, policy, batch_size=3, progress=False)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("family", ["olmoe", "qwen3_next"])
def test_texts_of_a_batch_count_as_they_do_alone(family, maker, tokenizer):
    model = small_model(family)
    policy = MAKERS[maker](model)
    single_policy = MAKERS[maker](model)
    with routed(model, policy):
        lm = lm_of(model, tokenizer, policy)
        answered(lm, "loglikelihood_rolling", TEXTS)
        costs = {name: lm.cost[name] for name in policy.counts()}
        model(torch.ones(2, 7, dtype=torch.long))  # a pass of another shape is not the LM's
    assert costs == by_hand(lm, single_policy)
    assert 0 < min(costs.values()) < max(costs.values())


def test_an_observer_leaves_padding_out_too(tokenizer):
    model = small_model("olmoe")
    policy = partners(model)
    single_policy = partners(model)
    with routed(model, policy):
        lm = lm_of(model, tokenizer, policy)
        routes = SelectedExperts()
        with observed(lm, routes):
            answered(lm, "loglikelihood_rolling", TEXTS)
        once = dict(policy.counts())
        answered(lm, "loglikelihood_rolling", TEXTS)
    assert len(routes.reads) == len(TEXTS)
    expected = by_hand(lm, single_policy)
    assert once == expected
    assert policy.counts() == {name: 2 * value for name, value in expected.items()}


class Seen(Policy):
    """Counts the tokens that are no padding, and changes nothing."""

    def __init__(self) -> None:
        self.tokens = 0

    def counts(self) -> dict[str, int]:
        return {"seen_tokens": self.tokens}

    def __call__(self, router: Router, routing: Routing) -> None:
        real_T = self.real_T
        self.tokens += len(routing.index_TK) if real_T is None else int(real_T.sum())


def test_the_cost_has_the_counts_of_a_policy_of_ones_own(tokenizer):
    model = small_model("olmoe")
    policy = Seen()
    with routed(model, policy):
        lm = lm_of(model, tokenizer, policy)
        answered(lm, "loglikelihood_rolling", TEXTS)
    assert lm.cost["seen_tokens"] == 4 * lm.cost["tokens_in"] > 0


def test_a_model_that_answers_one_request_at_a_time_says_so(tokenizer, caplog):
    model = small_model("qwen3_next")
    policy = partners(model)
    with routed(model, policy):
        lm_of(model, tokenizer, policy)
    assert "It runs one request at a time, which is slower" in caplog.text


def test_a_function_counts_nothing_and_needs_no_other_engine(tokenizer):
    model = small_model("qwen3_next")
    with routed(model, lambda router, routing: None):
        lm = lm_of(model, tokenizer, Policy(lambda router, routing: None))
    assert lm.engine is None
    assert "routing_decisions" not in lm.cost
