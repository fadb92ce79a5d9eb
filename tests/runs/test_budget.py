"""Disk, memory and tokens of a plan.

Broken by experts that count whole though a token takes some of them, by an embedding that counts as a product, by a
training that is counted for each of its evaluations, by a shared beginning that counts once for each sampled document,
by a plan of other settings that is taken for this one.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, OlmoeConfig

import moe_lab
from moe_lab.config.schema import Config
from moe_lab.engine import pass_size
from moe_lab.methods.base import Base
from moe_lab.methods.method import TrainingMethod
from moe_lab.models.memory import weight_bytes
from moe_lab.runs.budget import Budget
from moe_lab.tasks import requests
from tests.support.models import make_model

SHAPE: dict[str, Any] = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 2, "num_key_value_heads": 2}


def olmoe(**more: Any) -> OlmoeConfig:
    return OlmoeConfig(**(SHAPE | {"num_experts": 8, "num_experts_per_tok": 2, "dtype": "bfloat16"} | more))


class Trained(TrainingMethod):
    """A training of 1,000 tokens that two runs share."""

    def training_left(self, config: Any, facts: Any) -> dict[str, tuple[int, int]]:
        return {"folder": (10, 1000)}

    resolve_model = training_memory = open = None  # type: ignore[assignment]

    def architecture(self, config: Any) -> Any:
        return olmoe()


def run_of(method: Any, path: str | None = "owner/name") -> Any:
    facts = SimpleNamespace(path=path, name="tiny", dtype="float32")
    return SimpleNamespace(method=method, facts=facts, config=Config())


def test_weights_and_trained_models_are_counted_once():
    model = AutoModelForCausalLM.from_config(olmoe())
    total = sum(own.numel() for own in model.parameters())
    budget, run = Budget(), run_of(Trained(SimpleNamespace()))
    for _ in range(2):
        budget.add(run, trains=True)
    assert budget.weights == {"owner/name": 2 * total} and budget.trained == {"folder": 4 * total}
    weights, trained = budget.lines()
    assert "owner/name" in weights and trained.startswith("Trained models to write: 1,")
    budget = Budget()
    budget.add(run_of(Base(Base.Config(name="base")), path=None))
    assert budget.weights == {} and budget.lines() == []


@pytest.mark.slow
def test_the_memory_of_methods(tmp_path, tokenizer, monkeypatch):
    """Of methods on one model: own histories take more than shared ones, gradients more than answers, and a training
    what it says. A model that is not of a hub or a folder has no planned memory."""
    monkeypatch.setattr(pass_size, "PLANNED_TOKENS", 16)
    model = make_model("olmoe", num_hidden_layers=3)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")

    def planned(*argv: str) -> dict[str, int]:
        places = (f"model.path={tmp_path / 'model'}", f"output_dir={tmp_path / 'outputs'}")
        keys = (*places, "limit=2", "dtype=float32")
        frame = moe_lab.plan([*keys, *argv]).frame()
        return dict(zip(frame["method"], frame["gpu_memory"], strict=True))

    roe = ["method=roe", "method.n=8", "task=toy_math"]
    clean, own = planned(*roe), planned(*roe, "method.cache=standard")
    assert weight_bytes(model) < clean["base"] == own["base"] < clean["roe"] < own["roe"]
    make_model("olmoe", num_hidden_layers=3).bfloat16().save_pretrained(tmp_path / "half")
    half = [f"model.path={tmp_path / 'half'}", f"model.tokenizer={tmp_path / 'model'}", "dtype=auto"]
    assert planned(*roe, *half)["base"] < 0.75 * clean["base"]
    asked = planned("method=c3po", "method.layers=last2", "method.reference_size=12", "task=toy_choice")
    assert asked["c3po"] > asked["base"]
    sizes = ("method.dataset_size=8", "method.validation_size=2")
    trained = planned("method=finetune-freeze", "task=toy_choice", *sizes)
    assert trained["finetune-freeze"] > 3 * weight_bytes(model) > asked["base"]
    embedded = moe_lab.plan(["task=toy_choice", "limit=2", f"output_dir={tmp_path}"])
    assert embedded.frame()["gpu_memory"].isna().all()


# Tokens of large tasks

TASK = """\
task: shared
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{beginning} {{{{question}}}}"
doc_to_choice: [one, two]
doc_to_target: 0
metric_list: [{{metric: acc}}]
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    rows = [{"question": f"number {'very ' * (i % 4)}{i}"} for i in range(120)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tasks").mkdir()
    text = TASK.format(data=tmp_path / "test.jsonl", beginning="ben has 3 apples . " * 20)
    (tmp_path / "tasks" / "shared.yaml").write_text(text)
    places = [f"task.include_path={tmp_path / 'tasks'}", f"output_dir={tmp_path}"]
    return ["model=tiny", "task=lm_eval", "task.name=shared", *places]


def planned(*command: str) -> list[int]:
    return [int(tokens) for tokens in moe_lab.plan(command).frame()["tokens"]]


@pytest.mark.slow
def test_a_beginning_that_all_prompts_share_counts_once(command, monkeypatch):
    ours = planned("method=roe", "method.n=4", "seeds=1", *command)
    monkeypatch.setattr(requests, "SAMPLED", 1000)
    requests._workloads.clear()
    whole = planned("method=roe", "method.n=4", "seeds=1", *command)
    assert ours == pytest.approx(whole, rel=0.1)


def test_each_length_has_its_own_plan(command):
    cells = ["-m", "method=base", "max_length=32,256", "limit=4", *command]
    short, long = planned(*cells)
    assert [short] == planned("method=base", "max_length=32", "limit=4", *command) and short < long
