"""Breaks if a run, a study or what one is made of gets another id: stored results would not be found any more.

An id changes on purpose where numbers change: raise `numerics` of the method, or the version of the task's function
(`moe_lab/tasks/task_functions.py`), and replace the ids here. The ids hold for the versions in constraints.txt.
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
    "method=base task=toy_math": "722627e895b58ca52c0fdc099b5ff42f29a8d8fca3e865e42f051cc7f766ebf6",
    "method=base task=toy_choice limit=20 dtype=bfloat16": "11454487ed9c8550b02fc14eb12034e0ce2a1cbeab631605513c03e8807726fa",
    "method=base task=toy_text": "8ceffbacf97e61feed11f49a9372a3127f7f51ff95c8c8d9f866c484eed41bb8",
    "method=base task=toy_safety": "c3805938c468385a0acbae108b0f05a58e7fe5d62e89a61e2cff436c9c9024d9",
    "method=roe task=toy_math": "0507f0641346a7c8f4892efa3eda85668fabe92f8fbd55fb9101aa8ad09270e8",
    "method=roe task=toy_choice seed=3 method.n=4 method.temperature=[0,0.2,0.2,0.2,0.2,0.2,0.2,0]": "f9314810308447f9b15b7478e0ba56c5dbfa4c9c2f81ec25d23856c9cc6b9080",
    "method=c2r task=toy_choice limit=20": "23f7dff374268eaf803128791b65bf954116822be44f45dbaf46716821371dc9",
    "method=c3po task=toy_choice limit=20": "5cfc991d1c82e5ac50634f1ae2843cf5dde2ff7b60ee3c7716eaee2b60bf172f",
    "method=icl task=toy_choice limit=20": "0c8e45ff375fad70c68c3c97e4a18c2b4e47c2ec5f70f4b8e2fdb36ad6a0e830",
    "method=soft-prompt task=toy_choice limit=20": "fa290d65f7e4a462b35b6ac82e2d6eaa379527236884567a348d2975d539fe36",
    "method=prefix-tuning task=toy_choice limit=20": "30b485cb2e79d81a963bcb731c4e89db3746d94aa0f4b9aa1eabb8a28708aa1e",
    "method=finetune-freeze task=toy_choice limit=20": "95f73368753aedfd419bf473316244674fb6228694ff61a34bb497cdf0affe4e",
    "method=base task=addsub": "62ccfcf1d757fba018ae8353bb675937905cbf9840666ff8fee6dc8d3f6dedf1",
    "method=base task=gsm8k num_fewshot=2": "9e4ec525cb90e6e4db420b38e7d06856dcf4e852b476b4ca580107e8854e5f4e",
    "method=base task=arc_easy": "d088966a334630a62125f8308b60f180e5cec618035f1ee1466e5b110cd88c3e",
    "method=base task=arc_easy task.answer=letters": "d0ac8dce4d4c8847d335b352d882722e745735359b88421cf7342ad5d79d7c86",
    "method=base task=arc_easy_answer_format": "985df49a444559fb1d3b3fd8e3e8aca296aef087e4bbcce9d6b4c774bd0f5c18",
    "method=base task=hellaswag_answer_format": "a018fb2073960d86204380c4783d5dff3618da92659130705afcb359111dd64c",
    "method=base task=social_iqa_answer_format": "f0f7cba19314d4c30c913150de77bf4718e74cc1c2b0349c5a0701f25bf6ac7e",
    "method=base task=bigbench_choice": "d1b449e22c29b48338861557f9154c4540c2df5256ea2e377fdf6943339f09db",
    "method=base task=knowref": "3151e7ff616b6675c109cad2514948563946d3647d5b4cd37468781f0821def9",
    "method=base task=cona": "c5f42b99639166a956fbd85e1519bbc8cfe0889030e35adf9e4d3c3a19505684",
    "method=base task=humaneval predict_only=true": "46e7111d77a52d9ea08e472783c387ecf0dc2352f74c3cb672c0946cfbe59fff",
    "method=base task=lm_eval task.name=[arc_easy,gsm8k] num_fewshot=2": "3fc5c275b19425c0feaccd2df2a524006e68a2aad0119442fca8fc53f51fe186",
    "method=roe task=addsub model.path=FOLDER method.skip_layers=0": "3bba154d2c87de2fa23c8dc07585dc2633c51aa1c0d092c3166113ee62f4c7de",
}
"""Run ids by command line; `model=tiny` where it names none."""
STUDIES = {
    "method=roe task=toy_math tuning=tpe": "b34c0386671f4180b6ae8920e0519b080c007cd9dbf8cd595eba73724d0ca752",
    "method=roe task=gsm8k tuning=uniform tuning.num_samples=2 num_fewshot=0": "fa61af6036f744cbd3944e0480bd0e767f90ca5f73caeb4b7b00218c7b8267ee",
    "method=roe task=addsub tuning=tpe tuning.num_samples=4 tuning.text=own": "e012ce4e136e0b3bb28b8c9c49f06b1842eeb5df713056b8fd957e43f4ba6b12",
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
