"""lm-eval evaluates a model under a method as the command does, and the model stays untouched."""

from pathlib import Path
from typing import Any

import pytest
import torch

import moe_lab
from moe_lab.config.schema import ModelConfig
from moe_lab.models.load import load_model
from moe_lab.models.source import TINY
from tests.support import rounding
from tests.support.adapters import make_adapter
from tests.support.models import make_model, small_model

TASKS = Path(moe_lab.__file__).parent / "tasks" / "toy"
SCORED = [("hello", " world"), ("what is", " a cat")]


def instances(kind, arguments):
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, each, 0) for each in arguments]


def test_requests_are_answered_by_the_ensemble(tokenizer):
    model = small_model("mixtral")
    roe = moe_lab.RoE(model, tokenizer, n=3, temperature=0.7, seed=1)
    lm = moe_lab.lm(model, tokenizer, "roe", n=3, temperature=0.7, seed=1)
    scores = [value for value, _ in lm.loglikelihood(instances("loglikelihood", SCORED))]
    assert scores == rounding.approx(roe.loglikelihood(*map(list, zip(*SCORED, strict=True))), tokens=6)
    (text,) = lm.generate_until(instances("generate_until", [("hello", {"until": [], "max_gen_toks": 6})]))
    assert text == roe.generate("hello", max_new_tokens=6)
    plain = moe_lab.lm(model, tokenizer)
    assert abs(plain.loglikelihood(instances("loglikelihood", SCORED))[0][0] - scores[0]) > 1e-3
    assert not any(module._forward_hooks for module in model.modules())
    dense = moe_lab.lm(make_model("llama"), tokenizer)
    assert dense.loglikelihood(instances("loglikelihood", SCORED))[0][0] < 0
    assert lm.loglikelihood_rolling(instances("loglikelihood_rolling", [("what is a cat",)]))[0] < 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts", [["q_proj", "v_proj"], ["experts.down_proj", "gate.weight"]], ids=["attention", "MoE"]
)
def test_an_adapter_scores_as_in_lm_evals_own_model(parts, tmp_path):
    """`peft=` of `--model hf`; also under RoE without noise."""
    import lm_eval
    import peft
    from transformers import AutoModelForCausalLM

    key = "target_modules" if parts == ["q_proj", "v_proj"] else "target_parameters"
    kind = peft.LoraConfig(**{"target_modules": [], key: parts}, r=4, task_type="CAUSAL_LM")
    make_adapter(AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32), kind, tmp_path)
    manager = lm_eval.tasks.TaskManager(include_path=str(TASKS), include_defaults=False)

    def answers(model: Any, arguments: str | None = None) -> list[float]:
        given = {"model": model, "model_args": arguments, "device": "cpu", "limit": 6, "bootstrap_iters": 0}
        found = lm_eval.simple_evaluate(**given, tasks=["toy_choice"], task_manager=manager)
        return [value for own in found["samples"]["toy_choice"] for value, _ in own["filtered_resps"]]

    plain = answers("hf", f"pretrained={TINY},dtype=float32")
    expected = answers("hf", f"pretrained={TINY},dtype=float32,peft={tmp_path}")
    assert max(abs(one - other) for one, other in zip(plain, expected, strict=True)) > 1e-2
    source = ModelConfig(path=str(TINY), peft=str(tmp_path))
    adapted = load_model(source, dtype="float32", device="cpu", offline=True)
    for method in ({}, {"method": "roe", "n": 2, "temperature": 0}):
        found = answers(moe_lab.lm(adapted.model, adapted.tokenizer, **method))
        assert found == rounding.approx(expected, tokens=6)
