"""`method=soft-prompt` and `method=prefix-tuning` from the command line.

Broken by: an adapter that is trained again for another task or another limit, or taken for that of another recipe,
seed or set of questions; anything that stays on the model which the next run of a grid is given; a request that is
refused only after weights were loaded.
"""

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from moe_lab.config.compose import compose_cell
from moe_lab.methods.virtual_tokens import training
from moe_lab.models.source import TINY
from moe_lab.runs.budget import workload_of
from moe_lab.runs.config import to_config
from moe_lab.runs.prepare import prepare
from tests.support.command import run_command
from tests.support.ended import answers, block_of, samples_of
from tests.support.runs import arc, choices, write_jsonl

METHODS = ("soft-prompt", "prefix-tuning")
SHORT = ["task=toy_choice", "limit=3", "method.reference_size=16", "method.epochs=2"]


def command(capsys, method, folder, *keys):
    return run_command(capsys, f"method={method}", f"output_dir={folder}", *keys)


def models(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "models").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_an_adapter_is_trained_stored_in_pefts_format_and_scores(method, tmp_path, capsys):
    """The answers are those of the stored adapter under peft."""
    ended = command(capsys, method, tmp_path, *SHORT)
    block = block_of(ended)[method.replace("-", "_")]
    assert block["virtual_tokens"] == 20
    assert block["training"]["questions"] == 16 and block["training"]["steps"] == 4
    folder = tmp_path / "models" / block["adapter"]
    assert not (folder / "status.json").exists()
    assert json.loads((folder / "training.json").read_text())["method"]["epochs"] == 2
    assert len((folder / "log.jsonl").read_text().splitlines()) == 4
    assert not (folder / "checkpoints").exists()
    assert answers(tmp_path, method) != answers(tmp_path, "base")

    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    wrapped = PeftModel.from_pretrained(model, folder / "adapter").eval()
    for sample in samples_of(tmp_path, method):
        for asked, response in zip(sample["arguments"].values(), sample["resps"], strict=True):
            prompt = tokenizer(asked["arg_0"]).input_ids
            ids = tokenizer(asked["arg_0"] + asked["arg_1"]).input_ids
            answer = torch.tensor(ids[len(prompt) :])
            with torch.no_grad():
                logits = wrapped(input_ids=torch.tensor([ids[:-1]])).logits[0, -len(answer) :]
            score = logits.log_softmax(-1).gather(1, answer[:, None]).sum().item()
            assert float(response[0][0]) == pytest.approx(score, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_planned_tokens_are_those_that_are_read(method, tmp_path, capsys):
    """Questions whose prompts begin alike, with answers of one token and of several."""
    keys = [f"method={method}", f"output_dir={tmp_path}", *SHORT, "task=toy_rules", "task.answer=text"]
    run = prepare(to_config(compose_cell(keys, [])))
    block = block_of(command(capsys, method, tmp_path, *keys[1:]))
    assert block["cost"]["tokens_in"] == run.method.forward_tokens(workload_of(run), run.config, run.facts)


@pytest.mark.slow
def test_an_adapter_is_trained_once_for_all_tasks(tmp_path, capsys, monkeypatch):
    write_jsonl(tmp_path / "data" / "arc_challenge" / "test.jsonl", choices(6))
    keys = [f"data_dir={arc(tmp_path / 'data')}", "method.reference=arc_easy:train", "method.epochs=1"]
    keys += ["limit=2", "baseline=false"]
    block_of(command(capsys, "soft-prompt", tmp_path, "task=arc_easy", *keys))
    [first] = models(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(training, "fit", None)
        for more in (["task=arc_challenge"], ["task=arc_easy", "limit=1"]):
            block_of(command(capsys, "soft-prompt", tmp_path, *more, *keys))
    assert models(tmp_path) == [first]
    for more in ("seed=1", "method.learning_rate=0.02", "method.virtual_tokens=4", "method.reference_size=9"):
        block_of(command(capsys, "soft-prompt", tmp_path, "task=arc_easy", *keys, more))
    assert len(models(tmp_path)) == 5
