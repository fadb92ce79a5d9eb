"""Breaks if a run, a study or what one is made of gets another id: stored results would not be found any more.

An id changes on purpose where numbers change: raise `numerics` of the method, or the version of the task's function
(`moe_lab/tasks/versions.py`), and replace the ids here. The ids hold for the versions in constraints.txt.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from moe_lab.cli.main import compose_or_explain
from moe_lab.runs.config import to_config
from moe_lab.runs.prepare import prepare
from moe_lab.runs.tuning.study import prepare_study
from tests.support.documents import BIGBENCH, HELLASWAG, KNOWREF
from tests.support.models import make_tokenizer
from tests.support.runs import choices, small_data, write_jsonl

SIZES = {"hidden_size": 16, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2}

RUNS = {
    "method=base task=toy_math": "f7085ca3edea0fb3ad62d2e981bc8152150fb2f1199a8b87d0abb5309a5898ac",
    "method=base task=toy_choice limit=20 dtype=bfloat16": "93926d59b7f89c85e7956b3515425ca3a193cfef2341fdcc67f4f0e430b8f004",
    "method=base task=toy_text": "3041c101e3cccb163b5e839b62e4652452638ff26a2cf540b65f32c2ad23aade",
    "method=base task=toy_safety": "14534fb236f9e719d8a83febacd9def44c18901fb84411da94098d5a2de7fd1c",
    "method=roe task=toy_math": "7c025d7b64b4ce18db51ecbc64558e24a0d6ce4fac4f93d9f6a85b28f93fd7ae",
    "method=roe task=toy_choice seed=3 method.n=4 method.temperature=[0,0.2,0.2,0.2,0.2,0.2,0.2,0]": "27a981701e56cd9cec2ae5e2d7fc76cf75888206a0a7f044ce5c9e01f45fe62b",
    "method=c2r task=toy_choice limit=20": "d69d6ea366e4f23b52995e982296e9e63de97664eab2810067116ef40130fae3",
    "method=c3po task=toy_choice limit=20": "122f23d28bf0eac597730b91b8a6a2db76fef1b2c78cfedbcc3e68597bff75ed",
    "method=icl task=toy_choice limit=20": "98e8e989e3762d7d5fb9bbcdef8c87619207e64de78c9c347086e95e84430ce0",
    "method=soft-prompt task=toy_choice limit=20": "bb689cb9e203635a0464ef8bb25969746dae480146b699e7b1e7f662c9968c82",
    "method=prefix-tuning task=toy_choice limit=20": "3c0330b588d6f65f34cf052f868206991234dd3d561b492c0185930b40a918fb",
    "method=finetune-freeze task=toy_choice limit=20": "a939d76a30c25ff2a9d72306dc9d38096e160794b5c0360c87a0c6d60e33a849",
    "method=base task=addsub": "982595700c93d290e6a07cc12346c445e4641b5adb983bc4cd0a6d97e44e8a05",
    "method=base task=gsm8k num_fewshot=2": "b52429d5c221820e2ecfeb7284c7725d68ccf6bdfdd9f409c09e57326c6762ed",
    "method=base task=arc_easy": "82dce9ad9d5251f0bf014aeaf2326edb66227ff07f0cd787f8d7009d7430a2cb",
    "method=base task=arc_easy task.answer=letters": "ca06eb9c443d76405cbfa0d8d0dc3a61513ba1968b3287b4d31f4ca4eb6b9b01",
    "method=base task=arc_easy_answer_format": "fa17cd924fdedd984d68a55bf1d64a28eeee190b6c92a1c5bc4fbdc99df714ee",
    "method=base task=hellaswag_answer_format": "2ccfa64e54a3dc9895661aecb99a345d0f0911486bf401f58425ef6dae53a938",
    "method=base task=social_iqa_answer_format": "80ba0287a6d6b25cf95dd7615b6b73b9ce351f1998d99844286ba298ef874c8c",
    "method=base task=bigbench_choice": "36d94347a542ba66a7fe2694b6d1cc57908eb2e899350918a7147bc71d33f18c",
    "method=base task=knowref": "4859a6191c15408b0ca58f16fa462825161ca272e043db670bb4c01f5b805197",
    "method=base task=cona": "8f6182bdb79c9e84efe23ce31dc691211edbe1b29270ba09f73d3856b9cc5fc4",
    "method=base task=humaneval predict_only=true": "b1a21ebb43dd026140028955fe0f05886353eb4f7a8e4a016e135e10fcf97405",
    "method=base task=lm_eval task.name=[arc_easy,gsm8k] num_fewshot=2": "8929a495dea9d37a387f6b236518b58105d168b82c21a1e8a5aa87532a5817f8",
    "method=roe task=addsub model.path=FOLDER method.skip_layers=0": "3bba154d2c87de2fa23c8dc07585dc2633c51aa1c0d092c3166113ee62f4c7de",
}
"""Run ids by command line; `model=tiny` where it names none."""
STUDIES = {
    "method=roe task=toy_math tuning=tpe": "b3bac18b7945f40d95c587a4daf989c7c9ebcaf9c5c7f52d1e1906c409a3ca19",
    "method=roe task=gsm8k tuning=uniform tuning.num_samples=2 num_fewshot=0": "e21498b1b5e2f3172a4950c20aeea8a6287301361d9126e9376b23512220215c",
    "method=roe task=addsub tuning=tpe tuning.num_samples=4 tuning.text=own": "2d11aabeee761912b8952188876879dace887c1a230f7005b48014fafcc51f70",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = small_data(tmp_path_factory.mktemp("golden"))
    social = {"context": "Ann lost her keys.", "question": "What next?", "label": "2"}
    social |= {"answerA": "sleep", "answerB": "search", "answerC": "sing"}
    code = {"task_id": "HumanEval/0", "prompt": "def one():\n", "canonical_solution": "    return 1\n"}
    code |= {"test": "def check(candidate):\n    assert candidate() == 1\n", "entry_point": "one"}
    rows = {
        "hellaswag/validation": [HELLASWAG],
        "social_i_qa/validation": [social],
        "bigbench/test": [BIGBENCH],
        "knowref/test": [KNOWREF],
        "safety_prompts/I-CoNa/test": [{"instruction": "Say it."}],
        "humaneval/test": [code],
        "arc_easy/validation": choices(3, start=200),
    }
    for name, documents in rows.items():
        write_jsonl(folder / f"{name}.jsonl", documents)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small OLMoE whose files have the same bytes on every machine."""
    from transformers import AutoModelForCausalLM, OlmoeConfig

    folder = tmp_path_factory.mktemp("model")
    make_tokenizer().save_pretrained(folder)
    config = OlmoeConfig(vocab_size=300, num_experts=4, num_experts_per_tok=2, **SIZES)
    config.save_pretrained(folder)
    weights = AutoModelForCausalLM.from_config(config).state_dict()
    zeros = {name: np.zeros(tuple(tensor.shape), dtype=np.float32) for name, tensor in weights.items()}
    save_file(zeros, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def configured(line: str, data: Path, model: Path, output: Path):
    words = line.replace("FOLDER", str(model)).split()
    named = ["model=tiny"] if "FOLDER" not in line else ["model=olmoe"]
    common = ["device=cpu", "offline=true", f"data_dir={data}", f"output_dir={output}"]
    (cell,) = compose_or_explain([*named, *words, *common])
    return to_config(cell)


@pytest.mark.parametrize("line", RUNS)
def test_a_run_keeps_its_id(line: str, data: Path, model: Path, tmp_path: Path) -> None:
    assert prepare(configured(line, data, model, tmp_path)).run_id == RUNS[line]


@pytest.mark.parametrize("line", STUDIES)
def test_a_study_keeps_its_id(line: str, data: Path, model: Path, tmp_path: Path) -> None:
    assert prepare_study(configured(line, data, model, tmp_path)).study_id == STUDIES[line]
