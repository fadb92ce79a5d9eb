"""`method=c2r`, on the embedded model and on small ones.

Broken by: a constraint that does not reach the router, a profile that is used for another model, a
run that is stored under the id of another profile, a profile of test documents that is not reported, too few or too
many partners, groups of experts.
"""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from moe_lab.methods import c2r
from moe_lab.models.source import TINY
from moe_lab.routing import record
from moe_lab.tasks.toy.questions import instructions
from tests.support.command import Ended, run_command
from tests.support.ended import answers, block_of

FEW = ["model=tiny", "task=toy_choice", "limit=6", "method.dataset_size=12"]


def command(capsys: Any, folder: Path, *keys: str) -> Ended:
    return run_command(capsys, "method=c2r", f"output_dir={folder}", *FEW, *keys)


@pytest.mark.slow
def test_it_counts_a_profile_and_constrains(tmp_path, capsys):
    block = block_of(command(capsys, tmp_path, "method.partners=3", "metrics=expert"))
    assert block["c2r"]["partners"] == 3 and 0 < block["c2r"]["changed_fraction"] < 1
    assert answers(tmp_path, "*", block["run_id"]) != answers(tmp_path, "*", block["baseline"]["run_id"])
    assert block["c2r"]["profile"] == "toy"
    assert block["c2r"]["profile_sha256"] == c2r.digest_of(pairs_of_conversations_read_alone(12))

    # under the constraint no expert goes with more than 3 others that chose it, or that it chose
    folder = next(tmp_path.glob(f"runs/*-{block['run_id'][:8]}"))
    found = json.loads((folder / "expert_metrics.json").read_text())
    base = json.loads((next(tmp_path.glob("runs/*-base-*")) / "expert_metrics.json").read_text())
    assert found["collaboration"]["all"]["value"] < base["collaboration"]["all"]["value"]
    assert found["capacity"] is None and found["specialization"] is None and base["capacity"] is not None
    assert found["baseline"]["capacity"] == base["capacity"]

    # the base model where all others are partners
    free = block_of(command(capsys, tmp_path, "method.partners=15"))
    assert free["c2r"]["changed_fraction"] == 0
    assert answers(tmp_path, "*", free["run_id"]) == answers(tmp_path, "*", free["baseline"]["run_id"])
    assert (
        block_of(command(capsys, tmp_path))["run_id"]
        == block_of(command(capsys, tmp_path, "method.partners=8"))["run_id"]
    )


def pairs_of_conversations_read_alone(count: int) -> torch.Tensor:
    """[layers, experts, experts]: tokens that take both experts; on the diagonal, that take the expert."""
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    pairs = torch.zeros(8, 16, 16, dtype=torch.long)
    for row in instructions("train", count):
        text = tokenizer.apply_chat_template(row["messages"], tokenize=False)
        ids = tokenizer(text, add_special_tokens=False).input_ids
        with torch.no_grad(), record(model) as routes:
            model(torch.tensor([ids]))
        for layer, index_TK in enumerate(routes.indices):
            for experts in index_TK.tolist():
                for i, j in product(experts, repeat=2):
                    pairs[layer, i, j] += 1
    return pairs


@pytest.mark.slow
def test_a_profile_of_a_run_is_taken_by_its_content(tmp_path, capsys):
    plain = run_command(capsys, "method=base", "metrics=expert", f"output_dir={tmp_path}", *FEW[:3])
    assert plain.code == 0, plain.err
    folder = Path(plain.out.splitlines()[-1]).parent
    counts = folder / "expert_metrics" / "counts.safetensors"
    ended = command(capsys, tmp_path, f"method.profile={folder}", "method.partners=4")
    one = block_of(ended)
    assert one["c2r"]["test_profile"] and "test-profile: routed by" in ended.out
    same = block_of(command(capsys, tmp_path, f"method.profile={counts}", "method.partners=4"))
    assert one["run_id"] == same["run_id"]
    other = load_file(counts)
    other["pairs.prefill"][0, 1, 2] += 1
    save_file(other, tmp_path / "other.safetensors")
    ended = command(capsys, tmp_path, f"method.profile={tmp_path}/other.safetensors", "method.partners=4")
    assert block_of(ended)["run_id"] != one["run_id"]
    pairs = {"pairs": other["pairs.prefill"] + other["pairs.decode"] + 1}
    save_file(pairs, tmp_path / "recorded.safetensors")
    ended = command(capsys, tmp_path, f"method.profile={tmp_path}/recorded.safetensors", "method.partners=4")
    assert block_of(ended)["c2r"]["test_profile"] is False and "test-profile" not in ended.out


def test_a_profile_of_another_model_is_refused(tmp_path, capsys, loads):
    save_file({"pairs": torch.zeros(2, 3, 3, dtype=torch.long)}, tmp_path / "small.safetensors")
    ended = command(capsys, tmp_path, f"method.profile={tmp_path / 'small.safetensors'}")
    assert ended.code == 2 and "of this model" in " ".join(ended.err.split())
    save_file({"selections": torch.zeros(2, 3)}, tmp_path / "none.safetensors")
    ended = command(capsys, tmp_path, f"method.profile={tmp_path / 'none.safetensors'}")
    assert ended.code == 2 and "no pairs" in ended.err
    assert loads == []
