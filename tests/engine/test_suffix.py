"""Suffix replay and generation with re-routed tokens equal whole passes: logits, gradients, continuations. Attention without
gradients of the prefix equals torch's own, with gradients of the new slots.

Broken by: a pathway given to another prompt's tokens or to padding, one that ends too early or too late, a share that is
not the token's own rest, a replacement of transformers' own attention, or of other models' attention.
"""

import copy

import pytest
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from moe_lab.engine import suffix_attention
from moe_lab.engine.forward.layers import runs_on_kv_cache
from moe_lab.engine.generate import generate
from moe_lab.engine.sampling import Decoding, GenerationState, Sampler, generation_config
from moe_lab.engine.scoring import Budget
from moe_lab.engine.suffix import PERSISTENCE, ReroutedForward, SuffixReplay
from moe_lab.engine.token_span import TokenSpan, check_length, named_tokens
from moe_lab.errors import ConfigError
from moe_lab.routing import document_key, family_of_type, find_routers, record
from moe_lab.routing.remix import Remix
from moe_lab.routing.rules import LOGITS
from tests.support import rounding
from tests.support.brute_prompt_tail import FAMILIES, prompts, routed_logits, whole_logits
from tests.support.families import ZOO
from tests.support.models import small_model
from tests.support.tiers import by_family, first_fast

BUDGET = Budget(64)
BY_LOGITS = [name for name in ZOO if family_of_type(name).rule.noise == LOGITS]
SPANS = [named_tokens(name) for name in ("last1", "first1", "middle1", "last3", "first3")]
SATURATED = {"phimoe"}
"""Weights are 1 for all experts that others are far above or below, and have no gradient then."""


@pytest.fixture(params=first_fast(FAMILIES))
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
    layers = changed_layers(model)
    return {
        layer: torch.stack([token.pathway_WME[:, layer] for token in tokens]) for layer in layers
    }


@pytest.mark.parametrize(
    ("span", "core"),
    # which experts take part is settled in a router, which knows nothing of where its tokens stand
    [*((span, False) for span in SPANS), (SPANS[0], True), (SPANS[3], True)],
    ids=str,
)
def test_given_probabilities_equal_whole_passes_with_gradients(model, span, core):
    """In float64. A wrong token, layer, weight rule, prefix, mask or position, or a cut graph, would show; so would further
    experts of the tokens after it that are more than nothing."""
    model = copy.deepcopy(model).double()
    model.set_experts_implementation("eager")
    continuations = [[[5, 6, 7]], [[8]], [[9, 1]], [[2, 2, 2]], [[3]]]
    replay, tokens = read(model, span, continuations=continuations)
    probs = {layer: value.requires_grad_() for layer, value in mixed(model, tokens).items()}
    experts = {
        layer: value.topk(5).indices for layer, value in mixed(model, tokens, seed=9).items()
    }
    logits_MV = replay.logits(tokens, Remix(probs, experts if core else None))
    answers = torch.tensor([token for [answer] in continuations for token in answer])
    losses_M = torch.nn.functional.cross_entropy(logits_MV, answers, reduction="none")
    gradients = torch.autograd.grad(losses_M.sum(), list(probs.values()))

    done, steepest = 0, 0.0
    for n, (prompt, [answer]) in enumerate(
        zip(prompts(least=span.size), continuations, strict=True)
    ):
        own = {layer: value[n].detach().requires_grad_() for layer, value in probs.items()}
        chosen = {layer: value[n] for layer, value in experts.items()} if core else None
        start = span.start(len(prompt))
        assert tokens[n].position == start
        expected_TV = whole_logits(model, [*prompt, *answer[:-1]], start, own, chosen)
        expected_AV = expected_TV[len(prompt) - 1 :]
        rounding.assert_close(logits_MV[done : done + len(answer)], expected_AV)
        loss = torch.nn.functional.cross_entropy(expected_AV, torch.tensor(answer), reduction="sum")
        wanted = torch.autograd.grad(loss, list(own.values()))
        for gradient_NWE, expected_WE in zip(gradients, wanted, strict=True):
            steepest = max(steepest, expected_WE.abs().max().item())
            torch.testing.assert_close(gradient_NWE[n], expected_WE, atol=2e-6, rtol=1e-4)
        done += len(answer)
    assert done == len(logits_MV) and steepest > 1e-4


@pytest.mark.parametrize("span", SPANS, ids=str)
def test_zero_changes_are_no_changes_whatever_the_tokens(model, span):
    replay, tokens = read(model, span)
    unchanged = replay.logits(tokens, None)
    for prompt, token, row in zip(prompts(least=span.size), tokens, unchanged, strict=True):
        with torch.no_grad(), record(model) as routes:
            rounding.assert_close(row, model(torch.tensor([prompt]), use_cache=False).logits[0, -1])
        here = slice(token.position, token.position + span.size)
        expected_WME = torch.stack(
            [logits_TE[here].softmax(-1) for logits_TE in routes.logits], dim=1
        )
        rounding.assert_close(token.pathway_WME, expected_WME)
    remix = Remix(own_probs(model, tokens))
    rounding.assert_close(replay.logits(tokens, remix), unchanged)


@pytest.mark.parametrize("span", SPANS, ids=str)
def test_the_mean_hidden_state_is_that_of_the_prompt_alone(model, span):
    """Read in several passes, after a shared prefix, next to longer prompts and before continuations."""
    replay = SuffixReplay(model, changed_layers(model)[0], span)
    asked = prompts(least=span.size)
    for budget in (BUDGET, Budget(4)):
        read = replay.read(asked, budget, [[[5, 6, 7], [8]]] * len(asked))
        for prompt, suffix in zip(asked, read, strict=True):
            with torch.no_grad():
                hidden_TD = model.model(torch.tensor([prompt]), use_cache=False).last_hidden_state[
                    0
                ]
            assert suffix.prompt == tuple(prompt)
            rounding.assert_close(suffix.mean_D, hidden_TD.mean(0))


def test_the_tokens_of_prompts_and_of_their_suffixes_are_counted(model):
    """The beginning that two prompts share is read once."""
    first, second = [7] * 30, [[7] * 22 + [8, 9], [1, 2]]
    replay = SuffixReplay(model, changed_layers(model)[0])
    suffixes = replay.read([first, *second], BUDGET)
    assert replay.tokens_in == 22 + 8 + 2 + 2
    for times in (1, 2):
        replay.logits(suffixes, None)
        assert replay.tokens_in == 34 + 3 * times


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


@pytest.mark.parametrize(
    ("span", "unchanged"), [*((span, False) for span in SPANS[:4]), (SPANS[3], True)], ids=str
)
def test_continuations_read_the_changed_tokens_and_are_routed_as_usual(model, span, unchanged):
    continuations = [[[5], [6, 7], [6, 8, 9]]] * len(prompts())
    replay, tokens = read(model, span, continuations=continuations)
    probs = mixed(model, tokens)
    scores = replay.score(tokens, None if unchanged else Remix(probs))
    for n, prompt in enumerate(prompts(least=span.size)):
        start = span.start(len(prompt))
        own = {} if unchanged else {layer: value[n] for layer, value in probs.items()}
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
    kept = [token.hidden_QD for token in tokens] + [
        token.prefix.layers[-1].keys for token in tokens
    ]
    assert not any(tensor.requires_grad or tensor.is_inference() for tensor in kept)


def test_bfloat16_has_gradients_too(model):
    low = copy.deepcopy(model).to(torch.bfloat16)
    replay, tokens = read(low)
    probs = {layer: value.requires_grad_() for layer, value in mixed(low, tokens).items()}
    logits_NV = replay.logits(tokens, Remix(probs))
    assert logits_NV.dtype == torch.float32
    gradients = torch.autograd.grad(logits_NV.logsumexp(-1).sum(), list(probs.values()))
    assert all(gradient.isfinite().all() and gradient.abs().max() > 0 for gradient in gradients)


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
    unchanged = replay.logits(tokens, None)
    rounding.assert_close(replay.logits(tokens, Remix(own)), unchanged)
    for mine, plain in zip(
        replay.score(tokens, Remix(own)), replay.score(tokens, None), strict=True
    ):
        assert [value for value, _ in mine] == pytest.approx(
            [value for value, _ in plain], abs=1e-4
        )
    probs = {layer: value.requires_grad_() for layer, value in mixed(model, tokens).items()}
    core = {layer: value.topk(5).indices for layer, value in own.items()}
    together = replay.logits(tokens, Remix(probs, core))
    assert (together - unchanged).abs().max() > 1e-3
    for n, token in enumerate(tokens):
        one = slice(n, n + 1)
        remix = Remix({k: v[one] for k, v in probs.items()}, {k: v[one] for k, v in core.items()})
        rounding.assert_close(together[n], replay.logits([token], remix)[0])
    for gradient in torch.autograd.grad(together.logsumexp(-1).sum(), list(probs.values())):
        assert gradient.isfinite().all() and (gradient.abs().max() > 0 or family in SATURATED)


STEPS = 5
GENERATION_SPANS = [
    TokenSpan(),
    TokenSpan("first", 1),
    TokenSpan("middle", 3),
    TokenSpan("last", 3),
]


def pathways(model, count, span, seed=3):
    """Other probabilities for each prompt and token, in the later layers."""
    torch.manual_seed(seed)
    layers = [router.layer for router in find_routers(model)][-2:]
    experts = find_routers(model)[0].module.weight.shape[0]
    return {layer: torch.rand(count, span.size, experts).mul(3).softmax(-1) for layer in layers}


def share_of(position, length, span, persistence):
    """(which pathway, its share) of a token, from the definition."""
    start = span.start(length)
    if position < length:
        return (position - start, 1.0) if start <= position < start + span.size else None
    new = position - length + 1
    share = {"prompt_last": 0.0, "all_new": 1.0, "decay": 0.5**new}[persistence]
    return (span.size - 1, share) if share else None


def brute_logits(model, ids, length, probs, span, persistence):
    """After the last of these tokens, in one pass over all of them."""

    def decide(layer, t, logits_E):
        if found := share_of(t, length, span, persistence):
            w, share = found
            return share * probs[layer][w] + (1 - share) * logits_E.float().softmax(-1), None
        return None

    with torch.no_grad():
        return routed_logits(model, ids, probs, decide)[-1]


@pytest.mark.parametrize(
    ("family", "span", "persistence"),
    [  # every pair of a span and a persistence in some family
        pytest.param(family, span, PERSISTENCE[(i + j) % 3], marks=[pytest.mark.slow] * bool(i))
        for i, family in enumerate(FAMILIES)
        for j, span in enumerate(GENERATION_SPANS)
    ],
    ids=str,
)
def test_generated_tokens_are_those_of_whole_passes(family, span, persistence):
    model = small_model(family)
    asked = prompts(least=span.size)
    probs = pathways(model, len(asked), span)
    answers = [GenerationState(i, prompt, document_key(prompt)) for i, prompt in enumerate(asked)]
    seen = {}

    def choose(scores_AV, going):
        for scores_V, answer in zip(scores_AV, going, strict=True):
            seen[answer.index, len(answer.generated)] = scores_V
        return decoder(scores_AV, going)

    decoder = Sampler(model, generation_config(model, {}), 0)
    budget = Budget(64)
    with ReroutedForward(model, answers, probs, span, persistence) as forward:
        decoding = Decoding(choose, lambda generated: False, STEPS)
        generate(forward, answers, budget, decoding, lambda answer: None)
    for n, answer in enumerate(answers):
        own = {layer: probs_NWE[n] for layer, probs_NWE in probs.items()}
        for step in range(STEPS):
            ids = [*answer.prompt, *answer.generated[:step]]
            expected = brute_logits(model, ids, len(answer.prompt), own, span, persistence)
            assert torch.allclose(seen[n, step], expected.float(), atol=2e-5), (n, step)


def test_persistence_matters():
    """Else the checks above could compare the same thing three times."""
    model, span = small_model("olmoe"), TokenSpan()
    ids = prompts()[0]
    probs = {layer: probs_NWE[0] for layer, probs_NWE in pathways(model, 1, span).items()}
    found = [brute_logits(model, ids, 20, probs, span, persistence) for persistence in PERSISTENCE]
    assert not torch.allclose(found[0], found[1], atol=1e-3)
    assert not torch.allclose(found[1], found[2], atol=1e-3)


# Names of tokens


@pytest.mark.parametrize(
    ("name", "length", "start"),
    [
        *(("last1", 7, 6), ("last3", 7, 4), ("first1", 7, 0), ("first3", 7, 0), ("last7", 7, 0)),
        *(
            ("middle1", 7, 3),
            ("middle1", 8, 3),
            ("middle3", 7, 2),
            ("middle3", 3, 0),
            ("middle2", 3, 0),
        ),
    ],
)
def test_names_are_places(name, length, start):
    span = named_tokens(name)
    assert f"{span.where}{span.size}" == name
    assert span.start(length) == start and start + span.size <= length


@pytest.mark.parametrize(
    "name", ["last", "last0", "3", "end1", "last1+first1", "last-1", "last01", "", None]
)
def test_other_names_are_refused_with_examples(name):
    with pytest.raises(ConfigError, match=r"method\.tokens=.*last1 or middle3"):
        named_tokens(name)


def test_a_short_prompt_is_named_with_what_fits():
    span = TokenSpan("middle", 3)
    check_length(span, [1, 2, 3], "long enough")
    told = r"(?s)method\.tokens=middle3: the prompt 'Hi' has 2 tokens.*middle2"
    with pytest.raises(ConfigError, match=told):
        check_length(span, [1, 2], "Hi")
    with pytest.raises(ValueError, match="2 tokens"):
        span.start(2)


@pytest.mark.parametrize("heads", [2, 4, 8], ids=lambda heads: f"{heads} key-value heads of 8")
@pytest.mark.parametrize("new", [1, 3])
def test_it_is_torchs_attention(heads, new):
    torch.manual_seed(0)
    T = 11
    query, key, value = (
        torch.randn(2, count, length, size, dtype=torch.float64)
        for count, length, size in ((8, new, 16), (heads, T + new, 16), (heads, T + new, 12))
    )
    mask = torch.zeros(2, 1, new, T + new, dtype=torch.float64)
    mask[1, :, :, :4] = torch.finfo(torch.float64).min
    mask[:, :, 0, T + 1 :] = torch.finfo(torch.float64).min
    leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    expected = torch.nn.functional.scaled_dot_product_attention(
        *leaves, mask, scale=0.3, enable_gqa=True
    )
    weights = torch.randn(expected.shape, dtype=torch.float64)
    wanted = torch.autograd.grad((expected * weights).sum(), leaves)

    own = [tensor.clone().requires_grad_() for tensor in (query, key[:, :, T:], value[:, :, T:])]
    found = suffix_attention._Attention.apply(*own, key, value, mask, 0.3)
    gradients = torch.autograd.grad((found * weights).sum(), own)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(gradients[0], wanted[0], atol=1e-12, rtol=0)
    for one, other in zip(gradients[1:], wanted[1:], strict=True):
        torch.testing.assert_close(one, other[:, :, T:], atol=1e-12, rtol=0)


def test_scores_are_not_rounded_before_the_softmax():
    """Scores rounded to bfloat16 have errors of 0.05 here; the shares' own rounding, of 0.011."""
    torch.manual_seed(0)
    query, key = (torch.randn(1, 2, size, 64).bfloat16() * 3 for size in (8, 40))
    value, mask = (
        torch.randn(1, 2, 40, 64).bfloat16(),
        torch.zeros(1, 1, 8, 40, dtype=torch.bfloat16),
    )
    exact = torch.nn.functional.scaled_dot_product_attention(
        query.double(), key.double(), value.double()
    )
    new = key[:, :, 32:], value[:, :, 32:]
    found = suffix_attention._Attention.apply(query, *new, key, value, mask, 64**-0.5)
    assert (found.double() - exact).abs().max() < 0.02


@pytest.mark.parametrize("family", by_family(["olmoe", "mixtral", "deepseek"]))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tails_use_it_and_get_what_torchs_own_gives(family, dtype, monkeypatch):
    model = copy.deepcopy(small_model(family)).to(dtype)
    replay, tokens = read(model, TokenSpan("last", 3))
    probs = {layer: value.requires_grad_() for layer, value in mixed(model, tokens).items()}

    def gradients():
        total = replay.logits(tokens, Remix(probs)).logsumexp(-1).sum()
        return torch.autograd.grad(total, list(probs.values()))

    calls = []
    usual = suffix_attention._Attention.apply
    counted = lambda *given: calls.append(len(given)) or usual(*given)  # noqa: E731
    monkeypatch.setattr(suffix_attention._Attention, "apply", counted)
    own = gradients()
    assert len(calls) >= 1, "layers after a re-routed token have gradients"
    layer = suffix_attention.SuffixLayer
    monkeypatch.setattr(layer, "update", forgetful(layer.update))
    count = len(calls)
    torchs = gradients()
    assert len(calls) == count
    for one, other in zip(own, torchs, strict=True):
        atol = other.abs().max().item() * (1e-5 if dtype == torch.float32 else 0.05)
        torch.testing.assert_close(one, other, atol=atol, rtol=0)


def test_nothing_of_transformers_is_replaced():
    model, other = copy.deepcopy(small_model("olmoe")), small_model("olmoe")
    before = dict(ALL_ATTENTION_FUNCTIONS)
    assert suffix_attention.NAME in before
    with pytest.raises(ZeroDivisionError), suffix_attention.suffix_attention(model):
        assert model.config._attn_implementation == suffix_attention.NAME
        assert other.config._attn_implementation == "sdpa"
        assert dict(ALL_ATTENTION_FUNCTIONS) == before
        raise ZeroDivisionError
    assert model.config._attn_implementation == "sdpa"
    model.set_attn_implementation("eager")
    with suffix_attention.suffix_attention(model):
        assert model.config._attn_implementation == "eager"


def forgetful(update):
    """Of a layer whose keys do not say what is new."""

    def changed(self, *args, **kwargs):
        found = update(self, *args, **kwargs)
        del found[0].moe_lab_new
        return found

    return changed
