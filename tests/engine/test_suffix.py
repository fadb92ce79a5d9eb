"""Suffix replay with re-routed tokens equals whole passes: logits, gradients, continuations.

Broken by: a pathway given to another prompt's tokens or to padding, a prefix, mask or position
of another prompt, a graph that is cut, hooks and gradients that stay.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from moe_lab.engine.forward.layers import runs_on_kv_cache
from moe_lab.engine.scoring import Budget
from moe_lab.engine.suffix import PromptSuffix, SuffixReplay
from moe_lab.engine.token_span import TokenSpan, named_tokens
from moe_lab.errors import ConfigError
from moe_lab.routing import family_of_type, record
from moe_lab.routing.remix import Remix
from moe_lab.routing.rules import LOGITS
from tests.support import rounding
from tests.support.brute_prompt_tail import FAMILIES, prompts, whole_logits
from tests.support.families import ZOO
from tests.support.models import small_model
from tests.support.suffixes import (
    BUDGET,
    changed_layers,
    of_question,
    other_probs,
    own_probs,
    read_suffixes,
    with_gradients,
)
from tests.support.tiers import by_family, first_fast

LAST1 = named_tokens("last1")
LAST3 = named_tokens("last3")
SPANS = [LAST1, named_tokens("first1"), named_tokens("middle1"), LAST3, named_tokens("first3")]
BY_LOGITS = [name for name in ZOO if family_of_type(name).rule.noise == LOGITS]
SATURATED = {"phimoe"}
"""Weights are 1 for all experts that others are far above or below, and have no gradient then."""


@pytest.fixture(params=first_fast(FAMILIES))
def model(request):
    return small_model(request.param)


# Probabilities that are given


class Replayed:
    """Replayed logits of continuations under other probabilities, and their gradients."""

    def __init__(self, model: Any, span: TokenSpan, core: bool, answers: list[list[int]]):
        replay, self.suffixes = read_suffixes(
            model, span, continuations=[[answer] for answer in answers]
        )
        self.probs = with_gradients(other_probs(model, self.suffixes))
        self.experts = None
        if core:
            self.experts = {}
            for layer, probs_NWE in other_probs(model, self.suffixes, seed=9).items():
                self.experts[layer] = probs_NWE.topk(5).indices
        logits_MV = replay.logits(self.suffixes, Remix(self.probs, self.experts))
        self.logits = logits_MV.split([len(answer) for answer in answers])
        """[answer, V] of each question."""
        losses = []
        for logits_AV, answer in zip(self.logits, answers, strict=True):
            losses.append(summed_loss(logits_AV, answer))
        self.gradients = torch.autograd.grad(torch.stack(losses).sum(), list(self.probs.values()))
        """[N, W, E] of each changed layer."""


def summed_loss(logits_AV: Tensor, answer: list[int]) -> Tensor:
    return torch.nn.functional.cross_entropy(logits_AV, torch.tensor(answer), reduction="sum")


@pytest.mark.parametrize(
    ("span", "core"),
    # which experts take part is settled in a router, which knows nothing of where its tokens stand
    [*[(span, False) for span in SPANS], (LAST1, True), (LAST3, True)],
    ids=str,
)
def test_given_probabilities_equal_whole_passes_with_gradients(model, span, core):
    """In float64. A wrong token, layer, weight rule, prefix, mask or position, or a cut graph,
    would show; so would further experts of the tokens after it that are more than nothing."""
    model = copy.deepcopy(model).double()
    model.set_experts_implementation("eager")
    answers = [[5, 6, 7], [8], [9, 1], [2, 2, 2], [3]]

    replayed = Replayed(model, span, core, answers)

    steepest = 0.0
    for n, prompt in enumerate(prompts(least=span.size)):
        start = span.start(len(prompt))
        assert replayed.suffixes[n].position == start
        probs = with_gradients(of_question(replayed.probs, n))
        experts = None
        if replayed.experts is not None:
            experts = of_question(replayed.experts, n)
        expected_TV = whole_logits(model, [*prompt, *answers[n][:-1]], start, probs, experts)
        expected_AV = expected_TV[len(prompt) - 1 :]
        rounding.assert_close(replayed.logits[n], expected_AV)

        loss = summed_loss(expected_AV, answers[n])
        expected_gradients = torch.autograd.grad(loss, list(probs.values()))
        for gradient_NWE, expected_WE in zip(replayed.gradients, expected_gradients, strict=True):
            torch.testing.assert_close(gradient_NWE[n], expected_WE, atol=2e-6, rtol=1e-4)
            steepest = max(steepest, expected_WE.abs().max().item())
    assert steepest > 1e-4


@pytest.mark.parametrize("span", SPANS, ids=str)
def test_zero_changes_are_no_changes_whatever_the_tokens(model, span):
    replay, suffixes = read_suffixes(model, span)
    unchanged_NV = replay.logits(suffixes, None)
    for n, prompt in enumerate(prompts(least=span.size)):
        with torch.no_grad(), record(model) as routes:
            logits_TV = model(torch.tensor([prompt]), use_cache=False).logits[0]
        rounding.assert_close(unchanged_NV[n], logits_TV[-1])

        start = suffixes[n].position
        probs_by_layer = []
        for logits_TE in routes.logits:
            probs_by_layer.append(logits_TE[start : start + span.size].softmax(-1))
        expected_WME = torch.stack(probs_by_layer, dim=1)
        rounding.assert_close(suffixes[n].pathway_WME, expected_WME)

    remix = Remix(own_probs(model, suffixes))
    rounding.assert_close(replay.logits(suffixes, remix), unchanged_NV)


@pytest.mark.parametrize(
    ("span", "changed"), [*[(span, True) for span in SPANS[:4]], (LAST3, False)], ids=str
)
def test_continuations_read_the_changed_tokens_and_are_routed_as_usual(model, span, changed):
    texts = prompts(least=span.size)
    continuations = [[5], [6, 7], [6, 8, 9]]
    replay, suffixes = read_suffixes(model, span, continuations=[continuations] * len(texts))
    probs = other_probs(model, suffixes) if changed else {}

    scores = replay.score(suffixes, Remix(probs) if changed else None)

    for n, prompt in enumerate(texts):
        start = span.start(len(prompt))
        for (score, is_greedy), continuation in zip(scores[n], continuations, strict=True):
            ids = [*prompt, *continuation]
            with torch.no_grad():
                logits_TV = whole_logits(model, ids, start, of_question(probs, n))
            log_probs_CV = logits_TV[len(prompt) - 1 : -1].log_softmax(-1)
            expected = log_probs_CV[torch.arange(len(continuation)), continuation].sum().item()
            assert score == rounding.approx(expected)
            assert is_greedy == (log_probs_CV.argmax(-1).tolist() == continuation)


# What is read and kept


@pytest.mark.parametrize("span", SPANS, ids=str)
def test_the_mean_hidden_state_is_that_of_the_prompt_alone(model, span):
    """Suffixes are read in several passes, after a shared prefix.

    They are next to longer prompts and before continuations.
    """
    replay = SuffixReplay(model, changed_layers(model)[0], span)
    texts = prompts(least=span.size)
    expected = []
    for prompt in texts:
        with torch.no_grad():
            outputs = model.model(torch.tensor([prompt]), use_cache=False)
        expected.append(outputs.last_hidden_state[0].mean(0))

    for budget in (BUDGET, Budget(4)):
        suffixes = replay.read(texts, budget, [[[5, 6, 7], [8]]] * len(texts))
        for prompt, suffix, expected_D in zip(texts, suffixes, expected, strict=True):
            assert suffix.prompt == tuple(prompt)
            rounding.assert_close(suffix.mean_D, expected_D)


def test_the_tokens_of_prompts_and_of_their_suffixes_are_counted(model):
    """The beginning that two prompts share is read once."""
    long = [7] * 30
    same_beginning = [7] * 22 + [8, 9]
    short = [1, 2]
    replay = SuffixReplay(model, changed_layers(model)[0])
    suffixes = replay.read([long, same_beginning, short], BUDGET)
    assert replay.tokens_in == 22 + 8 + 2 + 2
    replay.logits(suffixes, None)
    assert replay.tokens_in == 34 + 3
    replay.logits(suffixes, None)
    assert replay.tokens_in == 34 + 3 + 3


def test_a_prompt_with_fewer_tokens_than_are_rerouted_is_refused(model):
    replay = SuffixReplay(model, 0, TokenSpan("middle", 3))
    with pytest.raises(ValueError, match="2 tokens has no 3"):
        replay.read([[1, 2, 3], [4, 5]], BUDGET)


def test_long_prompts_are_read_in_several_passes(model):
    replay = SuffixReplay(model, changed_layers(model)[0])
    in_one_pass = replay.read(prompts(), BUDGET)
    in_parts = replay.read(prompts(), Budget(4))
    for suffix, suffix_of_parts in zip(in_one_pass, in_parts, strict=True):
        rounding.assert_close(suffix.hidden_QD, suffix_of_parts.hidden_QD)
        rounding.assert_close(suffix.pathway_WME, suffix_of_parts.pathway_WME)
        assert suffix.prefix.length == suffix.position
        assert suffix_of_parts.prefix.length == suffix.position


def test_nothing_of_earlier_layers_is_kept(model):
    replay = SuffixReplay(model, changed_layers(model)[0])
    suffixes = replay.read(prompts(), BUDGET)
    suffixes_of_all_layers = SuffixReplay(model, 0).read(prompts(), BUDGET)
    for suffix, suffix_of_all_layers in zip(suffixes, suffixes_of_all_layers, strict=True):
        for layer in suffix.prefix.layers[: replay.forward.fork]:
            assert not layer.is_initialized
        if suffix.position > 0:
            assert suffix.nbytes < suffix_of_all_layers.nbytes


def test_nothing_is_left_behind(model):
    """Parameters still require gradients and have none, hooks are gone,
    no graph includes the suffixes."""
    replay, suffixes = read_suffixes(model)
    probs = with_gradients(other_probs(model, suffixes))
    replay.logits(suffixes, Remix(probs)).logsumexp(-1).sum().backward()

    for probs_NWE in probs.values():
        assert probs_NWE.grad is not None
    for parameter in model.parameters():
        assert parameter.requires_grad
        assert parameter.grad is None
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert "forward" not in module.__dict__
    for suffix in suffixes:
        for tensor in (suffix.hidden_QD, suffix.prefix.layers[-1].keys):
            assert not tensor.requires_grad
            assert not tensor.is_inference()


# Gradients


def test_backward_through_an_earlier_pass_of_the_same_batch_is_an_error():
    """Its slots are overwritten; gradients of wrong values must not come out."""
    model = small_model("olmoe")
    replay, suffixes = read_suffixes(model)
    probs = with_gradients(other_probs(model, suffixes))
    batch = replay.batch(suffixes)
    first_NV = replay.logits(batch, Remix(probs))
    replay.logits(batch, Remix(probs))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        first_NV.sum().backward()


def test_bfloat16_has_gradients_too(model):
    model = copy.deepcopy(model).to(torch.bfloat16)
    replay, suffixes = read_suffixes(model)
    probs = with_gradients(other_probs(model, suffixes))
    logits_NV = replay.logits(suffixes, Remix(probs))
    assert logits_NV.dtype == torch.float32
    for gradient in torch.autograd.grad(logits_NV.logsumexp(-1).sum(), list(probs.values())):
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0


# Families


def test_a_recurrent_model_is_refused_by_name():
    with pytest.raises(ConfigError, match="Qwen3NextForCausalLM"):
        SuffixReplay(small_model("qwen3_next"), 0)


def of_one_question(values_by_layer: dict[int, Tensor], question: int) -> dict[int, Tensor]:
    """[1, W, ...] of each layer."""
    return {layer: values[question : question + 1] for layer, values in values_by_layer.items()}


def assert_no_change(replay: SuffixReplay, suffixes: list[PromptSuffix], remix: Remix) -> None:
    rounding.assert_close(replay.logits(suffixes, remix), replay.logits(suffixes, None))
    scores = replay.score(suffixes, remix)
    expected_scores = replay.score(suffixes, None)
    for score, expected in zip(scores, expected_scores, strict=True):
        values = [value for value, _ in score]
        assert values == pytest.approx([value for value, _ in expected], abs=1e-4)


@pytest.mark.parametrize("family", by_family(BY_LOGITS))
def test_every_family_that_chooses_by_logits(family):
    """Biases, scales, groups and seams of its own: nothing changes at its own probabilities,
    and a token's core experts are its own whatever else is in the batch, with gradients."""
    model = small_model(family)
    if not runs_on_kv_cache(model):
        with pytest.raises(ConfigError, match="keeps more than keys and values"):
            SuffixReplay(model, 0)
        return
    replay, suffixes = read_suffixes(model)
    model_probs = own_probs(model, suffixes)
    assert_no_change(replay, suffixes, Remix(model_probs))

    probs = with_gradients(other_probs(model, suffixes))
    core = {layer: probs_NWE.topk(5).indices for layer, probs_NWE in model_probs.items()}
    together_NV = replay.logits(suffixes, Remix(probs, core))
    assert (together_NV - replay.logits(suffixes, None)).abs().max() > 1e-3
    for n, suffix in enumerate(suffixes):
        remix = Remix(of_one_question(probs, n), of_one_question(core, n))
        [alone_V] = replay.logits([suffix], remix)
        rounding.assert_close(together_NV[n], alone_V)

    gradients = torch.autograd.grad(together_NV.logsumexp(-1).sum(), list(probs.values()))
    for gradient in gradients:
        assert gradient.isfinite().all()
        if family not in SATURATED:
            assert gradient.abs().max() > 0
