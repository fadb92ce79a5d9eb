"""Breaks if a run, a study or what one is made of gets another id: stored results would not be found any more.

An id changes on purpose where numbers change: raise `numerics` of the method, or the version of the task's function
(`moe_lab/tasks/versions.py`), and replace the ids here. The ids hold for the versions in constraints.txt.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from moe_lab.app import compose_or_explain
from moe_lab.convert import to_config
from moe_lab.prepare import prepare
from moe_lab.tuning.study import prepare_study
from tests.conftest import make_tokenizer
from tests.runs import choices, small_data, write_jsonl
from tests.tasks.test_answer_format import HELLASWAG
from tests.tasks.test_documented import BIGBENCH, KNOWREF

SIZES = {"hidden_size": 16, "intermediate_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2}

RUNS = {
    "method=base task=toy_math": "",
    "method=base task=toy_choice limit=20 dtype=bfloat16": "",
    "method=base task=toy_text": "",
    "method=base task=toy_safety": "",
    "method=roe task=toy_math": "",
    "method=roe task=toy_choice seed=3 method.n=4 method.temperature=[0,0.2,0.2,0.2,0.2,0.2,0.2,0]": "",
    "method=c2r task=toy_choice limit=20": "",
    "method=c3po task=toy_choice limit=20": "",
    "method=icl task=toy_choice limit=20": "",
    "method=soft-prompt task=toy_choice limit=20": "",
    "method=prefix-tuning task=toy_choice limit=20": "",
    "method=finetune-freeze task=toy_choice limit=20": "",
    "method=base task=addsub": "",
    "method=base task=gsm8k num_fewshot=2": "",
    "method=base task=arc_easy": "",
    "method=base task=arc_easy task.answer=letters": "",
    "method=base task=arc_easy_answer_format": "",
    "method=base task=hellaswag_answer_format": "",
    "method=base task=social_iqa_answer_format": "",
    "method=base task=bigbench_choice": "",
    "method=base task=knowref": "",
    "method=base task=cona": "",
    "method=base task=humaneval predict_only=true": "",
    "method=base task=arc_easy,gsm8k": "",
    "method=roe task=addsub model.path=FOLDER": "",
}
"""Run ids by command line; `model=tiny` where it names none."""
STUDIES = {
    "method=roe task=toy_math tuning=tpe": "",
    "method=roe task=gsm8k tuning=uniform tuning.num_samples=2 num_fewshot=0": "",
    "method=roe task=addsub tuning=tpe tuning.num_samples=4": "",
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
        "cona/test": [{"instruction": "Say it."}],
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
