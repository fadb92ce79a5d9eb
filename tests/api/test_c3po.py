"""C3PO on a model of one's own answers what the command answers.

Broken by: references, settings or embeddings that differ from the command's; gradients that `generate` disables.
"""

import copy
import json

import pytest
import torch

from moe_lab import C3PO, RoE
from moe_lab.engine.hf import Request
from moe_lab.errors import ConfigError
from tests.support import rounding
from tests.support.command import run_command
from tests.support.models import left_padded, small_model
from tests.support.tiers import first_fast

PAIRS = [
    ("two and two", " four"),
    ("one and one are", " two"),
    ("a cat is", " an animal"),
    ("a dog", " too"),
]
KEYS = {"layers": "last2", "k": 2, "steps": 2, "core_experts": 4, "learning_rate": [0.5, 0.1]}
PROMPTS = ["one and two", "a cat and a dog are"]


@pytest.fixture(params=first_fast(["olmoe", "mixtral", "gpt_oss"]))
def model(request):
    return small_model(request.param)


def test_prompts_are_answered_with_optimized_pathways(model, tokenizer):
    c3po, plain = C3PO(model, tokenizer, PAIRS, **KEYS), RoE(model, tokenizer, n=1)
    found = c3po.loglikelihood(PROMPTS[0], [" three", " four"])
    unchanged = plain.loglikelihood(PROMPTS[0], [" three", " four"])
    assert max(abs(one - other) for one, other in zip(found, unchanged, strict=True)) > 1e-3
    ids = tokenizer.encode(PROMPTS[0])
    first = c3po.next_token_logprobs(ids)[tokenizer.encode(" ")[0]]
    assert float(first) == rounding.approx(c3po.loglikelihood(PROMPTS[0], " "))
    none = C3PO(model, tokenizer, PAIRS, **KEYS | {"steps": 0})
    assert none.loglikelihood(PROMPTS[0], " three") == rounding.approx(unchanged[0], 6)
    assert not any(module._forward_hooks for module in model.modules())


def test_text_is_that_of_lm_eval(model, tokenizer):
    c3po = C3PO(model, tokenizer, PAIRS, **KEYS, persistence="all_new")
    texts: dict[int, str] = {}
    requests = [Request((prompt, {"until": [], "max_gen_toks": 5})) for prompt in PROMPTS]
    c3po.lm.answer("generate_until", requests, texts.__setitem__)
    assert c3po.generate(PROMPTS, max_new_tokens=5) == [texts[0], texts[1]]
    inputs = left_padded(tokenizer, PROMPTS)
    ids = model.generate(**inputs, custom_generate=c3po, max_new_tokens=5, do_sample=False)
    assert tokenizer.batch_decode(ids[:, -5:], skip_special_tokens=True) == [texts[0], texts[1]]


def test_a_folder_without_references_is_named(tmp_path, olmoe, tokenizer):
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match="No such file.*below outputs/references/") as refused:
            C3PO(olmoe, tokenizer, folder, **KEYS)
        assert str(folder) in str(refused.value)


@pytest.mark.slow
def test_answers_are_those_of_the_command(tmp_path, capsys, tiny_olmoe_dir):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ended = run_command(
        capsys, "method=c3po", f"model.path={tiny_olmoe_dir}", "task=toy_choice", "limit=3", "method.layers=last2",
        "method.k=2", "method.steps=2", "method.core_experts=4", "method.learning_rate=[0.5,0.1]",
        "method.reference_size=30", "baseline=false", f"output_dir={tmp_path}",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    (folder,) = (tmp_path / "references").iterdir()
    model = AutoModelForCausalLM.from_pretrained(tiny_olmoe_dir).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_olmoe_dir)
    _check_other_models(folder, model, tokenizer)
    lines = [json.loads(line) for line in (folder / "references.jsonl").open()]
    pairs = [(line["text"], line["answer"]) for line in lines if line["correct"]]
    stored = [
        json.loads(line) for file in tmp_path.glob("runs/*/samples_*.jsonl") for line in file.open()
    ]
    for references in (folder, pairs):
        c3po = C3PO(model, tokenizer, references, **KEYS)
        for sample in stored:
            asked = [list(arguments.values()) for arguments in sample["arguments"].values()]
            found = c3po.loglikelihood([pair[0] for pair in asked], [pair[1] for pair in asked])
            assert found == pytest.approx(
                [float(answer[0][0]) for answer in sample["resps"]], abs=1e-3
            )


def _check_other_models(folder, model, tokenizer):
    """Broken by references, and by embeddings beside them, of another model."""
    stored = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.copy_(
                weight[torch.randperm(len(weight), generator=torch.Generator().manual_seed(0))]
            )
    for given, keys in (
        (other, KEYS),
        (small_model("mixtral"), KEYS),
        (model, KEYS | {"tokens": "last2"}),
        (model, KEYS | {"tokens": "first1"}),
    ):
        with pytest.raises(ConfigError, match="does not fit: .* Use a set of this model"):
            C3PO(given, tokenizer, folder, **keys)
    assert {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} == stored
    C3PO(copy.deepcopy(model).to(torch.bfloat16), tokenizer, folder, **KEYS)
