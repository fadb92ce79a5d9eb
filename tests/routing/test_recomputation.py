"""Gradient checkpointing computes layers again in the backward pass.

Broken by: a replay that takes the decisions of another micro-batch, and a policy that routes the second time otherwise
without an error.
"""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from moe_lab import override, record, replay
from moe_lab.errors import RoutingError
from moe_lab.routing import routed
from tests.support.models import make_model

REENTRANT = pytest.mark.parametrize("reentrant", [False, True], ids=["saved-tensor-hooks", "reentrant"])
BATCHES = [torch.arange(12).view(2, 6), torch.arange(20, 35).view(3, 5)]


def training_model(reentrant=None):
    """In training mode; with gradient checkpointing unless `reentrant` is None."""
    model = make_model("olmoe").train()
    if reentrant is not None:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()
    return model


def loss_of(model, ids):
    return model(ids, labels=ids, use_cache=False).loss


def shifted(router, routing):
    return routing._replace(index_TK=(routing.index_TK + 1) % routing.logits_TE.shape[-1])


@pytest.fixture(scope="module")
def routes():
    model = training_model()
    with torch.no_grad(), routed(model, shifted), record(model) as routes:
        for ids in BATCHES:
            loss_of(model, ids)
    return routes


@REENTRANT
@pytest.mark.parametrize(("weights", "order"), [("record", "each"), ("model", "sum"), ("model", "reversed")])
def test_a_replay_has_the_gradients_of_one_without_checkpointing(reentrant, weights, order, routes):
    found = []
    for model in (training_model(), training_model(reentrant)):
        with replay(model, routes, weights=weights):
            losses = []
            for ids in BATCHES:
                losses.append(loss_of(model, ids))
                if order == "each":
                    losses.pop().backward()
            for loss in [sum(losses)] if order == "sum" else losses[::-1]:
                if losses:
                    loss.backward()
        found.append({name: own.grad for name, own in model.named_parameters()})
    for name, expected in found[0].items():
        assert (found[1][name] is None) == (expected is None), name
        if expected is not None:
            torch.testing.assert_close(found[1][name], expected, atol=1e-6, rtol=1e-4)
    gate = found[1]["model.layers.1.mlp.gate.weight"]
    assert (gate is not None and bool(gate.any())) == (weights == "model")


@REENTRANT
def test_a_backward_pass_outside_of_the_replay_is_refused(reentrant, routes):
    model = training_model(reentrant)
    with replay(model, routes):
        loss = loss_of(model, BATCHES[0])
    with pytest.raises(RoutingError, match=r"backward\(\) inside"):
        loss.backward()


def test_other_contexts_are_refused():
    for context in (lambda model: override(model, shifted), record, lambda model: routed(model, shifted)):
        model = training_model(False)
        with pytest.raises(RoutingError, match="gradient_checkpointing_disable"), context(model):
            loss_of(model, BATCHES[0])
        with torch.no_grad(), context(model):
            loss_of(model, BATCHES[0])


def test_checkpointing_of_ones_own_is_refused_in_the_backward_pass():
    model = training_model()
    block = model.model.layers[1].mlp
    own = block.forward
    block.forward = lambda hidden: checkpoint(own, hidden, use_reentrant=False)
    with pytest.raises(RoutingError, match="backward pass"), override(model, shifted):
        loss_of(model, BATCHES[0]).backward()


def test_the_model_is_left_as_it_was(routes):
    model = training_model(False)
    before = [module._gradient_checkpointing_func for module in checkpointed(model)]
    with replay(model, routes):
        loss_of(model, BATCHES[0]).backward()
    assert before == [module._gradient_checkpointing_func for module in checkpointed(model)]


def checkpointed(model):
    return [module for module in model.modules() if hasattr(module, "_gradient_checkpointing_func")]
