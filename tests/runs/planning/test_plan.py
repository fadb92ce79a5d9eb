"""The table of mode=plan, the states of runs that are not done, and the disk,
memory and tokens of a plan.

Broken by a running or interrupted run that is planned as "missing" at full cost, by experts
that count whole though a token takes some of them, by an embedding that counts as a product,
by a training that is counted for each of its evaluations, by a shared beginning that counts once
for each sampled document, by a plan of other settings that is taken for this one, by a tensor
that is left on the CPU, by values that the host asks for too often, and by a plan of another peak.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, OlmoeConfig

import moe_lab
from moe_lab.config.schema import Config, ModelConfig, TaskConfig
from moe_lab.engine import pass_size
from moe_lab.methods import get_method
from moe_lab.methods.base import Base
from moe_lab.methods.method import TrainingMethod
from moe_lab.methods.references.documents import reference_documents
from moe_lab.methods.references.reference_set import references_of
from moe_lab.models.memory import weight_bytes
from moe_lab.results.artifact import Artifact
from moe_lab.results.atomic import write_json
from moe_lab.results.response_log import ResponseLog
from moe_lab.runs.plan import Plan
from moe_lab.runs.planning import workload
from moe_lab.runs.planning.disk import Budget
from moe_lab.runs.planning.rows import Row
from moe_lab.runs.planning.state import run_state
from moe_lab.runs.planning.workload import workload_of
from moe_lab.runs.prepare import prepare
from moe_lab.runs.run import Run
from moe_lab.tasks import workload as tasks_workload
from tests.support.command import run_command
from tests.support.models import make_model
from tests.support.requests import generating
from tests.support.runs import config, small_data

ROOT = Path(__file__).parents[3]
CONFIG = Config(
    model=ModelConfig(name="olmoe", path="allenai/OLMoE-1B-7B-0924-Instruct"),
    method=get_method("finetune-freeze").Config(name="finetune-freeze"),
    task=TaskConfig(name="arc_challenge_answer_format"),
)
STATE = "interrupted, 1,000 of 4,687 answered"
ROW = Row(run="a1b2c3d4", config=CONFIG, examples=1_172, tokens=123_456_789, state=STATE)


def plan(rows: list[Row]) -> Plan:
    empty_plan = Plan([])
    empty_plan.rows = rows
    return empty_plan


def test_a_pipe_gets_one_line_a_row_and_a_terminal_80_columns(capsys, monkeypatch):
    plan([ROW, replace(ROW, run="00000000")]).print()
    title, *lines = capsys.readouterr().out.splitlines()
    [line] = [line for line in lines if "a1b2c3d4" in line]
    assert "weights=allenai/OLMoE-1B-7B-0924-Instruct" in title
    assert "123,456,789" in line
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    plan([ROW, ROW]).print()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "weights=allenai/OLMoE-1B-7B-0924-Instruct" in "".join(lines).replace(" ", "")


def test_the_memory_of_the_largest_run_is_said(monkeypatch):
    small = replace(ROW, gpu_memory=15 * 10**9)
    mixtral = replace(ROW.config, model=ModelConfig(name="mixtral"))
    large = replace(ROW, gpu_memory=95 * 10**9, config=mixtral)
    assert not [note for note in plan([ROW]).notes if "GPU memory" in note]
    [note_alone] = [note for note in plan([small]).notes if "GPU memory" in note]
    assert "at most 15 GB (model=olmoe method=finetune-freeze" in note_alone
    assert "takes 1 of 80 GB" in note_alone
    memory = plan([small, large]).notes[-1]
    assert "at most 95 GB (model=mixtral" in memory
    assert "takes 2 of 80 GB" in memory
    monkeypatch.setattr("moe_lab.runs.planning.memory_notes.gpu_memory", lambda: [141 * 10**9])
    assert "takes 1 of 141 GB" in plan([small, large]).notes[-1]


def test_a_key_of_tuning_has_an_effect_if_one_run_of_a_grid_is_tuned(tmp_path, capsys):
    command = (
        f"-m method=roe model=tiny task=toy_text limit=2 output_dir={tmp_path} mode=plan".split()
    )
    planned = run_command(capsys, *command, "tuning=none,uniform", "tuning.step=2")
    assert planned.code == 0, planned.err
    assert "roe, tuning" in planned.out, planned.err
    refused = run_command(capsys, *command, "tuning=none", "seed=0,1", "tuning.num_samples=7")
    assert refused.code == 2
    assert "tuning.num_samples=7" in refused.err


def test_a_plan_without_runs_is_an_empty_frame(tmp_path):
    """Broken by types of columns that an empty frame does not have."""
    frame = moe_lab.plan(["experiment=roe/table1", f"output_dir={tmp_path}"]).frame()
    assert len(frame) == 0
    assert [*frame.columns[:2], *frame.columns[-2:]] == ["run", "model", "gpu_memory", "state"]
    assert frame["tokens"].sum() == 0


# States


ASKED = generating(2, prompt=25, new=5, prompts_each=2)
READ = 4 * (25 + 5 - 1)
"""Tokens of the base model: the last new token of an answer is not read."""


@pytest.fixture
def run(tiny_olmoe_dir: Path, tmp_path: Path) -> Run:
    data = small_data(tmp_path / "data")
    base_config: Config = config(
        tiny_olmoe_dir, data, tmp_path / "out", "arc_easy", "base", limit=2
    )
    return prepare(base_config)


def answer(run: Run, name: str, header: dict, keys: str) -> None:
    run.folder.mkdir(parents=True, exist_ok=True)
    log = ResponseLog(run.folder / name, header)
    for key in keys:
        log.answer(key, "x", {})
    log.close()


def test_what_is_not_begun_is_missing(run):
    assert run_state(run, ASKED) == ("missing", 1.0)
    assert not run.folder.exists(), "a plan leaves nothing behind"
    answer(run, "responses.jsonl", run.answers_header | {"versions": {}}, "ab")
    assert run_state(run, ASKED) == ("missing", 1.0)


def test_an_interrupted_run_says_how_far_it_came(run):
    answer(run, "responses.jsonl", run.answers_header, "abb")
    assert run_state(run, ASKED) == ("interrupted, 2 of 4 answered", 0.5)
    with run.store.held():
        pass
    assert run_state(run, ASKED)[0] == "interrupted, 2 of 4 answered", "its lock file is free"
    write_json(run.folder / "status.json", {"reason": "full"})
    assert run_state(run, ASKED) == ("failed, 2 of 4 answered", 0.5)
    with run.store.held():
        assert run_state(run, ASKED) == ("running, 2 of 4 answered", 0.5)
    rerun = replace(run, config=replace(run.config, rerun=True))
    assert run_state(rerun, ASKED) == ("missing", 1.0), "a rerun has a log of its own"
    answer(run, "responses.rerun.jsonl", run.answers_header, "abc")
    assert run_state(rerun, ASKED) == ("failed, 3 of 4 answered", 0.25)
    answer(run, "responses.rerun.jsonl", run.answers_header, "def")
    assert run_state(rerun, ASKED) == ("failed, 6 of 6 answered", 0.0), "more than estimated"
    assert os.listdir(run.folder.parent) == [run.folder.name]


@pytest.mark.parametrize(("measured", "says"), [(True, "done"), (False, "metrics missing")])
def test_a_stored_run_says_what_it_lacks(run, monkeypatch, measured, says):
    monkeypatch.setattr(Run, "done", True)
    monkeypatch.setattr(Run, "measured", measured)
    assert run_state(run, ASKED) == (says, 0.0)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, READ + 2 * 3 * (50 + 5) + 2 * 3 * 11 * 5),
        ({"k": 1, "steps": 4, "tokens": "last3"}, READ + 2 * 55 + 2 * 5 * 7),
        ({"k": 1, "steps": 4, "tokens": "first3"}, READ + 2 * 55 + 2 * 5 * (50 + 4)),
        ({"optimizer": "oracle"}, READ + 2 * 55 + 2 * 11 * 5),
        ({"optimizer": "kernel_regression"}, READ + 2 * 3 * 55 + 2 * 3 * 13 * 5),
        ({"optimizer": "mode_finding", "shifts": 3}, READ + 2 * 3 * 55 + 2 * 3 * 4 * 5),
    ],
)
def test_c3po_plans_its_answers_its_neighbours_and_their_suffixes_in_every_pass(keys, expected):
    """Broken by C3PO at the tokens of base: 2 questions of 50 tokens, answers of 5."""
    c3po = get_method("c3po")
    method = c3po(c3po.Config(name="c3po", **keys))
    assert method.forward_tokens(ASKED, None, None) == expected


def test_a_reference_set_is_counted_until_it_is_there(tmp_path, monkeypatch):
    settings = get_method("c3po").Config(name="c3po", reference_size=20)
    reference_config = Config(method=settings, output_dir=str(tmp_path), limit=2)
    reference_config.task.name = "toy_choice"
    run = prepare(reference_config)
    [(name, tokens)] = run.method.references_left(run.config, run.facts).items()
    per_question = workload_of(run).prompt
    assert 20 * per_question / 2 < tokens < 20 * per_question * 3
    documents = reference_documents(run.config, run.config.method)
    expected = references_of(run.config, run.config.method, documents, run.facts)
    assert expected.folder == tmp_path / "references" / name

    def stored(artifact: Artifact) -> dict[str, Any] | None:
        if artifact == expected:
            return {}
        return None

    monkeypatch.setattr(Artifact, "stored", stored)
    assert run.method.references_left(run.config, run.facts) == {}


# Disk, memory and tokens


CASES = ("tests/support/accelerator_cases.py", "tests/support/planned_memory_cases.py")
"""Every method on a stand-in for a GPU, and the bytes that it counts against those of plans."""


@pytest.mark.slow
def test_methods_run_on_a_device_that_is_not_the_cpu_within_their_plans():
    """In their own process: with another device autograd starts threads,
    and then a process cannot fork."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CASES]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-8000:]


SHAPE: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
}
SHAPE |= {"num_attention_heads": 2, "num_key_value_heads": 2}


def olmoe(**changes: Any) -> OlmoeConfig:
    return OlmoeConfig(
        **(SHAPE | {"num_experts": 8, "num_experts_per_tok": 2, "dtype": "bfloat16"} | changes)
    )


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


def test_weights_and_trained_models_are_counted_once(monkeypatch):
    monkeypatch.setattr(workload, "load_config", lambda model, offline: olmoe())
    model = AutoModelForCausalLM.from_config(olmoe())
    total = sum(parameter.numel() for parameter in model.parameters())
    budget = Budget()
    run = run_of(Trained(SimpleNamespace()))
    for _ in range(2):
        budget.add(run, trains=True)
    assert budget.weights == {"owner/name": 2 * total}
    assert budget.trained == {"folder": 4 * total}
    # weights and AdamW's two moments, in float32
    two_checkpoints = 2 * (4 + 4 + 4) * total
    assert budget.checkpoint == two_checkpoints
    weights, trained = budget.lines()
    assert "owner/name" in weights
    assert trained.startswith("Trained models to write: 1,")
    budget = Budget()
    budget.add(run_of(Base(Base.Config(name="base")), path=None))
    assert budget.weights == {}
    assert budget.lines() == []


@pytest.mark.slow
def test_the_memory_of_methods(tmp_path, tokenizer, monkeypatch):
    """Of methods on one model: own histories take more than shared ones, gradients
    more than answers, and a training what it says. A model that is not of a hub
    or a folder has no planned memory."""
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
    clean = planned(*roe)
    own_histories = planned(*roe, "method.cache=standard")
    assert (
        weight_bytes(model)
        < clean["base"]
        == own_histories["base"]
        < clean["roe"]
        < own_histories["roe"]
    )
    make_model("olmoe", num_hidden_layers=3).bfloat16().save_pretrained(tmp_path / "half")
    half = [
        f"model.path={tmp_path / 'half'}",
        f"model.tokenizer={tmp_path / 'model'}",
        "dtype=auto",
    ]
    assert planned(*roe, *half)["base"] < 0.75 * clean["base"]
    plan_of_memory = planned(
        "method=c3po", "method.layers=last2", "method.reference_size=12", "task=toy_choice"
    )
    assert plan_of_memory["c3po"] > plan_of_memory["base"]
    sizes = ("method.dataset_size=8", "method.validation_size=2")
    trained = planned("method=finetune-freeze", "task=toy_choice", *sizes)
    assert trained["finetune-freeze"] > 3 * weight_bytes(model) > plan_of_memory["base"]
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
    monkeypatch.setattr(tasks_workload, "SAMPLED", 1000)
    tasks_workload._workloads.clear()
    whole = planned("method=roe", "method.n=4", "seeds=1", *command)
    assert ours == pytest.approx(whole, rel=0.1)


def test_each_length_has_its_own_plan(command):
    cells = ["-m", "method=base", "max_length=32,256", "limit=4", *command]
    short, long = planned(*cells)
    assert [short] == planned("method=base", "max_length=32", "limit=4", *command)
    assert short < long
