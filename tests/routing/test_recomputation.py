"""Gradient checkpointing computes layers again in the backward pass: no token is recorded twice or routed otherwise.

Broken by: a repeated decision that is recorded, noise that is drawn again without an error, the tokens of another micro-batch.
"""

from __future__ import annotations

import pytest
import torch

from moe_lab import override, record, replay
from moe_lab.errors import RoutingError
from moe_lab.routing import routed
from tests.support.models import make_model

REENTRANT = pytest.mark.parametrize("reentrant", [False, True], ids=["saved-tensor-hooks", "reentrant"])
BATCHES = [torch.arange(12).view(2, 6), torch.arange(20, 35).view(3, 5)]


def training_model(reentrant=None, family="olmoe"):
    """In training mode; with gradient checkpointing unless `reentrant` is None."""
    model = make_model(family).train()
    if reentrant is not None:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()
    return model


def noisy(router, routing):
    """Noise of torch's own generator, and weights that are trained."""
    scores_TE = router.scores(routing.logits_TE) + torch.randn(routing.logits_TE.shape)
    index_TK = router.choose(scores_TE, routing.index_TK.shape[-1])
    return routing._replace(index_TK=index_TK, weights_TK=router.weights(routing.logits_TE, index_TK))


def loss_of(model, ids, **inputs):
    return model(ids, labels=ids, use_cache=False, **inputs).loss


def gradients(model):
    return {name: own.grad for name, own in model.named_parameters()}


def assert_same_gradients(found, expected):
    assert found.keys() == expected.keys()
    for name in expected:
        assert (found[name] is None) == (expected[name] is None), name
        if expected[name] is not None:
            torch.testing.assert_close(found[name], expected[name], atol=1e-6, rtol=1e-4)


@REENTRANT
@pytest.mark.parametrize("accumulated", [True, False], ids=["backward-each", "backward-once"])
def test_what_is_computed_again_is_not_recorded_again(reentrant, accumulated):
    plain, model = training_model(), training_model(reentrant)
    with torch.no_grad(), record(plain) as expected:
        for ids in BATCHES:
            loss_of(plain, ids)
    with record(model) as routes:
        losses = []
        for ids in BATCHES:
            losses.append(loss_of(model, ids))
            if accumulated:
                losses.pop().backward()
        if losses:
            sum(losses).backward()
    assert len(routes.sequences) == len(routes.positions) == 27
    for layer in range(4):
        assert torch.equal(routes.indices[layer], expected.indices[layer])
        assert len(routes.logits[layer]) == 27
    assert model.model.layers[0].mlp.gate.weight.grad is not None


@REENTRANT
@pytest.mark.parametrize("order", ["each", "sum", "reversed"])
def test_gradients_under_a_noisy_policy_are_those_without_checkpointing(reentrant, order):
    found = []
    for model in (training_model(), training_model(reentrant)):
        torch.manual_seed(3)
        with override(model, noisy), record(model) as routes:
            losses = []
            for ids in BATCHES:
                losses.append(loss_of(model, ids))
                if order == "each":
                    losses.pop().backward()
            if order == "sum":
                sum(losses).backward()
            for loss in losses[::-1] if order == "reversed" else []:
                loss.backward()
        found.append((gradients(model), torch.cat(routes.indices)))
    assert torch.equal(found[0][1], found[1][1])
    assert_same_gradients(found[1][0], found[0][0])


@REENTRANT
def test_noise_that_is_drawn_anew_is_refused(reentrant):
    generator = torch.Generator().manual_seed(0)

    def own_noise(router, routing):
        scores_TE = router.scores(routing.logits_TE) + torch.randn(
            routing.logits_TE.shape, generator=generator
        )
        index_TK = router.choose(scores_TE, routing.index_TK.shape[-1])
        return routing._replace(index_TK=index_TK, weights_TK=router.weights(routing.logits_TE, index_TK))

    model = training_model(reentrant)
    with (
        pytest.raises(RoutingError, match="gradient checkpointing.*another decision"),
        override(model, own_noise),
    ):
        loss_of(model, BATCHES[0]).backward()


@REENTRANT
def test_a_backward_pass_outside_the_context_is_refused(reentrant):
    model = training_model(reentrant)
    with pytest.raises(RoutingError, match="backward.* inside"), override(model, noisy):
        loss = loss_of(model, BATCHES[0])
    with override(model, noisy), torch.no_grad():
        loss_of(model, BATCHES[0])
    with record(model) as routes:
        loss = loss_of(model, BATCHES[0])
    loss.backward()
    assert len(routes.indices[0]) == 12


@REENTRANT
def test_a_replay_under_checkpointing_has_the_gradients_without(reentrant):
    found = []
    for model in (training_model(), training_model(reentrant)):
        with torch.no_grad(), routed(model, shifted), record(model) as routes:
            for ids in BATCHES:
                loss_of(model, ids)
        with replay(model, routes):
            losses = [loss_of(model, ids) for ids in BATCHES]
            for loss in losses:
                loss.backward()
        found.append(gradients(model))
    assert_same_gradients(found[1], found[0])


def shifted(router, routing):
    return routing._replace(index_TK=(routing.index_TK + 1) % routing.logits_TE.shape[-1])


def test_checkpointing_of_ones_own_that_is_not_recognised_is_refused():
    from torch.utils.checkpoint import checkpoint

    model = training_model()
    block = model.model.layers[1].mlp
    own = block.forward
    block.forward = lambda hidden: checkpoint(own, hidden, use_reentrant=False)
    with pytest.raises(RoutingError, match="gradient_checkpointing_enable"), override(model, noisy):
        loss_of(model, BATCHES[0]).backward()


def test_policies_of_the_package_that_cannot_repeat_a_decision_say_so():
    model = training_model(False)
    with pytest.raises(RoutingError, match="Gradient checkpointing"), routed(model, shifted):
        loss_of(model, BATCHES[0]).backward()


def test_the_model_is_left_as_it_was():
    def hooks():
        return sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules())

    model = training_model(False)
    before = hooks()
    with override(model, noisy):
        loss_of(model, BATCHES[0]).backward()
    assert hooks() == before


def test_two_passes_over_one_tensor_are_refused():
    """Their backward passes cannot be told apart: the second pass would be repeated with the decisions of the first."""
    model = training_model(reentrant=False)
    embeddings = torch.randn(1, 4, model.config.hidden_size, requires_grad=True)
    with torch.no_grad(), record(model) as routes:
        model(inputs_embeds=embeddings)
        model(inputs_embeds=embeddings.clone())
    with pytest.raises(RoutingError, match="read the same tensor"), replay(model, routes):
        model(inputs_embeds=embeddings)
        model(inputs_embeds=embeddings)
