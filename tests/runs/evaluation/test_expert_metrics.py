"""`metrics=expert`: files, the same numbers however they come about, what is refused,
and the accuracy of a model without an expert.

Broken by: counts that are lost or doubled by an interruption, answers under a policy that are asked
again, metrics that change a run's id or its answers, a method that routes otherwise, entropies
in other units, a masked expert that still takes part.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from moe_lab.methods.finetune_freeze import training
from moe_lab.models.memory import ModelPool
from moe_lab.results.response_log import ResponseLog
from moe_lab.runs.execute import execute
from moe_lab.runs.prepare import prepare
from moe_lab.runs.run import Outcome
from tests.support.command import run_command
from tests.support.interventions import without_experts
from tests.support.models import make_model
from tests.support.runs import choices, config, small_data, write_jsonl
from tests.support.tiers import by_family

SPEED = ("cost", "versions")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data(tmp_path_factory.mktemp("data"))


def numbers(folder: Path) -> dict[str, Any]:
    """expert_metrics.json without what time and order change."""
    metrics = json.loads((folder / "expert_metrics.json").read_text())
    metrics["capacity"] = {which: without(block) for which, block in metrics["capacity"].items()}
    return without(metrics) | {"specialization": without(metrics["specialization"])}


def without(block: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key not in SPEED}


TASKS = [("arc_easy", {}), ("addsub", {"gen_kwargs": {"max_gen_toks": 6}})]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "keys"), TASKS)
def test_stored_and_interrupted_runs_get_the_same_metrics(
    task, keys, tiny_olmoe_dir, data, tmp_path, loads, monkeypatch
):
    pool = ModelPool()
    keys = keys | {"limit": 4}
    whole_config = config(tiny_olmoe_dir, data, tmp_path / "once", task, metrics="expert", **keys)
    once = execute(prepare(whole_config), pool)
    folder = once.path.parent
    expected = numbers(folder)
    assert expected["documents"] == 4
    assert expected["load_balance"]["decode"] is not None
    results = once.results["results"]

    # stored without metrics: what is missing is computed, nothing else
    plain = execute(prepare(config(tiny_olmoe_dir, data, tmp_path / "stored", task, **keys)), pool)
    assert plain.run.run_id == once.run.run_id
    assert plain.run.measured
    assert plain.results["results"] == results
    assert not (plain.path.parent / "expert_metrics.json").exists()
    answers = (plain.path.parent / "responses.jsonl").read_text()
    later = config(tiny_olmoe_dir, data, tmp_path / "stored", task, metrics="expert", **keys)
    later = execute(prepare(later), pool)
    assert later.results["results"] == results
    assert numbers(later.path.parent) == expected
    assert (later.path.parent / "responses.jsonl").read_text() == answers

    # interrupted: some answers stored, of one policy too
    shutil.copytree(tmp_path / "once", tmp_path / "torn")
    torn = tmp_path / "torn" / "runs" / folder.name
    for name in ("results.json", "expert_metrics.json", "expert_metrics/random_1.jsonl"):
        (torn / name).unlink()
    for name in ("responses.jsonl", "expert_metrics/capacity_most.jsonl"):
        lines = (torn / name).read_text().splitlines(keepends=True)
        (torn / name).write_text("".join(lines[: len(lines) // 2]))
    torn_run = config(tiny_olmoe_dir, data, tmp_path / "torn", task, metrics="expert", **keys)
    torn_run = execute(prepare(torn_run), pool)
    assert torn_run.results["results"] == results
    assert numbers(torn) == expected
    cost = json.loads((torn / "expert_metrics.json").read_text())["cost"]
    assert 0 < cost["asked_again"] < len(answers.splitlines())

    loads.clear()
    assert execute(prepare(whole_config), ModelPool()).stored
    assert loads == []

    # all answers stored, those under policies too: none is asked for again
    (folder / "expert_metrics.json").unlink()
    monkeypatch.setattr(
        ResponseLog, "answer", lambda self, *args: pytest.fail(f"asked: {self.path}")
    )
    execute(prepare(whole_config), pool)
    assert (folder / "expert_metrics.json").exists()


@pytest.mark.slow
def test_the_command_writes_files_that_agree_with_each_other(tiny_olmoe_dir, tmp_path, capsys):
    overrides = [
        "method=base",
        "metrics=expert",
        f"model.path={tiny_olmoe_dir}",
        "task=toy_choice",
        "limit=5",
    ]
    ended = run_command(capsys, *overrides, f"output_dir={tmp_path}")
    assert ended.code == 0, ended.err
    folder = ended.folders[-1]
    metrics = json.loads((folder / "expert_metrics.json").read_text())
    for text in ("Load Balance", "Collaboration", "Capacity", "Specialization"):
        assert text in ended.out
    counts = load_file(folder / "expert_metrics" / "counts.safetensors")
    for phase in ("prefill", "decode"):
        selections = counts[f"selections.{phase}"]
        pairs = counts[f"pairs.{phase}"]
        assert (
            selections.sum(axis=-1) == metrics["tokens"][phase] * np.array(metrics["top_k"])
        ).all()
        assert (pairs == pairs.swapaxes(-1, -2)).all()
        assert (np.diagonal(pairs, axis1=-2, axis2=-1) == 0).all()
    together = sum(counts[f"selections.{phase}"] for phase in ("prefill", "decode"))
    share = together / together.sum(axis=-1, keepdims=True)
    bits = -(share * np.log2(np.where(share > 0, share, 1))).sum(axis=-1)
    assert metrics["load_balance"]["all"]["counted"] == pytest.approx(bits.mean())
    assert metrics["capacity"]["least"]["masked"] == together.argmin(axis=-1).tolist()
    assert metrics["capacity"]["most"]["masked"] == together.argmax(axis=-1).tolist()
    loss = metrics["capacity"]["most"]["tasks"]["toy_choice"]["acc,none"]
    assert loss["difference"] == pytest.approx(loss["base"] - loss["changed"])
    scores = json.loads((folder / "results.json").read_text())["results"]["toy_choice"]
    assert loss["base"] == scores["acc,none"]
    assert "To run: 0" in run_command(capsys, *overrides, f"output_dir={tmp_path}", "mode=plan").out
    (folder / "expert_metrics.json").unlink()
    plan = run_command(capsys, *overrides, f"output_dir={tmp_path}", "mode=plan").out
    assert "metrics missing" in plan
    assert "To run: 1" in plan
    assert run_command(capsys, *overrides, f"output_dir={tmp_path}").out == ended.out
    reported = run_command(capsys, *overrides, f"output_dir={tmp_path}", "mode=report")
    assert reported.out == ended.out


@pytest.mark.slow
def test_several_tasks_have_their_documents_together_too(tiny_olmoe_dir, data, tmp_path):
    from moe_lab.config.schema import TaskConfig

    both_tasks = TaskConfig(name=["addsub", "svamp"])
    shutil.copytree(data / "addsub", data / "svamp", dirs_exist_ok=True)
    keys = {
        "task_config": both_tasks,
        "metrics": "expert",
        "limit": 3,
        "gen_kwargs": {"max_gen_toks": 3},
    }
    both_config = config(tiny_olmoe_dir, data, tmp_path, **keys)
    run = execute(prepare(both_config), ModelPool()).run
    tasks = numbers(run.folder)["specialization"]["tasks"]
    counts = {name: score["exact_match,numeric"]["n"] for name, score in tasks.items()}
    assert counts == {"addsub": 3, "svamp": 3, "all": 6}


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (
            ["method=roe"],
            "method=base, c2r, calibration, finetune-freeze, policy, pretrain, steer.",
        ),
        (["method=icl", "task=toy_choice"], "method=icl"),
        (["method=base", "predict_only=true"], "predict_only"),
        (["method=base", "model.experts_per_token=16"], "all of its 16"),
        (["method=base", "metrics=experts"], "expert"),
        (
            ["method=base", "task=toy_safety"],
            "compares accuracies, and answers of this task are judged",
        ),
    ],
)
def test_what_has_no_expert_metrics_is_refused_before_weights_load(
    overrides, named, tmp_path, capsys, loads
):
    ended = run_command(capsys, "metrics=expert", *overrides, f"output_dir={tmp_path / 'out'}")
    assert ended.code == 2
    assert named in ended.err
    assert loads == []
    assert not (tmp_path / "out").exists()


TRAINED = ["method=finetune-freeze", "task=toy_choice", "limit=4"]
TRAINED += ["method.max_steps=2", "method.dataset_size=8"]
TRAINED += ["method.compare_with_full=false", "method.validation_size=2"]


def load_balance_of(metrics: dict[str, Any]) -> float:
    return metrics["load_balance"]["all"]["value"]


def largest_loss_of(metrics: dict[str, Any]) -> float:
    """The accuracy that is lost without the most important expert."""
    return metrics["capacity"]["most"]["tasks"]["toy_choice"]["acc,none"]["difference"]


@pytest.mark.slow
def test_a_fine_tuned_model_has_metrics_of_its_own(tmp_path, capsys, monkeypatch):
    keys = [*TRAINED, "method.learning_rate=0.02", f"output_dir={tmp_path}"]
    assert run_command(capsys, *keys).code == 0
    [base] = tmp_path.glob("runs/*-base-*")
    assert not (base / "expert_metrics.json").exists()
    ended = run_command(capsys, *keys, "metrics=expert")  # both are stored without metrics
    assert ended.code == 0, ended.err
    folder = ended.folders[-1]
    after = json.loads((folder / "expert_metrics.json").read_text())
    before = json.loads((base / "expert_metrics.json").read_text())
    assert after["cost"]["asked_again"] > 0
    assert before["cost"]["asked_again"] > 0
    assert load_balance_of(after) != load_balance_of(before)
    assert after["baseline"]["run_id"] == before["run_id"]
    assert "baseline" not in before
    for metric in ("load_balance", "collaboration", "capacity", "specialization"):
        assert after["baseline"][metric] == before[metric]
    assert before["differences"] == {}
    differences = after["differences"]["baseline"]
    assert differences["load_balance/all"]["difference"] == pytest.approx(
        load_balance_of(after) - load_balance_of(before), abs=1e-9
    )
    assert differences["capacity/most/tasks/toy_choice/acc,none"]["difference"] == pytest.approx(
        largest_loss_of(after) - largest_loss_of(before), abs=1e-9
    )
    balance_lines = [line.split()[0] for line in ended.out.splitlines() if "Load Balance," in line]
    assert [name == "base" for name in balance_lines] == [True, True, False, False], (
        "before, then after"
    )

    # the same numbers as those of the trained folder by itself
    block = json.loads((folder / "results.json").read_text())["moe_lab"]
    model = tmp_path / "models" / block["finetune_freeze"]["model"] / "model"
    keys_alone = ["method=base", "metrics=expert", f"model.path={model}", *TRAINED[1:3]]
    ended_alone = run_command(capsys, *keys_alone, f"output_dir={tmp_path / 'alone'}")
    own_metrics = numbers(ended_alone.folders[-1])
    tuned_metrics = numbers(folder)
    for key in ("load_balance", "collaboration", "capacity", "specialization", "tokens"):
        assert tuned_metrics[key] == own_metrics[key]

    # whichever of the two is missing is made; nothing is trained or evaluated otherwise
    monkeypatch.setattr(training, "finetune", None)
    of_base = numbers(base)
    (base / "expert_metrics.json").unlink()
    assert "To run: 1" in run_command(capsys, *keys, "metrics=expert", "mode=plan").out
    assert run_command(capsys, *keys, "metrics=expert").out == ended.out
    assert numbers(folder) == tuned_metrics
    assert numbers(base) == of_base


# A model without an expert


def run(model: Any, tokenizer: Any, folder: Path, **keys: Any) -> Outcome:
    place = folder / f"model-{len(list(folder.glob('model-*')))}"
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return execute(prepare(config(place, folder / "data", folder / "out", **keys)), ModelPool())


@pytest.mark.slow
@pytest.mark.parametrize("family", by_family(["olmoe", "mixtral", "qwen3_moe"]))
def test_capacity_is_what_a_model_without_that_expert_loses(family, tokenizer, tmp_path):
    model = make_model(family)
    write_jsonl(tmp_path / "data" / "arc_easy" / "test.jsonl", choices(10))
    folder = run(model, tokenizer, tmp_path, metrics="expert").path.parent
    metrics = json.loads((folder / "expert_metrics.json").read_text())
    for capacity in metrics["capacity"].values():
        loss = capacity["tasks"]["arc_easy"]["acc,none"]
        models = (model, without_experts(model, family, capacity["masked"]))
        scores = [
            run(edited_model, tokenizer, tmp_path).results["results"]["arc_easy"]
            for edited_model in models
        ]
        base, edited = (edited_model["acc,none"] for edited_model in scores)
        assert (loss["base"], loss["changed"]) == (base, edited)
        assert loss["difference"] == pytest.approx(base - edited)
