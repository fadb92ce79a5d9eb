"""Steps of decoding that keep their tensors in place, and their recording, for which a
step or its trace stands here.

Broken by a shape or a value that the first steps fix, by a finished sequence that counts,
by slots beyond the end, and by a recording that misses what others do at each step.

Passes of routing samples compile as one graph; the later layers alone give
what the whole model gives.

Broken by: a value read from the device within a pass, or a hook that stays on the model.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from moe_lab.engine.forward import decode_step
from moe_lab.engine.forward.batch import Tokens, TokenTree, collate
from moe_lab.engine.forward.decode_step import DecodeStep
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import NEVER_RECORDED, EnsembleForward, Observer
from moe_lab.engine.forward.layers import decoder_layers
from moe_lab.engine.forward.suffix_forward import only_layers_from
from moe_lab.engine.suffix import ReroutedForward
from moe_lab.methods.scmoe import of_rank
from moe_lab.routing import GumbelTopK, routed
from moe_lab.routing.samples import OtherExperts
from tests.support.ensembles import ENSEMBLES, ensembles, generated
from tests.support.models import make_model, small_model
from tests.support.rounding import assert_close
from tests.support.tiers import first_fast

recorded = []


def repeat(step, run=None):
    """The step is computed again by the host."""
    run = run or step._run
    step.scores_BV = torch.empty_like(step.scores_BV)
    step.graph = SimpleNamespace(replay=lambda: step.scores_BV.copy_(run()))
    recorded.append(step)


def trace(step):
    """What a GPU does: the operations of a step, repeated without any code of the host."""
    counter = getattr(step.forward.ensemble.routing, "_counter", SimpleNamespace(_sums={}))
    before = {device: sums.clone() for device, sums in counter._sums.items()}
    traced = make_fx(lambda: step._run())()
    for device, sums in before.items():  # a recording computes nothing, and a trace does
        counter._sums[device].copy_(sums)
    repeat(step, traced)


TRACED = [*(("olmoe", name) for name in ENSEMBLES), ("gpt_oss", "roe, standard cache")]
TRACED += [(family, "roe") for family in ("mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3")]
"""Every ensemble, and every kind of routing and attention with noise."""


def in_place(monkeypatch, record):
    monkeypatch.setattr(EnsembleForward, "_may_be_recorded", lambda self: True)
    monkeypatch.setattr(DecodeStep, "_check", lambda self: setattr(self, "scores_BV", self._run()))
    monkeypatch.setattr(DecodeStep, "_record", record)


@pytest.mark.parametrize(
    ("record", "family", "name"),
    [
        *((repeat, "olmoe", name) for name in ENSEMBLES),
        *(pytest.param(trace, *case, marks=pytest.mark.slow) for case in TRACED),
    ],
)
def test_steps_in_place_and_recorded_are_those_of_the_host(record, family, name, monkeypatch):
    model = small_model(family)
    expected = generated(model, ensembles(model)[name])
    in_place(monkeypatch, record)
    recorded.clear()
    generated_steps = generated(model, ensembles(model)[name])
    assert generated_steps[0] == expected[0]
    assert generated_steps[2:] == expected[2:]
    for step_scores, expected_scores in zip(generated_steps[1], expected[1], strict=True):
        torch.testing.assert_close(step_scores, expected_scores, rtol=1e-4, atol=1e-4)
    assert [step.steps for step in recorded] == [5, 6], (
        "a batch is recorded again after half have ended"
    )


@pytest.mark.parametrize("name", first_fast(ENSEMBLES[1:], 2))
def test_steps_go_on_where_their_slots_are_full(name, monkeypatch):
    model = small_model("olmoe")
    expected = generated(model, ensembles(model)[name])
    in_place(monkeypatch, lambda self: None)
    monkeypatch.setattr(decode_step, "AHEAD", 1)
    generated_steps = generated(model, ensembles(model)[name])
    assert generated_steps[0] == expected[0]
    assert generated_steps[2:] == expected[2:]


class Counts(Observer):
    """An observer of each pass."""


def test_what_may_differ_at_each_step_is_not_recorded(monkeypatch):
    """A forward of the base model on one GPU is recorded. Each other case differs in one point."""
    model = small_model("olmoe")
    noise = GumbelTopK([0.5, 0.5], 0)
    forward = EnsembleForward(model, Ensemble())
    with_other_experts = EnsembleForward(model, Ensemble(2, OtherExperts(of_rank(2))))
    without_cache = EnsembleForward(model, Ensemble(2, noise, cache="none"))
    assert not forward._may_be_recorded(), "a CPU"

    devices = [torch.device("cuda", 0)]
    monkeypatch.setattr(
        model, "parameters", lambda: [SimpleNamespace(device=device) for device in devices]
    )
    for on_gpu in (forward, with_other_experts, without_cache):
        on_gpu.device = devices[0]
    assert forward._may_be_recorded()
    assert not with_other_experts._may_be_recorded(), "a policy that is not `repeatable`"
    assert not without_cache._may_be_recorded(), "no cache"
    with routed(model, lambda router, routing: None):
        assert not forward._may_be_recorded(), "hooks of others"
    devices.append(torch.device("cuda", 1))
    assert not forward._may_be_recorded(), "several GPUs"
    devices.pop()
    assert not ReroutedForward._may_be_recorded(forward), "C3PO"
    NEVER_RECORDED.add(model)
    assert not forward._may_be_recorded(), "a recording has failed"
    NEVER_RECORDED.discard(model)
    forward.observer = Counts()
    assert not forward._may_be_recorded(), "an observer"


STEPS = 4
"""The third step and later ones run what the first two have compiled.

The cache has a fixed length in one case and any length in the other.
"""


def step_logits(model, compiled):
    """Logits of two prompts of different lengths and of `STEPS` tokens after them,
    and the number of compiled graphs."""
    ensemble = Ensemble(4, GumbelTopK([0.0, 0.5], seed=0), first_noisy=1)
    logits = []
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    with EnsembleForward(model, ensemble) as forward:
        cache = forward.new_cache(32)
        trees = [
            TokenTree(prompt, [[0]], noise_key=len(prompt)) for prompt in ([1, 2, 3, 4], [5, 6])
        ]
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
                prompt_length_B=torch.tensor([4, 2]),
                most_logits=1,
                real_BS=torch.ones(2, 1, dtype=torch.bool),
                names_BS=lambda: np.zeros((2, 1), dtype=np.int64),
                count=2,
            )
            logits.append(forward(tokens, cache))
    return torch.stack(logits), len(graphs), ensemble.routing.counts()


@pytest.mark.slow
def test_a_step_is_one_graph():
    """`fullgraph=True` raises at a break, such as a value that the host reads."""
    model = make_model("olmoe", num_hidden_layers=2)
    model.set_experts_implementation("grouped_mm")
    expected, _, decisions = step_logits(model, compiled=False)
    logits, graphs, counted = step_logits(model, compiled=True)
    assert graphs == 2 + 1, "two of the pass, and a small one that keeps whether logits were NaN"
    assert counted == decisions
    assert decisions["changed_decisions"] > 0
    assert_close(logits, expected)


def test_later_layers_alone_and_the_model_restored():
    model = make_model("olmoe")
    ids = torch.tensor([[1, 2, 3]])
    hidden = []
    hooked = model.model.layers[2].register_forward_pre_hook(
        lambda layer, args: hidden.append(args[0])
    )
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
    assert computed == [2, 3, 0, 1, 2, 3]
    assert list(model.state_dict()) == names
    assert [layer.__dict__.get("forward") for layer in decoder_layers(model)] == [
        wrapped,
        None,
        None,
        None,
    ]
    assert not any(layer._forward_pre_hooks for layer in decoder_layers(model))
