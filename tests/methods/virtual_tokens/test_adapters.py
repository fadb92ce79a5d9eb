"""Scores after virtual tokens, for every family that can have them.

Broken by: positions that do not start after the virtual tokens, masks that hide them or show padding, a prefix whose
keys and values are mixed up, a window that is counted otherwise in training than in evaluation, and prefixes that
questions of a batch wrongly share.
"""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from safetensors.torch import load_file
from transformers import DynamicCache

from moe_lab.engine.forward.layers import decoder_layers, runs_on_kv_cache
from moe_lab.engine.scoring import Budget, ScoringRequest, score
from moe_lab.methods.virtual_tokens.adapters import refusal, stored_past, with_adapter
from moe_lab.methods.virtual_tokens.training import PLACEHOLDER, Example, VirtualTokensForward, answer_loss
from tests.support import rounding
from tests.support.families import ZOO
from tests.support.models import small_config, small_model
from tests.support.tiers import by_family

KINDS = ("soft-prompt", "prefix-tuning")
RECURRENT = ("qwen3_next", "jamba", "lfm2_moe", "minimax")
COMPRESSED = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "axk1")
"""Families that remember latents in place of keys and values of each head."""
REFUSED = {"soft-prompt": {"dbrx"}, "prefix-tuning": {"dbrx", "jetmoe", "mimo_v2_flash", *COMPRESSED}}
"""Families that run as rows all the same."""


def tokens(count: int, seed: int) -> list[int]:
    return torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def questions() -> list[tuple[list[int], list[list[int]]]]:
    """Prompts of unlike lengths, two of which begin alike, with answers of one, two and three tokens."""
    prompts = [tokens(length, seed) for seed, length in enumerate((9, 14, 3, 30))]
    prompts.append(prompts[3][:25] + tokens(2, 9))
    return [(prompt, [tokens(size, 10 * size + i) for size in (1, 2, 3)]) for i, prompt in enumerate(prompts)]


def engine_scores(model, past, budget: int = 2048) -> list[list[float]]:
    asked = [
        ScoringRequest((PLACEHOLDER,) * past.length + tuple(prompt), answers, 0)
        for prompt, answers in questions()
    ]
    found = {}
    with VirtualTokensForward(model, past) as forward:
        score(forward, asked, Budget(budget), found.__setitem__)
    return [[value for value, _ in found[i]] for i in range(len(asked))]


def saved(model, kind: str, folder, count: int = 5):
    """(an adapter in peft's format, scores of peft's own forward pass, one question and answer at a time)."""
    with with_adapter(model, kind, count, seed=3) as wrapped, torch.no_grad():
        scores = [
            [-answer_loss(wrapped, [Example(prompt, answer)]).item() * len(answer) for answer in answers]
            for prompt, answers in questions()
        ]
        wrapped.save_pretrained(str(folder))
    return stored_past(folder, model), scores


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", by_family(ZOO))
def test_every_family_scores_as_in_training_or_is_refused(family, kind, tmp_path):
    model = small_model(family)
    if refusal(small_config(family), kind):
        assert not runs_on_kv_cache(model) or family in REFUSED[kind]
        return
    past, expected = saved(model, kind, tmp_path)
    for mine, theirs in zip(engine_scores(model, past), expected, strict=True):
        assert mine == rounding.approx(theirs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [5, 20])
@pytest.mark.parametrize("family", by_family(["olmoe", "mixtral", "qwen3_moe", "deepseek"]))
def test_scores_are_those_of_a_computation_by_hand_in_float64(family, count, kind, tmp_path):
    model = small_model(family)
    past, _ = saved(model, kind, tmp_path, count)
    virtual = load_file(tmp_path / "adapter_model.safetensors")["prompt_embeddings"].double()
    exact = deepcopy(model).double()
    exact.set_experts_implementation("eager")
    expected = [
        [by_hand(exact, virtual, kind, prompt, answer) for answer in answers]
        for prompt, answers in questions()
    ]
    assert torch.tensor(engine_scores(model, past)) == rounding.approx(torch.tensor(expected))


@torch.no_grad()
def by_hand(model, virtual: torch.Tensor, kind: str, prompt: list[int], answer: list[int]) -> float:
    ids = torch.tensor([prompt + answer[:-1]])
    if kind == "soft-prompt":
        inputs = torch.cat([virtual[None], model.get_input_embeddings()(ids)], dim=1)
        logits = model(inputs_embeds=inputs, use_cache=False).logits[0, len(virtual) :]
    else:
        cache, config = DynamicCache(), model.config
        heads, layers = config.num_key_value_heads, config.num_hidden_layers
        per_layer = virtual.reshape(len(virtual), layers, 2, heads, -1)
        for layer in range(layers):
            keys, values = (per_layer[:, layer, part].permute(1, 0, 2)[None] for part in (0, 1))
            cache.update(keys, values, layer)
        positions = torch.arange(len(virtual), len(virtual) + ids.shape[1])[None]
        logits = model(ids, past_key_values=cache, position_ids=positions).logits[0]
    log_probs = logits[len(prompt) - 1 :].log_softmax(-1)
    return sum(log_probs[i, token].item() for i, token in enumerate(answer))


def test_passes_that_are_cut_in_pieces_give_the_same(tmp_path):
    model = small_model("olmoe")
    past, expected = saved(model, "prefix-tuning", tmp_path)
    assert torch.tensor(engine_scores(model, past, budget=12)) == rounding.approx(torch.tensor(expected))


@pytest.mark.parametrize("family", by_family(RECURRENT))
def test_recurrent_models_are_refused(family):
    for kind in KINDS:
        assert "more than keys and values" in refusal(small_config(family), kind)


@pytest.mark.parametrize("family", by_family(COMPRESSED))
def test_prefixes_are_refused_where_other_sizes_are_remembered(family):
    assert "layer 0 caches keys of 1 heads of size 16" in refusal(small_config(family), "prefix-tuning")
    assert refusal(small_config(family), "soft-prompt") is None


def test_a_layer_that_differs_from_the_first_is_found():
    assert "layer 1 caches keys of 4 heads" in refusal(small_config("mimo_v2_flash"), "prefix-tuning")


def test_looking_for_sizes_leaves_nothing_on_the_layers():
    from transformers import AutoModelForCausalLM

    import moe_lab.methods.virtual_tokens.adapters as fits

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(small_config("qwen3_moe"))
    assert len(fits.cached_shapes(model)) == len(decoder_layers(model))
    assert all("forward" not in vars(layer) for layer in decoder_layers(model))
