"""Every family at the seam: what changes nothing changes no bit, hooks fire in every MoE layer,
nothing is left behind. Weights-first experts are those of transformers' plain loop, for every
number of tokens and every family's experts.

A router family is one row of `FAMILIES`. Broken by: a second place that has to know it; a gate,
bias, layout or norm of some family that is overlooked, a token's rows put back in another order.
"""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers.models.olmoe.modeling_olmoe import OlmoeTopKRouter

import moe_lab.models.experts  # noqa: F401 - registers weights_first
from moe_lab.engine.forward.layers import runs_on_kv_cache
from moe_lab.errors import ConfigError
from moe_lab.models import experts as weights_first
from moe_lab.models.auto_class import auto_class, experts_option
from moe_lab.models.experts import MAX_TOKENS_PER_EXPERT, weights_first_experts_forward
from moe_lab.models.source import set_experts_per_token
from moe_lab.models.transformers_internals import experts_of as experts_of_config
from moe_lab.routing import GumbelTopK, Routing, find_routers, gumbel, record, routed
from moe_lab.routing import families as table
from moe_lab.routing.families import FAMILIES, UNSUPPORTED, Family, every_layer, family_of_type
from moe_lab.routing.rules import LOGITS, softmax
from tests.support import rounding, slow_routing
from tests.support.families import ONE_WAY, VOCAB, ZOO
from tests.support.models import make_model, small_config, small_model
from tests.support.slow_routing import noisy_tokens
from tests.support.sources import ROOT
from tests.support.tiers import FAST, by_family

IDS = torch.arange(2 * 14).reshape(2, 14) * 7 % VOCAB
EXPERTS = ("eager", "grouped_mm", "batched_mm", "weights_first")

families = pytest.mark.parametrize("model_type", by_family(sorted(ZOO)))


def logits(model):
    with torch.inference_mode():
        return model(IDS).logits


class Fired:
    """A policy that does nothing but to note where it was asked."""

    def __init__(self):
        self.layers = []

    def __call__(self, router, routing):
        self.layers.append(router.layer)


def left_behind(model):
    """Everything that a context could leave on a model."""
    hooks = (
        "_forward_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs",
    )
    parts = []
    for name, module in model.named_modules():
        hook_counts = [len(getattr(module, hook)) for hook in hooks]
        parts.append((name, sorted(vars(module)), *hook_counts))
    return parts


def test_every_family_has_a_small_model():
    assert sorted(ZOO) == sorted(family.model_type for family in FAMILIES)
    assert sorted(slow_routing.SPECS) == sorted(ZOO)
    assert not set(UNSUPPORTED) & set(ZOO)


@families
def test_what_the_configuration_says_is_what_the_model_has(model_type):
    config = small_config(model_type).get_text_config()
    family = family_of_type(model_type)
    with record(small_model(model_type)) as routes:
        logits(small_model(model_type))
    # LongCat's router chooses among its zero experts too, which compute nothing
    experts = family.num_experts(config) + getattr(config, "zero_expert_num", 0)
    assert (
        len(routes.logits)
        == family.moe_layers(config)
        == len(find_routers(small_model(model_type)))
    )
    for layer_logits, index in zip(routes.logits, routes.indices, strict=True):
        assert layer_logits.shape == (IDS.numel(), experts)
        assert index.shape == (IDS.numel(), family.experts_per_token(config))


def copied_routing(router, routing):
    return Routing(*(tensor.clone() for tensor in routing))


@families
def test_policies_that_change_nothing_change_no_bit(model_type):
    model = small_model(model_type)
    before = left_behind(model)
    if model_type in ONE_WAY:
        ways = [None]
    elif model_type in FAST:
        ways = list(EXPERTS)
    else:
        ways = list(EXPERTS[-1:])  # hooks end before experts are computed
    for experts in ways:
        if experts:
            model.set_experts_implementation(experts_option(model.config, experts))
        clean = logits(model)
        fired = Fired()
        with routed(model, fired):
            assert torch.equal(logits(model), clean)
        assert fired.layers == list(range(len(find_routers(model))))
        with record(model):
            assert torch.equal(logits(model), clean)
        policy = GumbelTopK([0.0] * len(fired.layers), seed=0)
        policy.expect(slow_routing.noisy_tokens(IDS.numel()))
        with routed(model, policy):
            assert torch.equal(logits(model), clean)
        with routed(model, copied_routing):
            assert torch.equal(logits(model), clean)
    if model_type not in ONE_WAY:
        model.set_experts_implementation(experts_option(model.config, "grouped_mm"))
    assert left_behind(model) == before


@families
def test_weights_and_choice_are_the_routers_own(model_type):
    def check(router, routing):
        weights = router.weights(routing.logits_TE, routing.index_TK)
        assert torch.equal(weights.to(routing.weights_TK.dtype), routing.weights_TK)
        chosen = router.choose(router.scores(routing.logits_TE), routing.index_TK.shape[-1])
        assert torch.equal(chosen.sort(dim=-1).values, routing.index_TK.sort(dim=-1).values)

    with routed(small_model(model_type), check):
        logits(small_model(model_type))


# the router of inkling2_text must be left in float32
@pytest.mark.parametrize("model_type", by_family(sorted(set(ZOO) - {"inkling2_text"})))
def test_in_bfloat16_weights_are_the_routers_own_and_noise_acts(model_type):
    model = copy.deepcopy(small_model(model_type)).to(torch.bfloat16)
    policy = GumbelTopK([0.5] * len(find_routers(model)), seed=3)
    policy.expect(slow_routing.noisy_tokens(IDS.numel()))

    def check(router, routing):
        weights = router.weights(routing.logits_TE, routing.index_TK).to(routing.weights_TK.dtype)
        torch.testing.assert_close(weights, routing.weights_TK, rtol=1e-2, atol=1e-3)
        noisy = policy(router, routing)
        assert [tensor.dtype for tensor in noisy] == [tensor.dtype for tensor in routing]
        return noisy

    clean = logits(model)
    with routed(model, check):
        noisy = logits(model)
    assert noisy.dtype == clean.dtype
    assert noisy.isfinite().all()
    assert not torch.equal(noisy, clean)


@families
def test_noise_is_what_the_slow_reference_makes_of_it(model_type):
    model = small_model(model_type)
    family = family_of_type(model_type)
    temperature = 1.0 if family.rule.noise == LOGITS else 0.1
    spec = slow_routing.SPECS[model_type]
    positions = list(range(IDS.numel()))
    policy = GumbelTopK([temperature] * len(find_routers(model)), seed=3)
    policy.expect(slow_routing.noisy_tokens(IDS.numel()))
    changed = []

    def check(router, routing):
        module, block = slow_routing.routers_of(model)[router.layer]
        assert module is router.module
        noisy = policy(router, routing)
        noise = gumbel(3, 77, 0, 1, router.layer, positions, routing.logits_TE.shape[-1])
        for token in positions:
            arguments = (routing.logits_TE[token].tolist(), noise[token].tolist(), temperature)
            count = routing.index_TK.shape[-1]
            chosen, weights = slow_routing.route(
                spec, model.config.get_text_config(), module, block, *arguments, count
            )
            actual = dict(
                zip(noisy.index_TK[token].tolist(), noisy.weights_TK[token].tolist(), strict=True)
            )
            assert actual == rounding.approx(dict(zip(chosen, weights, strict=True)))
            changed.append(set(chosen) != set(routing.index_TK[token].tolist()))

    with routed(model, check):
        logits(model)
    assert 0.05 < sum(changed) / len(changed) < 1


@families
def test_perturbed_weights_tend_to_the_clean_ones_with_the_temperature(model_type):
    if not family_of_type(model_type).chooses_by_logits:
        return  # refused by method=roe
    model = small_model(model_type)
    policy = GumbelTopK([1e-12] * len(find_routers(model)), seed=3, perturbed_weights=True)
    policy.expect(slow_routing.noisy_tokens(IDS.numel()))

    def check(router, routing):
        noisy = policy(router, routing)
        for noisy_routing, plain_routing in ((noisy, routing), (routing, noisy)):
            weights_TE = torch.zeros_like(noisy_routing.logits_TE).scatter(
                -1, noisy_routing.index_TK, noisy_routing.weights_TK
            )
            torch.testing.assert_close(
                weights_TE.gather(-1, plain_routing.index_TK),
                plain_routing.weights_TK,
                rtol=1e-4,
                atol=1e-5,
            )

    with routed(model, check):
        logits(model)


@families
def test_another_number_of_experts_per_token_is_had_or_refused(model_type):
    for count in (1, 3):
        config = copy.deepcopy(small_config(model_type))
        try:
            set_experts_per_token(config, count)
        except ConfigError:
            assert family_of_type(model_type).fixed_top_k
            continue
        model = auto_class(config).from_config(config).eval()
        with record(model) as routes:
            logits(model)
        assert {index.shape[-1] for index in routes.indices} == {count}


def test_more_experts_than_the_open_groups_have_are_refused():
    with pytest.raises(ConfigError, match="1 to 4 experts of the 8"):
        set_experts_per_token(copy.deepcopy(small_config("deepseek_v3")), 5)
    layers = SimpleNamespace(moe_topk=[1, 2, 1])
    assert family_of_type("hunyuan_v1_moe").experts_per_token(layers) == 2


# The table of families in docs/models.md

PAGE = ROOT / "docs" / "models.md"


def row(family) -> str:
    model = small_model(family.model_type)
    module_names = {name.split(".")[-1] for name, _ in model.named_modules()}
    noise = family.rule.noise
    if family.bias:
        noise += " + bias"
    has_shared_experts = {"shared_expert", "shared_experts", "shared_mlp"} & module_names
    cells = (
        family.name,
        f"`{family.model_type}`",
        family.rule.text,
        noise,
        "yes" if has_shared_experts else "",
        "all" if family.moe_layers is every_layer else "as configured",
        "KV cache" if runs_on_kv_cache(model) else "recurrent",
        ", ".join(f"`{model_type}`" for model_type in family.image_text),
    )
    return f"| {' | '.join(cells)} |"


@pytest.mark.slow
def test_every_family_is_described_as_it_is():
    table = "\n".join(row(family) for family in FAMILIES)
    assert table in PAGE.read_text(), f"the table should be\n{table}"


def test_families_that_cannot_be_routed_are_named_with_the_reason():
    text = " ".join(PAGE.read_text().split())
    for model_type, reason in UNSUPPORTED.items():
        assert f"`{model_type}`: {reason}" in text


ROW = Family("Lab", "lab", "LabRouter", softmax(), module=__name__)


class LabRouter(nn.Module):
    """A router that transformers does not have. It chooses like OLMoE's, in its own class."""

    def __init__(self, router: OlmoeTopKRouter):
        super().__init__()
        self.weight = router.weight
        self.top_k = router.top_k
        self.num_experts = router.num_experts
        self.norm_topk_prob = router.norm_topk_prob

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        logits = nn.functional.linear(hidden.reshape(-1, hidden.shape[-1]), self.weight)
        weights, indices = logits.softmax(dim=-1, dtype=torch.float).topk(self.top_k, dim=-1)
        return logits, weights.to(logits.dtype), indices


def lab_model() -> nn.Module:
    model = make_model("olmoe")
    for layer in model.model.layers:
        layer.mlp.gate = LabRouter(layer.mlp.gate)
    return model


def test_one_row_makes_a_family_known(monkeypatch):
    model = lab_model()
    assert not [router for router in model.modules() if table.family_of(router)]
    monkeypatch.setitem(table._BY_CLASS, ROW.router_class, ROW)
    monkeypatch.setitem(table._BY_MODEL_TYPE, ROW.model_type, ROW)
    assert family_of_type("lab") is ROW
    assert len(find_routers(model)) == 4
    with torch.inference_mode():
        plain = model(IDS).logits
        assert torch.equal(plain, make_model("olmoe")(IDS).logits)
        with routed(model, lambda router, routing: None):
            assert torch.equal(model(IDS).logits, plain)
        noise = GumbelTopK([1.0] * 4, seed=0)
        noise.expect(noisy_tokens(IDS.numel()))
        with routed(model, noise):
            assert not torch.equal(model(IDS).logits, plain)


def experts_of(model):
    return next((module for module in model.modules() if hasattr(module, "is_transposed")), None)


def inputs(experts, tokens, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    weights = next(experts.parameters())
    hidden = experts.down_proj.shape[-1 if experts.is_transposed else -2]
    assert weights.dtype == dtype
    draw = lambda: torch.randperm(experts.num_experts, generator=generator)[:2]  # noqa: E731
    index_TK = torch.stack([draw() for _ in range(tokens)])
    hidden_TH = torch.randn(tokens, hidden, generator=generator).to(dtype)
    return hidden_TH, index_TK, torch.rand(tokens, 2, generator=generator).to(dtype)


def eager(model, experts, arguments):
    before = experts_of_config(model.config.get_text_config())
    model.set_experts_implementation(experts_option(model.config, "eager"))
    with torch.inference_mode():
        output = experts(*arguments)
    model.set_experts_implementation(experts_option(model.config, before))
    return output


@pytest.mark.parametrize("family", by_family(sorted(ZOO)))
def test_equals_the_plain_loop(family):
    model = small_model(family)
    experts = experts_of(model)
    assert (experts is None) == (family in ONE_WAY)
    for tokens in (
        (1, 2, 5, 8 * MAX_TOKENS_PER_EXPERT // 2, 8 * MAX_TOKENS_PER_EXPERT) if experts else ()
    ):
        arguments = inputs(experts, tokens)
        with torch.inference_mode():
            output = weights_first_experts_forward(experts, *arguments)
        torch.testing.assert_close(output, eager(model, experts, arguments), rtol=1e-5, atol=1e-6)


def test_bfloat16_is_left_to_grouped_mm(monkeypatch):
    model = make_model("olmoe").to(torch.bfloat16)
    experts = experts_of(model)
    calls = []
    monkeypatch.setattr(
        weights_first, "grouped_mm_experts_forward", lambda *arguments: calls.append(arguments)
    )
    with torch.inference_mode():
        weights_first_experts_forward(experts, *inputs(experts, 3, torch.bfloat16))
    assert len(calls) == 1
