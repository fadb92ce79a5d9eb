"""Suffix replay equals whole passes: logits, gradients, continuations, whatever the batch."""

from __future__ import annotations

import copy

import pytest
import torch

from moe_lab.engine.forward.layers import runs_on_kv_cache
from moe_lab.engine.scoring.scoring import Budget
from moe_lab.engine.suffix.replay import SuffixReplay
from moe_lab.engine.suffix.token_span import TokenSpan
from moe_lab.errors import ConfigError
from moe_lab.routing import family_of_type, find_routers, record
from moe_lab.routing.remix import Remix
from moe_lab.routing.rules import LOGITS
from tests.support import rounding
from tests.support.brute_prompt_tail import FAMILIES, prompts, whole_logits
from tests.support.families import ZOO
from tests.support.models import small_model
from tests.support.tiers import by_family

BUDGET = Budget(64)
BY_LOGITS = [name for name in ZOO if family_of_type(name).rule.noise == LOGITS]
SPANS = [
    TokenSpan(),
    TokenSpan("first", 1),
    TokenSpan("middle", 1),
    TokenSpan("last", 3),
    TokenSpan("first", 3),
]
SATURATED = {"phimoe"}
"""Weights are 1 for all experts that others are far above or below, and have no gradient then."""


@pytest.fixture(params=by_family(FAMILIES))
def model(request):
    return small_model(request.param)


def changed_layers(model):
    count = len(find_routers(model))
    return [count - 2, count - 1]


def read(model, span=TokenSpan(), **options):  # noqa: B008 - frozen
    replay = SuffixReplay(model, changed_layers(model)[0], span)
    return replay, replay.read(prompts(least=span.size), BUDGET, **options)


def mixed(model, tokens, seed=3):
    """Other probabilities for each question, in the changed layers: some other experts become the largest."""
    torch.manual_seed(seed)
    W, _, E = tokens[0].pathway_WME.shape
    return {layer: torch.rand(len(tokens), W, E).softmax(dim=-1) for layer in changed_layers(model)}


def own_probs(model, tokens):
    return {
        layer: torch.stack([token.pathway_WME[:, layer] for token in tokens])
        for layer in changed_layers(model)
    }


def test_untouched_logits_and_pathways_are_those_of_whole_passes(model):
    replay, tokens = read(model)
    logits_NV = replay.logits(tokens, None)
    for token, row, prompt in zip(tokens, logits_NV, prompts(), strict=True):
        with torch.no_grad(), record(model) as routes:
            expected = model(torch.tensor([prompt]), use_cache=False).logits[0, -1]
        rounding.assert_close(row, expected)
        assert token.position == len(prompt) - 1
        for own_E, logits_TE in zip(token.pathway_WME[0], routes.logits, strict=True):
            rounding.assert_close(own_E, logits_TE[-1].softmax(-1))


def test_own_probabilities_change_nothing(model):
    replay, tokens = read(model)
    own = own_probs(model, tokens)
    rounding.assert_close(replay.logits(tokens, Remix(own)), replay.logits(tokens, None))


@pytest.mark.parametrize("core", [False, True])
@pytest.mark.parametrize("span", SPANS, ids=str)
def test_given_probabilities_equal_whole_passes_with_gradients(model, span, core):
    """In float64. A wrong token, layer, weight rule, prefix, mask or position, or a cut graph, would show; so would further
    experts of the tokens behind that are more than nothing."""
    model = copy.deepcopy(model).double()
    model.set_experts_implementation("eager")
    continuations = [[[5, 6, 7]], [[8]], [[9, 1]], [[2, 2, 2]], [[3]]]
    replay, tokens = read(model, span, continuations=continuations)
    probs = {layer: value.requires_grad_() for layer, value in mixed(model, tokens).items()}
    experts = {layer: value.topk(5).indices for layer, value in mixed(model, tokens, seed=9).items()}
    logits_MV = replay.logits(tokens, Remix(probs, experts if core else None))
    answers = torch.tensor([token for [answer] in continuations for token in answer])
    losses_M = torch.nn.functional.cross_entropy(logits_MV, answers, reduction="none")
    gradients = torch.autograd.grad(losses_M.sum(), list(probs.values()))

    done, steepest = 0, 0.0
    for n, (prompt, [answer]) in enumerate(zip(prompts(least=span.size), continuations, strict=True)):
        own = {layer: value[n].detach().requires_grad_() for layer, value in probs.items()}
        chosen = {layer: value[n] for layer, value in experts.items()} if core else None
        start = span.start(len(prompt))
        assert tokens[n].position == start
        expected_TV = whole_logits(model, [*prompt, *answer[:-1]], start, own, chosen)
        expected_AV = expected_TV[len(prompt) - 1 :]
        rounding.assert_close(logits_MV[done : done + len(answer)], expected_AV)
        loss = torch.nn.functional.cross_entropy(expected_AV, torch.tensor(answer), reduction="sum")
        for gradient_NWE, expected_WE in zip(
            gradients, torch.autograd.grad(loss, list(own.values())), strict=True
        ):
            steepest = max(steepest, expected_WE.abs().max().item())
            torch.testing.assert_close(gradient_NWE[n], expected_WE, atol=2e-6, rtol=1e-4)
        done += len(answer)
    assert done == len(logits_MV) and steepest > 1e-4


@pytest.mark.parametrize("span", SPANS, ids=str)
def test_zero_changes_are_no_changes_whatever_the_tokens(model, span):
    replay, tokens = read(model, span)
    untouched = replay.logits(tokens, None)
    for prompt, token, row in zip(prompts(least=span.size), tokens, untouched, strict=True):
        with torch.no_grad(), record(model) as routes:
            rounding.assert_close(row, model(torch.tensor([prompt]), use_cache=False).logits[0, -1])
        here = slice(token.position, token.position + span.size)
        expected_WME = torch.stack([logits_TE[here].softmax(-1) for logits_TE in routes.logits], dim=1)
        rounding.assert_close(token.pathway_WME, expected_WME)
    remix = Remix(own_probs(model, tokens))
    rounding.assert_close(replay.logits(tokens, remix), untouched)


@pytest.mark.parametrize("span", SPANS, ids=str)
def test_the_mean_hidden_state_is_that_of_the_prompt_alone(model, span):
    """Read in several passes, behind a shared prefix, beside longer prompts and before continuations."""
    replay = SuffixReplay(model, changed_layers(model)[0], span)
    asked = prompts(least=span.size)
    for budget in (BUDGET, Budget(4)):
        read = replay.read(asked, budget, [[[5, 6, 7], [8]]] * len(asked))
        for prompt, tail in zip(asked, read, strict=True):
            with torch.no_grad():
                hidden_TD = model.model(torch.tensor([prompt]), use_cache=False).last_hidden_state[0]
            assert tail.prompt == tuple(prompt)
            rounding.assert_close(tail.mean_D, hidden_TD.mean(0))


def test_a_prompt_with_fewer_tokens_than_are_rerouted_is_refused(model):
    replay = SuffixReplay(model, 0, TokenSpan("middle", 3))
    with pytest.raises(ValueError, match="2 tokens has no 3"):
        replay.read([[1, 2, 3], [4, 5]], BUDGET)


def test_backward_through_an_earlier_pass_of_the_same_batch_is_an_error():
    """Its slots are overwritten; gradients of wrong values must not come out."""
    model = small_model("olmoe")
    replay, tokens = read(model)
    probs = {layer: value.requires_grad_() for layer, value in mixed(model, tokens).items()}
    batch = replay.batch(tokens)
    first = replay.logits(batch, Remix(probs))
    replay.logits(batch, Remix(probs))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        first.sum().backward()


def test_a_batch_gives_what_one_by_one_gives(model):
    replay, tokens = read(model)
    probs = mixed(model, tokens)
    together = replay.logits(tokens, Remix(probs))
    for n, token in enumerate(tokens):
        alone = replay.logits([token], Remix({layer: value[n : n + 1] for layer, value in probs.items()}))
        rounding.assert_close(together[n], alone[0])


@pytest.mark.parametrize("untouched", [False, True])
@pytest.mark.parametrize("span", SPANS[:4], ids=str)
def test_continuations_read_the_changed_tokens_and_are_routed_as_usual(model, span, untouched):
    continuations = [[[5], [6, 7], [6, 8, 9]]] * len(prompts())
    replay, tokens = read(model, span, continuations=continuations)
    probs = mixed(model, tokens)
    scores = replay.score(tokens, None if untouched else Remix(probs))
    for n, prompt in enumerate(prompts(least=span.size)):
        start = span.start(len(prompt))
        own = {} if untouched else {layer: value[n] for layer, value in probs.items()}
        for (found, greedy), continuation in zip(scores[n], continuations[n], strict=True):
            with torch.no_grad():
                logits = whole_logits(model, [*prompt, *continuation], start, own)
            predicted = logits[len(prompt) - 1 : -1].log_softmax(-1)
            expected = predicted[torch.arange(len(continuation)), continuation].sum().item()
            assert found == rounding.approx(expected)
            assert greedy == (predicted.argmax(-1).tolist() == continuation)


def test_nothing_of_earlier_layers_is_kept_and_long_prompts_are_read_in_several_passes(model):
    first = changed_layers(model)[0]
    replay = SuffixReplay(model, first)
    whole, parts = replay.read(prompts(), BUDGET), replay.read(prompts(), Budget(4))
    everything = SuffixReplay(model, 0).read(prompts(), BUDGET)
    for one, other, more in zip(whole, parts, everything, strict=True):
        rounding.assert_close(one.hidden_QD, other.hidden_QD)
        rounding.assert_close(one.pathway_WME, other.pathway_WME)
        assert one.prefix.length == one.position == other.prefix.length
        assert not any(layer.is_initialized for layer in one.prefix.layers[: replay.forward.fork])
        assert one.nbytes < more.nbytes or not one.position


def test_nothing_is_left_behind(model):
    """Parameters still require gradients and have none, hooks are gone, suffixes are part of no graph."""
    replay, tokens = read(model)
    probs = {layer: value.requires_grad_() for layer, value in mixed(model, tokens).items()}
    replay.logits(tokens, Remix(probs)).logsumexp(-1).sum().backward()
    assert all(value.grad is not None for value in probs.values())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not any("forward" in m.__dict__ for m in model.modules())
    kept = [token.hidden_QD for token in tokens] + [token.prefix.layers[-1].keys for token in tokens]
    assert not any(tensor.requires_grad or tensor.is_inference() for tensor in kept)


def test_bfloat16_has_gradients_too(model):
    low = copy.deepcopy(model).to(torch.bfloat16)
    replay, tokens = read(low)
    probs = {layer: value.requires_grad_() for layer, value in mixed(low, tokens).items()}
    logits_NV = replay.logits(tokens, Remix(probs))
    assert logits_NV.dtype == torch.float32
    gradients = torch.autograd.grad(logits_NV.logsumexp(-1).sum(), list(probs.values()))
    assert all(gradient.isfinite().all() and gradient.abs().max() > 0 for gradient in gradients)


def test_layers_before_the_fork_layer_are_refused(model):
    replay, tokens = read(model)
    with pytest.raises(ValueError, match="kept from"):
        replay.logits(tokens, Remix({0: tokens[0].pathway_WME[:, :1].expand(len(tokens), -1, -1)}))


def test_a_recurrent_model_is_refused_by_name():
    with pytest.raises(ConfigError, match="Qwen3NextForCausalLM"):
        SuffixReplay(small_model("qwen3_next"), 0)


@pytest.mark.parametrize("family", by_family(BY_LOGITS))
def test_every_family_that_chooses_by_logits(family):
    """Biases, scales, groups and seams of its own: nothing changes at its own probabilities, and a token's core experts
    are its own whatever else is in the batch, with gradients."""
    model = small_model(family)
    if not runs_on_kv_cache(model):
        with pytest.raises(ConfigError, match="keeps more than keys and values"):
            SuffixReplay(model, 0)
        return
    replay, tokens = read(model)
    own = own_probs(model, tokens)
    untouched = replay.logits(tokens, None)
    rounding.assert_close(replay.logits(tokens, Remix(own)), untouched)
    for mine, plain in zip(replay.score(tokens, Remix(own)), replay.score(tokens, None), strict=True):
        assert [value for value, _ in mine] == pytest.approx([value for value, _ in plain], abs=1e-4)
    probs = {layer: value.requires_grad_() for layer, value in mixed(model, tokens).items()}
    core = {layer: value.topk(5).indices for layer, value in own.items()}
    together = replay.logits(tokens, Remix(probs, core))
    assert (together - untouched).abs().max() > 1e-3
    for n, token in enumerate(tokens):
        one = slice(n, n + 1)
        remix = Remix({k: v[one] for k, v in probs.items()}, {k: v[one] for k, v in core.items()})
        rounding.assert_close(together[n], replay.logits([token], remix)[0])
    for gradient in torch.autograd.grad(together.logsumexp(-1).sum(), list(probs.values())):
        assert gradient.isfinite().all() and (gradient.abs().max() > 0 or family in SATURATED)
