"""Re-routed last tokens over kept work equal whole passes: logits, gradients, continuations, whatever the batch."""

from __future__ import annotations

import pytest
import torch

from moe_lab.engine.layers import runs_rows
from moe_lab.engine.prompt_tails import PromptTails
from moe_lab.engine.scoring import Budget
from moe_lab.errors import ConfigError
from moe_lab.routing import family_of_type, find_routers, record
from moe_lab.routing.remix import Remix
from moe_lab.routing.rules import LOGITS
from tests.engine.brute_prompt_tail import FAMILIES, prompts, whole_logits
from tests.families.zoo import ZOO, small_model

BUDGET = Budget(64)
BY_LOGITS = [name for name in ZOO if family_of_type(name).rule.noise == LOGITS]
SATURATED = {"phimoe"}
"""Weights are 1 for all experts that others are far above or below, and have no gradient then."""


@pytest.fixture(params=FAMILIES)
def model(request):
    torch.set_num_threads(1)
    return small_model(request.param)


def changed_layers(model):
    count = len(find_routers(model))
    return [count - 2, count - 1]


def read(model, **options):
    tails = PromptTails(model, first=changed_layers(model)[0])
    return tails, tails.read(prompts(), BUDGET, **options)


def mixed(model, tokens, seed=3):
    """Other probabilities for each question, in the changed layers: some other experts become the largest."""
    torch.manual_seed(seed)
    E = tokens[0].pathway_ME.shape[-1]
    return {layer: torch.rand(len(tokens), E).softmax(dim=-1) for layer in changed_layers(model)}


def test_untouched_logits_and_pathways_are_those_of_whole_passes(model):
    tails, tokens = read(model)
    logits_NV = tails.logits(tokens, None)
    for token, row, prompt in zip(tokens, logits_NV, prompts(), strict=True):
        with torch.no_grad(), record(model) as routes:
            expected = model(torch.tensor([prompt]), use_cache=False).logits[0, -1]
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=0)
        assert token.position == len(prompt) - 1
        for own_E, logits_TE in zip(token.pathway_ME, routes.logits, strict=True):
            torch.testing.assert_close(own_E, logits_TE[-1].softmax(-1), atol=1e-6, rtol=0)


def test_own_probabilities_change_nothing(model):
    tails, tokens = read(model)
    own = {
        layer: torch.stack([token.pathway_ME[layer] for token in tokens]) for layer in changed_layers(model)
    }
    torch.testing.assert_close(
        tails.logits(tokens, Remix(own)), tails.logits(tokens, None), atol=2e-6, rtol=0
    )


@pytest.mark.parametrize("core", [False, True])
def test_given_probabilities_equal_whole_passes_with_gradients(model, core):
    """A wrong token, layer, weight rule, past, mask or position, or a cut graph, would show."""
    tails, tokens = read(model)
    probs = {layer: value.requires_grad_() for layer, value in mixed(model, tokens).items()}
    experts = {layer: value.topk(5).indices for layer, value in mixed(model, tokens, seed=9).items()}
    logits_NV = tails.logits(tokens, Remix(probs, experts if core else None))
    losses = torch.nn.functional.cross_entropy(logits_NV, torch.arange(len(tokens)), reduction="none")
    gradients = torch.autograd.grad(losses.sum(), list(probs.values()))

    for n, prompt in enumerate(prompts()):
        own = {layer: value[n].detach().requires_grad_() for layer, value in probs.items()}
        chosen = {layer: value[n] for layer, value in experts.items()} if core else None
        expected_V = whole_logits(model, prompt, len(prompt) - 1, own, chosen)[-1]
        torch.testing.assert_close(logits_NV[n], expected_V, atol=1e-5, rtol=0)
        loss = torch.nn.functional.cross_entropy(expected_V[None], torch.tensor([n]))
        for gradient_NE, expected_E in zip(
            gradients, torch.autograd.grad(loss, list(own.values())), strict=True
        ):
            assert expected_E.abs().max() > 1e-4
            torch.testing.assert_close(gradient_NE[n], expected_E, atol=1e-5, rtol=1e-3)


def test_a_batch_gives_what_one_by_one_gives(model):
    tails, tokens = read(model)
    probs = mixed(model, tokens)
    together = tails.logits(tokens, Remix(probs))
    for n, token in enumerate(tokens):
        alone = tails.logits([token], Remix({layer: value[n : n + 1] for layer, value in probs.items()}))
        torch.testing.assert_close(together[n], alone[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("untouched", [False, True])
def test_continuations_read_the_changed_token_and_are_routed_as_usual(model, untouched):
    continuations = [[[5], [6, 7], [6, 8, 9]]] * len(prompts())
    tails, tokens = read(model, continuations=continuations)
    probs = mixed(model, tokens)
    scores = tails.score(tokens, None if untouched else Remix(probs))
    for n, prompt in enumerate(prompts()):
        own = {} if untouched else {layer: value[n] for layer, value in probs.items()}
        for (found, greedy), continuation in zip(scores[n], continuations[n], strict=True):
            with torch.no_grad():
                logits = whole_logits(model, [*prompt, *continuation], len(prompt) - 1, own)
            predicted = logits[len(prompt) - 1 : -1].log_softmax(-1)
            expected = predicted[torch.arange(len(continuation)), continuation].sum().item()
            assert found == pytest.approx(expected, abs=2e-5)
            assert greedy == (predicted.argmax(-1).tolist() == continuation)


def test_work_of_earlier_layers_is_not_kept_and_long_prompts_are_read_in_parts(model):
    first = changed_layers(model)[0]
    tails = PromptTails(model, first)
    whole, parts = tails.read(prompts(), BUDGET), tails.read(prompts(), Budget(4))
    everything = PromptTails(model, 0).read(prompts(), BUDGET)
    for one, other, more in zip(whole, parts, everything, strict=True):
        torch.testing.assert_close(one.hidden_1D, other.hidden_1D, atol=1e-5, rtol=0)
        torch.testing.assert_close(one.pathway_ME, other.pathway_ME, atol=1e-5, rtol=0)
        assert one.past.length == one.position == other.past.length
        assert not any(layer.is_initialized for layer in one.past.layers[: tails.first])
        assert one.nbytes < more.nbytes or not one.position


def test_nothing_is_left_behind(model):
    """Parameters keep asking for gradients and have none, hooks are gone, kept work is no part of any graph."""
    tails, tokens = read(model)
    probs = {layer: value.requires_grad_() for layer, value in mixed(model, tokens).items()}
    tails.logits(tokens, Remix(probs)).logsumexp(-1).sum().backward()
    assert all(value.grad is not None for value in probs.values())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not any("forward" in m.__dict__ for m in model.modules())
    kept = [token.hidden_MD for token in tokens] + [token.past.layers[-1].keys for token in tokens]
    assert not any(tensor.requires_grad or tensor.is_inference() for tensor in kept)


def test_bfloat16_has_gradients_too(model):
    import copy

    low = copy.deepcopy(model).to(torch.bfloat16)
    tails, tokens = read(low)
    probs = {layer: value.requires_grad_() for layer, value in mixed(low, tokens).items()}
    logits_NV = tails.logits(tokens, Remix(probs))
    assert logits_NV.dtype == torch.float32
    gradients = torch.autograd.grad(logits_NV.logsumexp(-1).sum(), list(probs.values()))
    assert all(gradient.isfinite().all() and gradient.abs().max() > 0 for gradient in gradients)


def test_layers_before_the_kept_ones_are_refused(model):
    tails, tokens = read(model)
    with pytest.raises(ValueError, match="kept from"):
        tails.logits(tokens, Remix({0: tokens[0].pathway_ME[:1].expand(len(tokens), -1)}))


def test_a_recurrent_model_is_refused_by_name():
    with pytest.raises(ConfigError, match="Qwen3NextForCausalLM"):
        PromptTails(small_model("qwen3_next"), 0)


@pytest.mark.parametrize("family", BY_LOGITS)
def test_every_family_that_chooses_by_logits(family):
    """Biases, scales, groups and seams of its own: nothing changes at its own probabilities, and a token's core experts
    are its own whatever else is in the batch, with gradients."""
    torch.set_num_threads(1)
    model = small_model(family)
    if not runs_rows(model):
        with pytest.raises(ConfigError, match="keeps more than keys and values"):
            PromptTails(model, 0)
        return
    tails, tokens = read(model)
    own = {
        layer: torch.stack([token.pathway_ME[layer] for token in tokens]) for layer in changed_layers(model)
    }
    untouched = tails.logits(tokens, None)
    torch.testing.assert_close(tails.logits(tokens, Remix(own)), untouched, atol=1e-5, rtol=0)
    for mine, plain in zip(tails.score(tokens, Remix(own)), tails.score(tokens, None), strict=True):
        assert [value for value, _ in mine] == pytest.approx([value for value, _ in plain], abs=1e-4)
    probs = {layer: value.requires_grad_() for layer, value in mixed(model, tokens).items()}
    core = {layer: value.topk(5).indices for layer, value in own.items()}
    together = tails.logits(tokens, Remix(probs, core))
    assert (together - untouched).abs().max() > 1e-3
    for n, token in enumerate(tokens):
        one = slice(n, n + 1)
        remix = Remix({k: v[one] for k, v in probs.items()}, {k: v[one] for k, v in core.items()})
        torch.testing.assert_close(together[n], tails.logits([token], remix)[0], atol=1e-5, rtol=0)
    for gradient in torch.autograd.grad(together.logsumexp(-1).sum(), list(probs.values())):
        assert gradient.isfinite().all() and (gradient.abs().max() > 0 or family in SATURATED)
