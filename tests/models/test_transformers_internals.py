"""Breaks when a version of transformers renames or changes something private that
this package uses; says what.

Most likely with a new version of transformers: mend `moe_lab/models/transformers_internals.py`,
then widen its range.
"""

import ast

import pytest
import torch
import transformers
from packaging.version import Version

from moe_lab.models import transformers_internals as internals
from tests.support.models import make_tokenizer, small_model
from tests.support.sources import PACKAGE, files_in, nodes_of

PACKAGES = ("engine", "models", "routing")
OWNERS = {"config", "text", "model", "AutoModelForCausalLM", "loaded"}
"""Names of transformers' objects in these packages."""


def test_transformers_is_in_the_known_range():
    assert (
        Version(internals.FIRST) <= Version(transformers.__version__) < Version(internals.BEFORE)
    ), (
        f"transformers {transformers.__version__} was not tried: the other tests of this file "
        "say what broke."
    )


def test_generation_settings_and_their_logits_processors():
    model = small_model("olmoe")
    config, unknown = internals.generation_config(model, temperature=0.5, do_sample=True, other=1)
    assert config.temperature == 0.5
    assert unknown == {"other": 1}
    internals.prepare_special_tokens(model, config)
    processors = internals.logits_processors(model, config, prompt=[1, 2])
    scores = processors(torch.zeros(1, 1, dtype=torch.long), torch.tensor([[1.0, 2.0]]))
    assert scores.tolist() == [[2.0, 4.0]]


@pytest.mark.parametrize("pad", [None, 3])
def test_the_padding_token_of_prepared_settings(pad):
    model = small_model("olmoe")
    config, _ = internals.generation_config(model, eos_token_id=None, pad_token_id=pad)
    internals.prepare_special_tokens(model, config)
    assert internals.pad_token(config) == pad


def test_the_attention_of_a_model():
    model = small_model("olmoe")
    layer = model.get_decoder().layers[0].self_attn
    assert internals.attention_of(model.config) == "sdpa"
    with internals.replaced_attention(model, "sdpa", "eager"):
        assert internals.attention_of(layer.config) == "eager"
    assert internals.attention_of(layer.config) == "sdpa"


def test_the_marked_parts_of_a_conversation():
    tokenizer = make_tokenizer()
    tokenizer.chat_template = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}"
        "{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
    )
    turns = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}]
    text, blocks = internals.generation_blocks(tokenizer, turns * 2)
    assert text == tokenizer.apply_chat_template(turns * 2, tokenize=False)
    assert [text[first:last] for first, last in blocks] == [f"cd{tokenizer.eos_token}"] * 2


def test_models_with_recurrent_states_say_so():
    assert internals.keeps_states(small_model("jamba"))
    assert not internals.keeps_states(small_model("olmoe"))


@pytest.mark.parametrize(("family", "can"), [("olmoe", True), ("jetmoe", False)])
def test_models_with_several_implementations_of_experts(family, can):
    assert internals.can_set_experts(type(small_model(family))) is can


def is_private_use(node: ast.AST) -> bool:
    """Whether a private attribute of one of OWNERS is used, such as `model._x`."""
    if not isinstance(node, ast.Attribute):
        return False
    if not isinstance(node.value, ast.Name) or node.value.id not in OWNERS:
        return False
    return node.attr.startswith("_") and not node.attr.startswith("__")


def test_only_one_file_of_these_packages_touches_what_is_private():
    private_uses = []
    for package in PACKAGES:
        for file in files_in(PACKAGE / package):
            if file.name == "transformers_internals.py":
                continue
            for node in nodes_of(file):
                if is_private_use(node):
                    place = f"{file.relative_to(PACKAGE)}:{node.lineno}"
                    private_uses.append(f"{place} {ast.unparse(node)}")
    assert private_uses == []
