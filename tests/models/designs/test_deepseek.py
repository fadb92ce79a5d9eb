"""The native DeepSeek-MoE against equations written out, and against the published checkpoint's
layout.

Broken by: another softmax or top-k, a renormalization, shared experts left out or gated,
RoPE in another layout, experts fused in another order, names that do not come back.

Breaks if `import moe_lab` changes how Python imports, or imports a framework;
if the Auto classes miss a model.
"""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

import moe_lab.models.designs  # noqa: F401 - registers them
from moe_lab.config.schema import ModelConfig
from moe_lab.engine.forward.layers import runs_on_kv_cache
from moe_lab.errors import ModelError
from moe_lab.models.source import load_config
from moe_lab.models.tokenizer import load_tokenizer
from moe_lab.routing import find_routers
from tests.support.deepseek.checkpoint import PUBLISHED, SMALL, parameter_shapes, write_checkpoint
from tests.support.deepseek.reference import Reference
from tests.support.designs import design
from tests.support.models import load_folder, make_tokenizer

TOKENS = [5, 290, 17, 17, 203, 88, 1, 64, 255]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deepseek")
    write_checkpoint(folder, SMALL)
    return folder


def weights_in(folder) -> dict[str, torch.Tensor]:
    weights = {}
    for file in folder.glob("*.safetensors"):
        weights |= load_file(file)
    return weights


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_topk_prob": True},
        {"first_k_dense_replace": 2, "n_shared_experts": 1},
        {"n_shared_experts": None},
    ],
    ids=["published", "renormalized", "two dense layers", "no shared experts"],
)
def test_every_layer_is_the_papers(changes, tmp_path):
    config = SMALL | changes
    weights = write_checkpoint(tmp_path, config)
    options = {"dtype": torch.float64, "experts_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(tmp_path, **options)
    reference = Reference(config, {name: weight.numpy() for name, weight in weights.items()})
    states = []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda module, args, out: states.append(out))
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS])).logits[0]
    expected = reference.layers(TOKENS)[1:]
    assert len(states) == len(expected) == 4
    for state, expected_state in zip(states, expected, strict=True):
        # transformers computes norms, RoPE and the router's softmax in float32,
        # whatever the model's dtype
        torch.testing.assert_close(state[0], torch.from_numpy(expected_state), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        logits, torch.from_numpy(reference.logits(TOKENS)), rtol=1e-5, atol=1e-5
    )


def test_left_padding_changes_nothing(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    padded = torch.tensor([[0, 0, *TOKENS]])
    mask = torch.tensor([[0, 0] + [1] * len(TOKENS)])
    with torch.no_grad():
        plain = model(torch.tensor([TOKENS])).logits
        logits = model(
            padded, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0)
        ).logits
    torch.testing.assert_close(logits[0, -1], plain[0, -1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shard", ["1GB", "40KB"])
def test_a_checkpoint_comes_back_byte_for_byte(folder, shard, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "40KB")
    published = weights_in(folder)
    saved = weights_in(tmp_path)
    assert saved.keys() == published.keys() == parameter_shapes(SMALL).keys()
    for name, weight in published.items():
        assert saved[name].dtype == weight.dtype, name
        assert torch.equal(saved[name], weight), name
    second_model = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        ids = torch.tensor([TOKENS])
        assert torch.equal(second_model(ids).logits, model(ids).logits)


def test_every_parameter_has_a_gradient(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.arange(200)[None]
    model(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_the_auxiliary_loss_counts_where_it_is_asked_for(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([TOKENS])
    with torch.no_grad():
        plain = model(ids, labels=ids)
        with_loss = model(ids, labels=ids, output_router_logits=True)
    assert plain.aux_loss is None
    assert len(with_loss.router_logits) == 3
    torch.testing.assert_close(
        with_loss.loss - plain.loss, 0.001 * with_loss.aux_loss, rtol=1e-2, atol=1e-6
    )


def test_it_is_loaded_like_any_other_model(folder):
    make_tokenizer().save_pretrained(folder)
    loaded = load_folder(folder)
    assert type(loaded.model).__module__ == "moe_lab.models.designs.deepseek"
    facts = loaded.facts
    assert (facts.family, facts.moe_layers, facts.experts, facts.top_k) == ("deepseek", 3, 8, 3)
    names = [router.name for router in find_routers(loaded.model)]
    assert names == [f"model.layers.{i}.mlp.gate" for i in (1, 2, 3)]
    assert runs_on_kv_cache(loaded.model)


def test_the_published_tokenizer_is_byte_level_and_begins_with_its_token(tmp_path):
    """The checkpoint calls its tokenizer a LlamaTokenizerFast, whose words begin otherwise.

    Its configuration asks for the beginning token.
    """
    write_checkpoint(tmp_path, SMALL)
    make_tokenizer().save_pretrained(tmp_path)
    published = {
        "tokenizer_class": "LlamaTokenizerFast",
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": "<|end|>",
        "eos_token": "<|end|>",
        "legacy": True,
        "unk_token": None,
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(published))
    ids = make_tokenizer().encode("x  y?")
    with_bos = load_tokenizer(ModelConfig(path=str(tmp_path), add_bos_token=True), offline=True)
    assert with_bos.encode("x  y?") == [with_bos.bos_token_id, *ids]
    assert with_bos.encode("x  y?", add_special_tokens=False) == ids
    without_bos = load_tokenizer(ModelConfig(path=str(tmp_path)), offline=True)
    assert without_bos.encode("x  y?") == ids


def test_the_published_configuration_is_the_default(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    config = AutoConfig.from_pretrained(tmp_path)
    default = type(config)()
    assert config.rope_parameters["rope_theta"] == 10000
    assert config.dtype == torch.bfloat16
    elsewhere = (
        "architectures auto_map model_type rope_theta rope_scaling seq_aux torch_dtype".split()
    )
    for key in PUBLISHED.keys() - elsewhere:
        assert getattr(default, key) == getattr(config, key) == PUBLISHED[key], key
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert round(sum(p.numel() for p in model.parameters()) / 1e9, 1) == 16.4


def test_another_scoring_function_is_refused(tmp_path):
    """Broken by a router of sigmoids that is run as a softmax."""
    (tmp_path / "config.json").write_text(json.dumps(SMALL | {"scoring_func": "sigmoid"}))
    with pytest.raises(ModelError, match=r"(?s)scoring_func.*softmax"):
        load_config(ModelConfig(path=str(tmp_path)), offline=True)


def test_the_decoder_alone_is_published_too(folder):
    """auto_map names AutoModel."""
    decoder = AutoModel.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert type(decoder).__module__ == "moe_lab.models.designs.deepseek"
    ids = torch.arange(40)[None]
    with torch.no_grad():
        hidden = decoder(ids).last_hidden_state
        assert torch.equal(hidden, model.model(ids).last_hidden_state)
        assert torch.equal(model.lm_head(hidden), model(ids).logits)


@pytest.mark.slow
def test_the_auto_classes_know_our_models_in_a_new_interpreter(folder, tmp_path):
    """A public name of the package first, its modules imported again."""
    model = design("word")
    model.save_pretrained(tmp_path)
    code = (
        "import importlib\nfrom moe_lab import RoE\nimport moe_lab.models.designs\n"
        "importlib.reload(moe_lab.models.designs)\nfrom transformers import AutoModelForCausalLM\n"
        f"import torch\nprint(type(AutoModelForCausalLM.from_pretrained({str(folder)!r})))\n"
        f"model = AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})\n"
        "print(type(model), float(model(torch.arange(40)[None]).logits.double().sum()))"
    )
    command = [sys.executable, "-c", code]
    options = {"stdin": subprocess.DEVNULL, "text": True}
    ended = subprocess.run(command, capture_output=True, check=False, **options)
    assert "moe_lab.models.designs.deepseek.DeepseekForCausalLM" in ended.stdout, ended.stderr
    assert "moe_lab.models.designs.modeling.MoeDesignForCausalLM" in ended.stdout
    with torch.no_grad():
        expected = float(model(torch.arange(40)[None]).logits.double().sum())
    assert float(ended.stdout.split()[-1]) == pytest.approx(expected, abs=1e-2)


PRINTS = [
    (  # the package imports no framework and installs no import hook
        "import sys\nbefore = list(sys.meta_path)\nimport moe_lab\n"
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)), "
        "sys.meta_path == before)",
        "[] True",
    ),
    (  # no logger needs no W&B, and figures import matplotlib to draw
        "from moe_lab.config.schema import Config\n"
        "from moe_lab.reports.loggers import open_logger\n"
        "with open_logger(Config(), kind='run', name='x', group=None) as log: log.log_trial(0, "
        "1.0, [], '')\n"
        "import moe_lab.reports.figures, moe_lab.runs.experiments.runner\n"
        "print({'wandb', 'matplotlib'} & set(sys.modules))",
        "set()",
    ),
    (  # tokenizers and configurations of others import no modeling code
        "import moe_lab.models.designs\n"
        "from transformers import AutoConfig, AutoTokenizer, OlmoeConfig\n"
        "from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING\n"
        "OlmoeConfig()\n"
        "print('transformers.modeling_utils' in sys.modules)",
        "False",
    ),
    (  # reading a configuration imports no modeling code of its family
        "from moe_lab.config.schema import ModelConfig\n"
        "from moe_lab.models.source import load_config\n"
        "load_config(ModelConfig(name='tiny'), offline=True)\n"
        "print('transformers.models.olmoe.modeling_olmoe' in sys.modules)",
        "False",
    ),
]
"""What one interpreter runs in turn, and the line that each prints."""


@pytest.mark.slow
def test_imports_in_a_new_interpreter():
    code = "\n".join(lines for lines, _ in PRINTS)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == [printed for _, printed in PRINTS]
