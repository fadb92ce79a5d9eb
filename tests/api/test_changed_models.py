"""Breaks if an object that was made of a model gives wrong numbers after the model has changed,
or a copy of a model is not the plain model.
"""

import copy
import io
import json
import pickle
import shutil

import pytest
import torch
from lm_eval.api.instance import Instance
from peft import LoraConfig, get_peft_model

from moe_lab import C3PO, RoE, expert_metrics, lm, override, record
from moe_lab.errors import ConfigError, ModelError
from moe_lab.models.output_flags import EXPECTED
from tests.support.command import run_command
from tests.support.models import FAMILIES, make_model, small_model
from tests.support.tiers import by_family, first_fast

IDS = torch.arange(12).reshape(2, 6) * 7 % 300
PAIRS = [("two and two", " four"), ("one and one are", " two"), ("a cat is", " an animal")]


def roe_of(model, tokenizer):
    return RoE(model, tokenizer, n=3, temperature=0.5, skip_layers=0)


def c3po_of(model, tokenizer):
    return C3PO(model, tokenizer, PAIRS, k=2, layers="last2", steps=1, core_experts=4)


def score(made):
    return made.loglikelihood("what is", " a cat")


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


# Flags that training tools leave in config.json

FLAGS = [(name, not expected) for name, expected in EXPECTED.items()]


def with_flag(model, name, value):
    parts = {id(part): part for part in (model.config, model.config.get_text_config(decoder=True))}
    for part in parts.values():
        part.update({name: value})
    return model


@pytest.mark.parametrize(("flag", "value"), FLAGS, ids=lambda value: str(value))
@pytest.mark.parametrize("make", [roe_of, c3po_of])
@pytest.mark.parametrize("family", first_fast(FAMILIES))
def test_flags_of_a_config_change_no_number(family, make, flag, value, tokenizer):
    expected = score(make(make_model(family), tokenizer))
    model = with_flag(make_model(family, attn_implementation="eager"), flag, value)
    made = make(model, tokenizer)
    assert score(made) == pytest.approx(expected, abs=1e-5)
    assert getattr(model.config, flag) is value, "the model is not changed"


@pytest.mark.parametrize(
    "family", by_family(["olmoe", "mixtral", "gpt_oss", "qwen3_moe", "granitemoe", "phimoe"])
)
def test_router_logits_in_the_output_change_no_generation(family, tokenizer):
    model = copy.deepcopy(small_model(family))
    expected = roe_of(model, tokenizer).generate("hello", max_new_tokens=4)
    with_flag(model, "output_router_logits", True)
    assert roe_of(model, tokenizer).generate("hello", max_new_tokens=4) == expected


@pytest.mark.parametrize(("flag", "value"), FLAGS, ids=lambda value: str(value))
def test_flags_of_a_config_change_no_expert_metric(flag, value):
    texts = [[1, 2, 3, 4], [5, 6, 7]]
    expected = expert_metrics(make_model("olmoe"), texts)
    model = with_flag(make_model("olmoe", attn_implementation="eager"), flag, value)
    assert expert_metrics(model, texts)["accuracy"] == expected["accuracy"]


@pytest.mark.parametrize("method", ["base", "roe method.n=2"])
def test_flags_in_config_json_change_no_score_of_the_command(
    method, tiny_olmoe_dir, tmp_path, capsys
):
    folder = tmp_path / "flags"
    shutil.copytree(tiny_olmoe_dir, folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | dict(FLAGS)))
    scores = []
    for model in (tiny_olmoe_dir, folder):
        line = (
            f"method={method} model=olmoe model.path={model} task=toy_choice limit=2 baseline=false"
        )
        ended = run_command(capsys, *line.split(), f"output_dir={tmp_path}/{model.name}")
        assert ended.code == 0, ended.err
        [results] = [
            json.loads((run_folder / "results.json").read_text()) for run_folder in ended.folders
        ]
        scores.append(results["results"])
    assert scores[0] == scores[1]


# What changes after an object was made


@pytest.mark.parametrize("make", [roe_of, c3po_of])
def test_a_model_in_training_mode_is_refused_at_each_call(make, tokenizer):
    model = make_model("olmoe", attention_dropout=0.5)
    made = make(model, tokenizer)
    before = score(made)
    model.train()
    for call in (
        lambda: score(made),
        lambda: made.generate("hello", max_new_tokens=2),
        lambda: made.next_token_logprobs([1, 2]),
        lambda: made.lm.loglikelihood([]),
    ):
        with pytest.raises(ModelError, match=r"training mode.*model\.eval\(\)"):
            call()
    model.eval()
    assert score(made) == before
    model.model.layers[1].train()
    with pytest.raises(ModelError, match="training mode"):
        score(made)


def test_an_lm_of_lm_eval_refuses_it_too(tokenizer):
    model = make_model("olmoe")
    base = lm(model, tokenizer)
    model.train()
    request = Instance("loglikelihood", {}, ("what is", " a cat"), idx=0, task_name="", doc_id=0)
    with pytest.raises(ModelError, match="training mode"):
        base.loglikelihood([request])


@pytest.mark.parametrize("make", [roe_of, c3po_of])
def test_an_adapter_that_is_added_or_switched_off_is_refused(make, tokenizer):
    model = make_model("olmoe")
    made = make(model, tokenizer)
    wrapped = get_peft_model(
        model, LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    ).eval()
    with pytest.raises(
        ModelError, match=r"the adapters of \w+ changed after .* was made\. Make a new"
    ):
        score(made)
    adapted = make(wrapped, tokenizer)
    with_adapter = score(adapted)
    with wrapped.disable_adapter(), pytest.raises(ModelError, match="the adapters"):
        score(adapted)
    assert score(adapted) == with_adapter


def test_a_model_that_moved_is_refused(tokenizer):
    model = make_model("olmoe")
    roe = roe_of(model, tokenizer)
    model.to("meta")
    with pytest.raises(ModelError, match="the device of OlmoeForCausalLM changed"):
        score(roe)


# Copies


@pytest.mark.parametrize("family", by_family(["olmoe", "dbrx", "jetmoe", "llama4_text"]))
@pytest.mark.parametrize("copied", ["deepcopy", "pickle", "torch.save"])
def test_a_copy_inside_a_context_is_the_plain_model(family, copied):
    model = copy.deepcopy(small_model(family))
    plain = logits(model)

    def strongest_alone(router, routing):
        weights_TK = torch.zeros_like(routing.weights_TK)
        weights_TK[:, 0] = 1
        return routing._replace(weights_TK=weights_TK)

    with record(model) as routes, override(model, strongest_alone):
        changed = logits(model)
        recorded = len(routes.positions)
        if copied == "deepcopy":
            copied_model = copy.deepcopy(model)
        elif copied == "pickle":
            copied_model = pickle.loads(pickle.dumps(model))
        else:
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            copied_model = torch.load(file, weights_only=False)
        assert torch.equal(logits(copied_model), plain)
        assert not torch.equal(changed, plain)
        assert len(routes.positions) == recorded
    assert torch.equal(logits(copied_model), plain)


# Compiled models, and assistants


def test_a_compiled_model_is_the_model_that_was_compiled(tokenizer):
    model = make_model("olmoe")
    expected = roe_of(model, tokenizer)
    compiled = torch.compile(model, backend="eager")
    roe = roe_of(compiled, tokenizer)
    assert roe.generate("hello", max_new_tokens=4) == expected.generate("hello", max_new_tokens=4)
    assert score(roe) == score(expected)


def test_an_assistant_is_refused(tokenizer):
    model = make_model("olmoe")
    with pytest.raises(ConfigError, match="assistant_model is not supported"):
        roe_of(model, tokenizer).generate("hello", assistant_model=model)
