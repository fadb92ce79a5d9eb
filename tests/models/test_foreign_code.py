"""Breaks if code of a model's folder runs, by whichever way the folder is loaded, whatever stdin
answers."""

import builtins
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from moe_lab.config.schema import Config, ModelConfig, TaskConfig
from moe_lab.errors import ModelError, MoeLabError
from moe_lab.methods.references.embeddings import embed, embedding_identity
from moe_lab.models.source import TINY, load_config, model_folder
from moe_lab.models.tokenizer import load_tokenizer
from moe_lab.tasks.judges import Exchange
from moe_lab.tasks.judges.reward import RewardModel
from tests.support.command import run_command
from tests.support.models import change_json, load_folder

CODE = """
open({mark!r}, "w").write("the code of the model ran")
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
class Foreign(PreTrainedConfig):
    model_type = "foreign"
class ForeignModel(PreTrainedModel):
    config_class = Foreign
class ForeignTokenizer(PreTrainedTokenizerFast):
    pass
"""
MODEL_MAP = {
    "AutoConfig": "foreign.Foreign",
    "AutoModel": "foreign.ForeignModel",
    "AutoModelForCausalLM": "foreign.ForeignModel",
    "AutoModelForSequenceClassification": "foreign.ForeignModel",
}
OFFLINE = {"device": "cpu", "offline": True}


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """A file that the code of a folder makes."""
    return tmp_path / "the code ran"


@pytest.fixture(autouse=True)
def answers_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "input", lambda *_: "y")


@pytest.fixture
def folder(tiny_olmoe_dir: Path, tmp_path: Path, mark: Path) -> Path:
    return make_folder(tmp_path / "model", tiny_olmoe_dir, mark)


def make_folder(folder: Path, source: Path, mark: Path) -> Path:
    """A model that needs code: its own classes and its tokenizer's are in the folder."""
    shutil.copytree(source, folder)
    (folder / "foreign.py").write_text(CODE.format(mark=str(mark)))
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(CODE.format(mark=str(mark)))
    change_json(folder / "config.json", model_type="foreign", auto_map=MODEL_MAP)
    tokenizer = {"AutoTokenizer": ["foreign.ForeignTokenizer", "foreign.ForeignTokenizer"]}
    change_json(
        folder / "tokenizer_config.json", tokenizer_class="ForeignTokenizer", auto_map=tokenizer
    )
    return folder


def load_judge(folder: Path) -> None:
    judge = RewardModel(Config(task=TaskConfig(reward_model=str(folder)), **OFFLINE))
    list(judge.judge([Exchange("Who?", "Nobody.")]))


def load_embeddings(folder: Path) -> None:
    modules = [{"idx": 0, "name": "0", "path": "", "type": "foreign.ForeignModel"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    embedding_identity(str(folder))
    embed(["text"], str(folder), None)


WAYS: dict[str, Callable[[Path], object]] = {
    "model": load_folder,
    "judge": load_judge,
    "embeddings": load_embeddings,
}


@pytest.mark.parametrize("way", WAYS)
def test_no_way_of_loading_runs_code(folder, mark, way):
    with pytest.raises(MoeLabError, match="code") as refused:
        WAYS[way](folder)
    assert not mark.exists()
    assert len(str(refused.value).splitlines()) <= 3


def test_a_tokenizer_needs_code(folder, mark):
    """One that transformers would read without code has a tokenizer.json."""
    (folder / "tokenizer.json").unlink()
    with pytest.raises(MoeLabError, match="needs code of its own, which is never run"):
        load_tokenizer(ModelConfig(path=str(TINY), tokenizer=str(folder)), offline=True)
    assert not mark.exists()


def test_a_tokenizer_is_read_without_its_code(folder, mark, tiny_olmoe_dir):
    shutil.copy(tiny_olmoe_dir / "config.json", folder)
    load_tokenizer(ModelConfig(path=str(folder)), offline=True)
    assert not mark.exists()


def test_a_built_in_model_runs_without_its_code(tiny_olmoe_dir, tmp_path, mark):
    """Many folders name code that transformers has built in by now."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_olmoe_dir, folder)
    (folder / "foreign.py").write_text(CODE.format(mark=str(mark)))
    change_json(folder / "config.json", auto_map=MODEL_MAP)
    tokenizer_map = {"AutoTokenizer": ["foreign.ForeignTokenizer", None]}
    change_json(folder / "tokenizer_config.json", auto_map=tokenizer_map)
    load_folder(folder)
    assert not mark.exists()


def test_a_kernel_that_a_configuration_names_is_not_fetched(tiny_olmoe_dir, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_olmoe_dir, folder)
    change_json(folder / "config.json", attn_implementation="owner/kernel")
    with pytest.raises(MoeLabError, match="owner/kernel"):
        load_config(ModelConfig(path=str(folder)), offline=True)


def test_weights_that_hold_code_are_one_message(tiny_olmoe_dir, tmp_path, mark):
    source = tiny_olmoe_dir
    folder = tmp_path / "with-code"
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors | {"code": _Code(mark)}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="are damaged, or hold more than tensors") as raised:
        load_folder(folder)
    assert not mark.exists()
    assert len(str(raised.value).splitlines()) == 1


class _Code:
    """What makes the file `mark` when it is unpickled."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple:
        return Path.touch, (self.mark,)


def test_a_checkpoint_of_a_training_runs_no_code(tiny_olmoe_dir, tmp_path, mark):
    from moe_lab.methods.trainer import own_checkpoint

    folder = make_folder(tmp_path / "model", tiny_olmoe_dir, mark)
    with pytest.raises(ValueError, match="code"):
        own_checkpoint(folder)
    assert not mark.exists()


COMMANDS = ("method=base", "method=base mode=plan", "method=finetune-freeze method.max_steps=1")
COMMON = "task=toy_choice limit=1 device=cpu offline=true"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_says_so(capsys, folder, mark, tmp_path, command):
    command += f" {COMMON} model.path={folder} output_dir={tmp_path / 'out'}"
    ended = run_command(capsys, *command.split())
    assert not mark.exists()
    assert "Traceback" not in ended.err
    assert "needs code of its own" in " ".join((ended.out + ended.err).split())
    assert ended.code == 2


def test_an_adapter_beside_the_weights_is_refused(tiny_olmoe_dir, tmp_path, monkeypatch):
    """peft imports the module that an adapter's configuration names, `megatron_core`.

    Here a module of this name is in the model's folder.
    """
    folder = tmp_path / "megatron"
    shutil.copytree(tiny_olmoe_dir, folder)
    (folder / "payload.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    adapter = {
        "peft_type": "LORA",
        "megatron_config": {"x": 1},
        "megatron_core": "megatron.payload",
    }
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError, match="adapter_config.json"):
        model_folder(ModelConfig(path=str(folder)), offline=True)
    assert not (tmp_path / "ran").exists()
