"""Breaks if `import moe_lab` changes how Python imports, or imports a framework; if the Auto classes miss a model."""

import subprocess
import sys

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM

import moe_lab.models.designs  # noqa: F401 - registers them
from tests.support.deepseek.checkpoint import SMALL, write_checkpoint
from tests.support.designs import design


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deepseek")
    write_checkpoint(folder, SMALL)
    return folder


def test_the_decoder_alone_is_published_too(folder):
    """auto_map names AutoModel."""
    decoder, model = AutoModel.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
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
    ended = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert "moe_lab.models.designs.deepseek.DeepseekForCausalLM" in ended.stdout, ended.stderr
    assert "moe_lab.models.designs.modeling.MoeDesignForCausalLM" in ended.stdout
    with torch.no_grad():
        expected = float(model(torch.arange(40)[None]).logits.double().sum())
    assert float(ended.stdout.split()[-1]) == pytest.approx(expected, abs=1e-2)


PRINTS = [
    (  # the package imports no framework and installs no import hook
        "import sys\nbefore = list(sys.meta_path)\nimport moe_lab\n"
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)), sys.meta_path == before)",
        "[] True",
    ),
    (  # no logger needs no W&B, and figures import matplotlib to draw
        "from moe_lab.config.schema import Config\nfrom moe_lab.reports.loggers import open_logger\n"
        "with open_logger(Config(), kind='run', name='x', group=None) as log: log.log_trial(0, 1.0, [], '')\n"
        "import moe_lab.reports.figures, moe_lab.runs.experiments.runner\n"
        "print({'wandb', 'matplotlib'} & set(sys.modules))",
        "set()",
    ),
    (  # tokenizers and configurations of others import no modeling code
        "import moe_lab.models.designs\nfrom transformers import AutoConfig, AutoTokenizer, OlmoeConfig\n"
        "from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING\nOlmoeConfig()\n"
        "print('transformers.modeling_utils' in sys.modules)",
        "False",
    ),
    (  # reading a configuration imports no modeling code of its family
        "from moe_lab.config.schema import ModelConfig\nfrom moe_lab.models.source import load_config\n"
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
