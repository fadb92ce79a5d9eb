"""Breaks if a run, a study or what one is made of gets another id: stored results
would not be found any more.

An id changes on purpose where numbers change: raise `numerics` of the method, or the number
of the task's function (`moe_lab.results.code.versioned`), and replace the ids here. They hold
for the versions in constraints.txt.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from moe_lab.runs.config import compose_or_explain, to_config
from moe_lab.runs.prepare import prepare
from moe_lab.runs.tuning.prepare import prepare_study
from tests.support.documents import BIGBENCH, HELLASWAG, KNOWREF
from tests.support.models import make_tokenizer
from tests.support.runs import choices, small_data, write_jsonl

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
}

RUNS = {
    "method=base task=toy_math": "722627e895b58ca52c0fdc099b5ff42f29a8d8fca3e865e42f051cc7f766ebf6",
    "method=base task=toy_choice limit=20 dtype=bfloat16": (
        "11454487ed9c8550b02fc14eb12034e0ce2a1cbeab631605513c03e8807726fa"
    ),
    "method=base task=toy_text": "8ceffbacf97e61feed11f49a9372a3127f7f51ff95c8c8d9f866c484eed41bb8",
    "method=base task=toy_safety": (
        "02c3589246397eebeb5bd283d5c76616d1edff91f3e096e54005ab1afe9ee543"
    ),
    "method=roe task=toy_math": "d53edb758fc13b701dbc43fea9543a8d521e4489b9b867ae83f3023d1bddc61f",
    (
        "method=roe task=toy_choice seed=3 method.n=4 "
        "method.temperature=[0,0.2,0.2,0.2,0.2,0.2,0.2,0]"
    ): ("fa11ca48735010f857a77147c2d5051fc2e1784337b153eeb71aa7f47a397e63"),
    "method=c2r task=toy_choice limit=20": (
        "23f7dff374268eaf803128791b65bf954116822be44f45dbaf46716821371dc9"
    ),
    "method=c3po task=toy_choice limit=20": (
        "3268f5cabea24cdcaa586e1b90b023e41926b9baa66755940837683c8e4ddc1b"
    ),
    "method=icl task=toy_choice limit=20": (
        "0c8e45ff375fad70c68c3c97e4a18c2b4e47c2ec5f70f4b8e2fdb36ad6a0e830"
    ),
    "method=soft-prompt task=toy_choice limit=20": (
        "2021951c6c2bb9eabc210ed6ea4c1ba783a610157f984228db754afc25290f65"
    ),
    "method=prefix-tuning task=toy_choice limit=20": (
        "49f0edb8dca31da053ad7c1d18c5f687c994262b8f6aea699d140df0d97c173b"
    ),
    "method=finetune-freeze task=toy_choice limit=20": (
        "777901b0e6be51697bf2450e23ce0f72c04502cc8c9beea34735ba1648bada22"
    ),
    "method=base task=addsub": "7b976541b61e635b759261739f5a08afb6ddb43f800bd43acfc6496d342e5c0a",
    "method=base task=gsm8k num_fewshot=2": (
        "9e4ec525cb90e6e4db420b38e7d06856dcf4e852b476b4ca580107e8854e5f4e"
    ),
    "method=base task=arc_easy": "d088966a334630a62125f8308b60f180e5cec618035f1ee1466e5b110cd88c3e",
    "method=base task=arc_easy task.answer=letters": (
        "fd8a2effd55db9ec0af8ce1a01a2c7e873e1bfb358cac999bbb9c38b3a370103"
    ),
    "method=base task=arc_easy_answer_format": (
        "f46a3502de88f814961a41033e264ef022b442f5518ea2356cc18d43eaf7757c"
    ),
    "method=base task=hellaswag_answer_format": (
        "4fa3d30205644c37a3f28fb9300c0ce5166a2f541a59601266ec1e03d3affe23"
    ),
    "method=base task=social_iqa_answer_format": (
        "b7d1c407f5b4bbc15cd8d33bf364615c02a5da2d16239503af7040558a22321c"
    ),
    "method=base task=bigbench_choice": (
        "e0492387c5a0167acdf631eab911a2965fd9ae4abdefa0e1f851d56c64f68131"
    ),
    "method=base task=knowref": "3151e7ff616b6675c109cad2514948563946d3647d5b4cd37468781f0821def9",
    "method=base task=cona": "1a324fac971308d8f72394865b4c12c11f4e6db07d440dc5a2c490dc4c2878fb",
    "method=base task=humaneval predict_only=true": (
        "d0c6572fe5534acab70ddf77e6e31f4ed89083f60566a597f397a8bd2562d30f"
    ),
    "method=base task=lm_eval task.name=[arc_easy,gsm8k] num_fewshot=2": (
        "3fc5c275b19425c0feaccd2df2a524006e68a2aad0119442fca8fc53f51fe186"
    ),
    "method=roe task=addsub model.path=FOLDER method.skip_layers=0": (
        "45d32b39734630ffcc02f02ce2573e17f336e1a5efc27407b765c01c3efb8eda"
    ),
}
"""Run ids by command line; `model=tiny` where it names none."""
STUDIES = {
    "method=roe task=toy_math tuning=tpe": (
        "62ac065f0051e7c795fe488fc76eface608a5974b79f9296494614fcbc562f61"
    ),
    "method=roe task=gsm8k tuning=uniform tuning.num_samples=2 num_fewshot=0": (
        "e0746339b48372cce938441236749398c90e3cad54c356b95d9ffc94734fc56e"
    ),
    "method=calibration task=toy_text tuning=scale": (
        "709e757295e7042d93f157c366378452558450a1ba96fd8e1148d417b943ff5b"
    ),
    "method=roe method.temperature=0.2 task=toy_text tuning=scale tuning.num_samples=5": (
        "b355d29a3c789a2a37fb072976d61ed694e018a9c1aea20588bb64165f8c2103"
    ),
    "method=top-k task=toy_choice tuning=grid": (
        "f1a01f28bf34914e4ef8bb90e05467d952155dc88fcfb6fe7fbc1acdf8742e0b"
    ),
    (
        "method=roe task=toy_choice tuning=random tuning.metric=perplexity "
        "tuning.logit_scale=true tuning.max_temperature=2"
    ): ("e78434c36dc4f27a5f6796369620d0f8f41f55818621adcd28efc53c9023b4c1"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = small_data(tmp_path_factory.mktemp("golden"))
    social = {"context": "Ann lost her keys.", "question": "What next?", "label": "2"}
    social |= {"answerA": "sleep", "answerB": "search", "answerC": "sing"}
    code = {
        "task_id": "HumanEval/0",
        "prompt": "def one():\n",
        "canonical_solution": "    return 1\n",
    }
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
    settings = SIZES | {"vocab_size": 300, "num_experts": 4, "num_experts_per_tok": 2}
    config = OlmoeConfig(**settings)
    # `save_pretrained` would add the version of transformers and its defaults
    text = json.dumps({"model_type": "olmoe", "architectures": ["OlmoeForCausalLM"], **settings})
    (folder / "config.json").write_text(text, encoding="utf-8")
    weights = AutoModelForCausalLM.from_config(config).state_dict()
    zeros = {
        name: np.zeros(tuple(tensor.shape), dtype=np.float32) for name, tensor in weights.items()
    }
    save_file(zeros, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def configured(line: str, data: Path, model: Path, output: Path):
    words = line.replace("FOLDER", str(model)).split()
    named = ["model=tiny"] if "FOLDER" not in line else ["model=olmoe"]
    common = ["device=cpu", "offline=true", f"data_dir={data}", f"output_dir={output}"]
    (cell,) = compose_or_explain([*named, *words, *common])
    return to_config(cell)


@pytest.mark.parametrize("line", RUNS)
def test_a_run_keeps_its_id(line, data, model, tmp_path):
    assert prepare(configured(line, data, model, tmp_path)).run_id == RUNS[line]


@pytest.mark.parametrize("line", STUDIES)
def test_a_study_keeps_its_id(line, data, model, tmp_path):
    assert prepare_study(configured(line, data, model, tmp_path)).study_id == STUDIES[line]
