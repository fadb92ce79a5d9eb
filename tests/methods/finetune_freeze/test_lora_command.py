"""`method=finetune-freeze method.lora.r=` from the command line.

Broken by: an adapter that is trained again for another task, answers other than those of plain peft and transformers, a
changed base model, a request that is refused only after weights were loaded.
"""

from __future__ import annotations

import json

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from moe_lab.cli.main import main
from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError
from moe_lab.methods.finetune_freeze import lora, training
from moe_lab.methods.finetune_freeze.config import Lora
from moe_lab.models.source import TINY
from moe_lab.results.model import RunResult
from tests.support.adapters import make_adapter
from tests.support.command import run_command
from tests.support.ended import block_of, samples_of
from tests.support.ranks import fork_ranks

SHORT = ["task=toy_choice", "limit=3", "method.max_steps=4", "method.learning_rate=0.01"]
SHORT += ["method.validation_size=2", "method.lora.r=4"]


def command(capsys, folder, *keys):
    return run_command(capsys, "method=finetune-freeze", f"output_dir={folder}", *keys)


def log_likelihood(model, tokenizer, context: str, continuation: str) -> float:
    ids = tokenizer(context + continuation, return_tensors="pt").input_ids
    start = len(tokenizer(context).input_ids)
    with torch.inference_mode():
        log_probs = model(ids).logits[0, :-1].log_softmax(-1)
    return log_probs.gather(1, ids[0, 1:, None])[start - 1 :].sum().item()


@pytest.mark.slow
def test_it_trains_an_adapter_saves_evaluates_and_compares(tmp_path, capsys, monkeypatch):
    weights = (TINY / "model.safetensors").read_bytes()
    planned = command(capsys, tmp_path, *SHORT, "mode=plan")
    assert "To train: 1, 4 optimizer steps" in planned.out, "no full fine-tuning beside it"
    assert "Trained models to write: 1, 0.000131 GB" in planned.out, "4 bytes of 32,768 parameters"
    block = block_of(command(capsys, tmp_path, *SHORT))
    assert RunResult({"moe_lab": block}).method_config["lora.r"] == 4
    own = block["finetune_freeze"]
    assert own["training"]["schedule"] == "LoRA r=4" and own["lora"]["r"] == 4
    assert own["training"]["parameters"]["router"] == 0 < own["training"]["parameters"]["other"]
    assert block["paired"] and "compared" not in block
    folder = tmp_path / "models" / own["model"]
    assert not (folder / "checkpoints").exists() and (folder / "figures" / "loss.png").is_file()
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(TINY.resolve())
    assert (TINY / "model.safetensors").read_bytes() == weights

    base = AutoModelForCausalLM.from_pretrained(config["base_model_name_or_path"], dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(base, folder / "adapter").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "adapter")
    found = samples_of(tmp_path, run_id=block["run_id"])
    for sample in found:
        for arguments, [[answer, _]] in zip(sample["arguments"].values(), sample["resps"], strict=True):
            context, continuation = arguments["arg_0"], arguments["arg_1"]
            expected = log_likelihood(model, tokenizer, context, continuation)
            assert float(answer) == pytest.approx(expected, abs=1e-4)

    keys = [f"model.peft={folder / 'adapter'}", f"output_dir={tmp_path / 'plain'}", *SHORT[:2]]
    again = run_command(capsys, "method=base", *keys)
    [plain] = (samples_of(tmp_path / "plain", run_id=block_of(again)["run_id"]),)
    assert [each["resps"] for each in plain] == [each["resps"] for each in found], "as any other adapter"

    monkeypatch.setattr(training, "train", None)
    other = block_of(command(capsys, tmp_path, *SHORT, "task=toy_math", "limit=3"))
    assert other["finetune_freeze"]["model"] == own["model"], "trained once whatever is evaluated"
    same = block_of(command(capsys, tmp_path, *SHORT, "method.lora.lora_alpha=8"))
    assert same["run_id"] == block["run_id"]
    left = command(capsys, tmp_path, *SHORT, "method.lora.lora_alpha=16", "mode=plan")
    assert "To train: 1" in left.out, "another scale is another adapter"


@pytest.mark.slow
def test_an_adapter_is_trained_and_evaluated_under_a_constraint(tmp_path, capsys):
    block = block_of(command(capsys, tmp_path, *SHORT, "method.partners=4", "method.dataset_size=12"))
    assert block["c2r"]["partners"] == 4 and 0 < block["c2r"]["changed_fraction"] <= 1


@pytest.mark.parametrize(
    "keys, told",
    [
        (["method.lora.r=4", "method.schedule=router"], "method.schedule=router and method.lora.r=4"),
        (["method.lora.r=4", "method.phases=[{frozen:[router],until:1}]"], "phases with frozen groups"),
        (["method.lora.r=4", "method.router_lr=1e-3"], "method.router_lr=0.001"),
        (["method.lora.r=4", "method.freeze_shared_experts=true"], "freeze_shared_experts=true"),
        (["method.lora.alpha=16"], "Did you mean 'method.lora.lora_alpha'"),
        (["method.lora.r=four"], "method.lora.r=four: expected"),
        (["method.lora.r=4", "method.lora.target_modules=[c_attn]"], "the model has no c_attn"),
        (["method.lora.r=4", "model.peft=nowhere/else/adapter"], "There is no folder nowhere/else/adapter"),
    ],
)
def test_a_wrong_request_ends_with_2_before_weights_load(keys, told, tmp_path, capsys, loads):
    ended = command(capsys, tmp_path, "task=toy_choice", "limit=2", *keys)
    assert ended.code == 2 and told in ended.err, ended.err
    assert len(ended.err.splitlines()) <= 3 and not loads and not (tmp_path / "models").exists()


def test_neither_on_another_adapter_nor_with_split_weights(tmp_path, capsys, loads, monkeypatch):
    base = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    make_adapter(base, peft.LoraConfig(target_modules=["q_proj"]), tmp_path / "a")
    keys = ["task=toy_choice", "limit=2", "method.lora.r=4"]
    ended = command(capsys, tmp_path, *keys, f"model.peft={tmp_path / 'a'}")
    assert ended.code == 2 and "merge_and_unload" in ended.err and not loads
    monkeypatch.setattr(lora, "sharded", lambda: True)
    with pytest.raises(ConfigError, match="FSDP splits the weights"):
        lora.check_lora(Config(), Lora(r=4))


@pytest.mark.slow
def test_two_processes_train_and_evaluate_an_adapter(tmp_path, capsys):
    """The whole command, on the same number of conversations per step as one process."""
    keys = ["method=finetune-freeze", *SHORT, "method.batch_size=2", "method.gradient_accumulation=1"]
    log = tmp_path / "ranks.log"
    assert fork_ranks(main, [*keys, f"output_dir={tmp_path}"], log=log) == [0, 0], log.read_text()[-2000:]
    [trained] = (tmp_path / "models").iterdir()
    record = json.loads((trained / "training.json").read_text())
    assert record["processes"] == 2 and record["phases"][0]["saved_bytes"] > 0
    alone = [*SHORT, "method.batch_size=2", "method.gradient_accumulation=2"]
    block = block_of(command(capsys, tmp_path, *alone))
    assert block["finetune_freeze"]["model"] == trained.name, "the same training"
