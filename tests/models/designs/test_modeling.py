"""Designs as language models.

Broken by: other parts than the backbones', a later token that reaches an earlier logit,
a cache that changes a unit's decision, names or buffers that do not come back, a design that does
not exist but is built, a setting that has no effect but is taken.
"""

import copy
from itertools import cycle
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForCausalLM, DynamicCache

from moe_lab.config.schema import ModelConfig
from moe_lab.models.designs.configuration import MoeDesignConfig
from moe_lab.models.source import load_config
from tests.support.designs import BACKBONES, COMMON, design
from tests.support.models import build, load_folder, save_model
from tests.support.tiers import first_fast

IDS = torch.randint(0, 256, (2, 14), generator=torch.Generator().manual_seed(5))
ROUTERS = ("token", "word", "sentence", "word-hash", "expert")
CAUSAL = ROUTERS[:4]
routers = pytest.mark.parametrize("router", ROUTERS)
designs = pytest.mark.parametrize(("router", "backbone"), [*zip(ROUTERS, cycle(BACKBONES))])
"""Every router, on one backbone or the other: what is tested does not depend on the pair."""


def logits_of(model, ids, **options):
    with torch.no_grad():
        return model(ids, **options).logits


def test_the_backbone_olmoe_is_transformers_olmoe_bit_for_bit():
    own_model = design("token", clip_qkv=0.5, norm_topk_prob=True, rms_norm_eps=1e-5)
    settings = {key: value for key, value in COMMON.items() if key != "moe_intermediate_size"}
    settings |= dict(intermediate_size=24, num_experts=5, n_routed_experts=...)
    settings |= dict(clip_qkv=0.5, norm_topk_prob=True)
    other_model = build("olmoe", settings, seed=1)
    assert not torch.equal(logits_of(own_model, IDS), logits_of(other_model, IDS))
    own_model.load_state_dict(other_model.state_dict())
    assert_same(own_model, other_model)


def test_the_backbone_deepseek_is_our_deepseek_bit_for_bit():
    settings = dict(first_k_dense_replace=1, n_shared_experts=2)
    own_model = design("token", backbone="deepseek", **settings)
    other_model = build("deepseek", COMMON | settings, seed=1)
    own_model.load_state_dict(other_model.state_dict())
    assert_same(own_model, other_model)


def assert_same(own_model, expected_model):
    """Logits, router logits, gradients and greedy tokens."""
    for implementation in ("eager", "grouped_mm"):
        own_model.set_experts_implementation(implementation)
        expected_model.set_experts_implementation(implementation)
        assert torch.equal(logits_of(own_model, IDS), logits_of(expected_model, IDS))
    losses = [
        model(IDS, labels=IDS, output_router_logits=True) for model in (own_model, expected_model)
    ]
    for own_logits, expected_logits in zip(
        losses[0].router_logits, losses[1].router_logits, strict=True
    ):
        assert torch.equal(own_logits, expected_logits)
    for model in (own_model, expected_model):
        model(IDS, labels=IDS).loss.backward()
    expected_logits = dict(expected_model.named_parameters())
    for name, parameter in own_model.named_parameters():
        assert torch.equal(parameter.grad, expected_logits[name].grad), name
    new = dict(max_new_tokens=4, do_sample=False)
    assert torch.equal(own_model.generate(IDS, **new), expected_model.generate(IDS, **new))


@pytest.mark.parametrize("backbone", first_fast(BACKBONES))
@pytest.mark.parametrize("router", CAUSAL)
def test_a_later_token_changes_no_bit_of_earlier_logits(router, backbone):
    """With `batched_mm` each token has its own product: other tokens do not change how its sums
    are rounded."""
    model = design(router, n_shared_experts=1, **BACKBONES[backbone])
    model.set_experts_implementation("batched_mm")
    before = logits_of(model, IDS)
    for place in (3, 9, 13):
        changed = IDS.clone()
        changed[0, place] = (changed[0, place] + 1) % 256
        after = logits_of(model, changed)
        assert torch.equal(after[0, :place], before[0, :place])
        assert torch.equal(after[1], before[1])
        assert not torch.equal(after[0, place:], before[0, place:])


@pytest.mark.parametrize("backbone", first_fast(BACKBONES))
@pytest.mark.parametrize("router", CAUSAL)
def test_reading_in_parts_over_a_cache_is_reading_at_once(router, backbone):
    """Parts end inside units.

    A later token of the same part, or a later part, changes no bit of earlier logits.
    """
    model = design(router, **BACKBONES[backbone])
    model.set_experts_implementation("batched_mm")
    whole = logits_of(model, IDS)
    changed = IDS.clone()
    changed[:, 11] = (changed[:, 11] + 1) % 256
    read = []
    for ids in (IDS, changed):
        cache = DynamicCache(config=model.config)
        logits = []
        for part in ids.split([4, 1, 1, 1, 6, 1], dim=1):
            logits.append(logits_of(model, part, cache=cache))
        read.append(torch.cat(logits, dim=1))
    torch.testing.assert_close(read[0], whole, rtol=1e-4, atol=1e-5)
    assert torch.equal(read[0][:, :11], read[1][:, :11])
    assert not torch.equal(read[0][:, 11], read[1][:, 11])


@pytest.mark.parametrize("beams", first_fast([1, 3]))
@designs
def test_generation_from_padded_prompts_is_that_of_whole_passes(router, backbone, beams):
    model = design(router, **BACKBONES[backbone])
    model.generation_config.eos_token_id = None
    mask = torch.ones_like(IDS)
    mask[0, :5] = 0
    prompts = torch.where(mask.bool(), IDS, 256)
    options = dict(max_new_tokens=9, do_sample=False, num_beams=beams)
    generated = model.generate(prompts, attention_mask=mask, **options)
    for row, start in ((0, 5), (1, 0)):
        row_alone = model.generate(IDS[row : row + 1, start:], use_cache=False, **options)
        assert generated[row, start:].tolist() == row_alone[0].tolist()
    if beams == 1 and model.is_causal_router:  # expert choice would read the new tokens, too
        greedy = logits_of(model, generated[1:, :-1])[0, 13:].argmax(dim=-1)
        assert greedy.tolist() == generated[1, 14:].tolist()


@pytest.mark.parametrize(
    ("router", "dtype"), [*zip(ROUTERS, cycle((torch.float32, torch.bfloat16)))]
)
def test_every_parameter_learns(router, dtype):
    biased = router not in ("expert", "word-hash")
    model = design(router, n_shared_experts=1, selection_bias=biased).to(dtype).train()
    model.activation_checkpointing_enable({"use_reentrant": False})
    mask = torch.ones_like(IDS)
    mask[1, 9:] = 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    bias = copy.deepcopy([layer.mlp.gate.selection_bias for layer in model.model.layers])
    losses = []
    for _ in range(4):
        labels = IDS.masked_fill(mask == 0, -100)
        loss = model(IDS, attention_mask=mask, labels=labels, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        for p in model.parameters():
            assert p.grad.isfinite().all()
            assert p.grad.abs().sum() > 0
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    for layer, before in zip(model.model.layers, bias, strict=True):
        assert before is None or torch.equal(layer.mlp.gate.selection_bias, before)


@routers
def test_checkpointing_changes_no_gradient(router):
    grads = []
    for checkpointing in (False, True):
        model = design(router).train()
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
        model(IDS, labels=IDS, use_cache=False).loss.backward()
        grads.append([parameter.grad for parameter in model.parameters()])
    for plain, checkpointed in zip(*grads, strict=True):
        torch.testing.assert_close(plain, checkpointed, rtol=1e-5, atol=1e-7)


@routers
def test_router_logits_are_recorded_of_every_moe_layer(router):
    model = design(router, **BACKBONES["deepseek"])
    out = model(IDS, output_router_logits=True, output_attentions=True, output_hidden_states=True)
    assert [logits.shape for logits in out.router_logits] == [(28, 5)] * 2
    assert len(out.hidden_states) == 4


@designs
def test_a_model_comes_back_without_its_tokenizer(router, backbone, tmp_path):
    biased = router not in ("expert", "word-hash")
    model = design(router, selection_bias=biased, n_shared_experts=1, **BACKBONES[backbone])
    model.save_pretrained(tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert "model.layers.2.mlp.experts.4.down_proj.weight" in names
    assert ("model.units.kind_V" in names) == (router in ("word", "sentence", "word-hash"))
    assert ("model.layers.1.mlp.gate.selection_bias" in names) == biased
    second_model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(logits_of(second_model, IDS), logits_of(model, IDS))
    decoder = AutoModel.from_pretrained(tmp_path)
    with torch.no_grad():
        hidden = decoder(IDS).last_hidden_state
    assert torch.equal(hidden, model.model(IDS).last_hidden_state)
    half = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    stored_bias = half.model.layers[1].mlp.gate.selection_bias
    if biased:
        assert stored_bias.dtype == torch.float32
        assert stored_bias.equal(model.model.layers[1].mlp.gate.selection_bias)


def test_it_is_loaded_like_any_other_model(tmp_path):
    model = design("word", **BACKBONES["deepseek"])
    loaded = load_folder(save_model(model, tmp_path))
    torch.testing.assert_close(
        logits_of(loaded.model, IDS), logits_of(model, IDS), rtol=1e-4, atol=1e-5
    )


def test_units_that_were_not_set_are_said():
    model = type(design("word"))(design("word").config)
    with pytest.raises(ValueError, match=r"Call model.set_units\(unit_tables"):
        model(IDS)
    with pytest.raises(ValueError, match="router=token has no units"):
        design("token").set_units(SimpleNamespace())


@pytest.mark.parametrize("router", ["word", "expert"])
def test_inputs_without_token_ids_or_padding_are_refused(router):
    model = design(router)
    with pytest.raises(ValueError, match="read token ids"):
        model(inputs_embeds=torch.zeros(1, 3, 32))
    with pytest.raises(ValueError, match=r"attention mask \[sequences, positions\]"):
        model(IDS, attention_mask=torch.zeros(2, 1, 14, 14))


def test_assisted_generation_is_refused():
    model = design("word")
    with pytest.raises(ValueError, match="stateful"):
        model.generate(IDS[:1], assistant_model=design("token"), max_new_tokens=3)


# Configurations


def test_a_configuration_comes_back(tmp_path):
    settings = dict(backbone="deepseek", router="word", first_k_dense_replace=2, clip_qkv=8)
    config = MoeDesignConfig(**COMMON | settings)
    config.save_pretrained(tmp_path)
    second_config = load_config(ModelConfig(path=str(tmp_path)), offline=True)
    assert type(second_config) is MoeDesignConfig
    stored_keys = (
        "backbone",
        "router",
        "selection_bias",
        "clip_qkv",
        "first_k_dense_replace",
        "capacity_factor",
    )
    assert [getattr(second_config, key) for key in stored_keys] == [
        "deepseek",
        "word",
        False,
        8,
        2,
        1.0,
    ]
    assert second_config.layer_types == ["hybrid"] * 3
    assert MoeDesignConfig(**COMMON).layer_types is None


def test_expert_choice_has_no_cache():
    assert MoeDesignConfig(**COMMON).use_cache
    assert not MoeDesignConfig(**COMMON, router="expert").use_cache
