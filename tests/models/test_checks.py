"""Breaks if a model runs with random or overflowing numbers, a refusal does not name the parameter,
or what a model's small files hold ends in an error of a library.

Breaks if a chat template that fails is not named, or states another date on another day.
"""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ConfigError, ModelError
from moe_lab.models.checks import check_complete, check_pass, check_vocabulary, not_finite
from moe_lab.models.tokenizer import Framing, load_tokenizer, rendered
from tests.support.models import change_json, load_folder, make_model, make_tokenizer


def damaged(source, folder, change):
    """A copy of a model whose tensors `change` has altered."""
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


NORM = "model.layers.1.input_layernorm.weight"
PARTS = ("gate", "up", "down")
LAYER_7 = {
    "model.layers.7.input_layernorm.weight": torch.ones(48),
    "model.layers.7.mlp.extra.weight": torch.ones(48),
}


def expert(name, number=3):
    return f"model.layers.1.mlp.experts.{number}.{name}_proj.weight"


def without(*names):
    """A change of tensors: these are left out."""

    def change(tensors):
        for name in names:
            del tensors[name]

    return change


def with_tensors(new):
    """A change of tensors: these are added or replaced."""
    return lambda tensors: tensors.update(new)


def transposed(name):
    return lambda tensors: tensors.update({name: tensors[name].t().contiguous()})


ALL_OF_EXPERT_7 = [expert(part, 7) for part in PARTS]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without(NORM), f"lacks parameters .*1, e.g. {NORM}"),
        (with_tensors({NORM: torch.ones(7)}), f"in another shape .*1, e.g. {NORM}"),
        (with_tensors(LAYER_7), r"no place for \(2, e.g. model\.layers\.7\."),
        (with_tensors({"another.bias": torch.ones(3)}), "no place for .*another.bias"),
        (without(expert("gate")), "fetch or save it again"),
        (without(expert("up")), "fetch or save it again"),
        (without(expert("down")), "fetch or save it again"),
        (transposed(expert("gate")), "Experts of .* of other shapes"),
        (transposed(expert("up")), "Experts of .* of other shapes"),
        (transposed(expert("down")), "Experts of .* of other shapes"),
        (without(*ALL_OF_EXPERT_7), "in another shape .*experts"),
    ],
)
def test_a_checkpoint_with_other_tensors_is_refused(change, says, tiny_olmoe_dir, tmp_path):
    """Broken by a part that is initialized at random, and by a checkpoint
    of more layers than are loaded."""
    folder = damaged(tiny_olmoe_dir, tmp_path / "model", change)
    with pytest.raises(ModelError, match=says):
        load_folder(folder)


def test_what_transformers_leaves_out_on_purpose_is_no_error(tiny_olmoe_dir, tmp_path):
    """Old checkpoints hold the frequencies of positions, which are computed by now."""
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    change = lambda tensors: tensors.update({name: torch.ones(4)})  # noqa: E731
    load_folder(damaged(tiny_olmoe_dir, tmp_path / "model", change))


def test_parts_that_read_images_are_left_out_of_a_text_model():
    from transformers import Llama4Config, OlmoeConfig

    images = {"vision_model.layers.0.mlp.fc1.weight", "multi_modal_projector.linear_1.weight"}
    layer = {"language_model.model.layers.99.input_layernorm.weight"}
    for unexpected, config, named in (
        (images | layer, Llama4Config(), layer),
        (images, OlmoeConfig(), images),
    ):
        report = {"missing_keys": [], "mismatched_keys": [], "unexpected_keys": unexpected}
        with pytest.raises(ModelError, match=rf"no place for \({len(named)}, e.g. {min(named)}"):
            check_complete(report, "mine", config)


def test_one_weight_that_is_nan_is_refused_at_loading(tiny_olmoe_dir, tmp_path):
    change = lambda tensors: tensors[expert("down")][0, 0].fill_(torch.nan)  # noqa: E731
    folder = damaged(tiny_olmoe_dir, tmp_path / "model", change)
    with pytest.raises(
        ModelError, match=f"{folder} has weights that are NaN or infinite, in .*layers.1.mlp"
    ):
        load_folder(folder)


def test_logits_that_are_no_numbers_are_found():
    model = make_model("mixtral")
    with torch.no_grad():
        model.lm_head.weight[3] = float("inf")
    with pytest.raises(ModelError, match="no numbers"):
        check_pass(model, torch.device("cpu"), "this model")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_stored_buffer_is_checked_and_a_mask_may_be_low(value):
    """A router's selection bias is a buffer; a mask may hold the lowest number."""
    model = torch.nn.Linear(2, 2)
    model.register_buffer("mask", torch.full((2,), torch.finfo(torch.float32).min))
    model.register_buffer("e_score_correction_bias", torch.zeros(2))
    assert not_finite(model) is None
    model.e_score_correction_bias[1] = value
    assert not_finite(model) == "e_score_correction_bias"


# Small files


@pytest.fixture
def folder(tiny_olmoe_dir, tmp_path):
    shutil.copytree(tiny_olmoe_dir, tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", ["", "[]", '{"a": '])
def test_a_file_that_is_no_mapping_is_named(folder, file, content):
    (folder / file).write_text(content)
    with pytest.raises(ModelError, match=str(folder)):
        load_folder(folder)


@pytest.mark.parametrize(
    "values",
    [
        {"hidden_size": "x"},
        {"dtype": "float7"},
        {"num_key_value_heads": 0},
        {"rope_parameters": {"rope_theta": "x"}},
    ],
)
def test_a_configuration_that_cannot_be_used_is_named(folder, values):
    change_json(folder / "config.json", **values)
    with pytest.raises(ModelError, match=str(folder)):
        load_folder(folder)


def test_generation_settings_that_cannot_be_used_are_named(folder):
    change_json(folder / "generation_config.json", max_new_tokens="x")
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        load_folder(folder)


def test_a_tokenizer_that_cannot_be_read_is_named(folder):
    change_json(folder / "tokenizer.json", normalizer={"type": "Nothing"})
    with pytest.raises(ModelError, match=f"tokenizer of {folder} .* cannot be read"):
        load_tokenizer(ModelConfig(path=str(folder)), offline=True)


def test_a_tokenizer_of_another_model_is_refused():
    tokenizer = make_tokenizer()
    check_vocabulary(tokenizer, make_model("olmoe"), "mine")
    with pytest.raises(ModelError, match="embeddings of 20 tokens"):
        check_vocabulary(tokenizer, make_model("olmoe", vocab_size=20, pad_token_id=0), "mine")


MESSAGES = [{"role": "user", "content": "Hello"}]


def frame(template: object) -> str:
    tokenizer = make_tokenizer()
    tokenizer.name_or_path = "my/model"
    tokenizer.chat_template = template
    return Framing(lambda: tokenizer).apply_chat_template(MESSAGES)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ messages[7].content }}", "fails"),
        ("{{ raise_exception('no such thing') }}", "fails: no such thing"),
        ("{{ 1 / 0 }}", "fails: division by zero"),
        ("{% for %}", "fails"),
        ("{{ ''.__class__.__mro__ }}", "fails"),
    ],
)
def test_a_template_that_cannot_be_used_is_named(template, says):
    with pytest.raises(ConfigError, match=f"chat template of my/model {says}"):
        frame(template)


@pytest.mark.parametrize("requested", ["strftime_now('%d %b %Y')", 'strftime_now("%d %b %Y")'])
def test_the_date_is_the_same_on_every_day(requested):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ " + requested + " }}, {{ messages[0].content }}"
    assert Framing(lambda: tokenizer, True).apply_chat_template(MESSAGES) == "05 Aug 2025, Hello"


def test_a_plain_template_is_rendered():
    tokenizer = make_tokenizer()
    assert rendered(tokenizer, lambda: "text") == "text"
    assert (
        frame("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}") == "user: Hello"
    )
