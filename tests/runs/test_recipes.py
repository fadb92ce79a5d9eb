"""Models that are trained on first use.

Broken by: a training that is made twice, seeds that share a model, a baseline of another seed's
model, a run of the embedded model where the trained one is missing.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from moe_lab.config.schema import ModelConfig
from moe_lab.errors import ConfigError, ModelError
from moe_lab.models.source import model_source
from moe_lab.runs.jobs import Training
from tests.support.command import run_command, run_forked

SMALL_RECIPE = [
    "++model.recipe.dataset_size=40",
    "++model.recipe.steps=4",
    "++model.recipe.hidden_size=16",
    "++model.recipe.layers=1",
    "++model.recipe.active_size=16",
    "++model.recipe.sequence_length=32",
    "++model.recipe.validation_rows=2",
]
MODEL_AND_TASK = ["model=toy-repeated", *SMALL_RECIPE, "task=toy_text", "limit=3"]


def test_a_model_that_is_yet_to_be_trained_is_never_the_embedded_one():
    with pytest.raises(ModelError, match="is trained on first use"):
        model_source(ModelConfig(name="toy-repeated", recipe={"steps": 4}))
    with pytest.raises(ConfigError, match=r"model\.path and model\.recipe"):
        ModelConfig(path="somewhere", recipe={"steps": 4})


@pytest.mark.parametrize("mode", ["run", "plan"])
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["method=c3po"], "method.layers=last5: the model has 3 MoE layers"),
        (["-m", "method=base,c3po"], "method.layers=last5: the model has 3 MoE layers"),
        (["method=c3po", "method.layers=all", "method.reference=toy_text"], "toy_text"),
        (["method=roe", "method.temperature=[0,1]"], "one for each of 3 MoE layers"),
        (["method=roe", "method.skip_layers=2", "tuning=tpe"], "leaves none of the 3 MoE layers"),
        (["method=base", "task.metric=accuracyy"], "accuracyy"),
        (["method=base", "+model.recipe.stepz=4"], "Did you mean 'model.recipe.steps'"),
        (["method=base", "model.recipe.steps=many"], "model.recipe.steps"),
        (["method=pretrain"], "is trained on first use"),
    ],
)
def test_the_run_is_checked_before_its_model_is_trained(
    overrides, message, mode, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Training, "make", lambda *_: pytest.fail("The model is trained."))
    command = [*overrides, "model=toy-rules", "task=toy_rules", "limit=3", f"mode={mode}"]
    ended = run_command(capsys, *command)
    assert ended.code == 2, ended.err
    assert message in ended.out + ended.err
    assert not (tmp_path / "outputs").exists()


def weights_and_results(output: Path) -> tuple[bytes, dict]:
    [weights] = output.glob("models/*/model/model.safetensors")
    [results] = output.glob("runs/*/results.json")
    return weights.read_bytes(), json.loads(results.read_text())["results"]


@pytest.mark.slow
def test_the_same_training_gives_the_same_bytes(tmp_path):
    """Weights and results of two interpreters, this one included, which order
    sets of texts differently."""
    own_folder = tmp_path / "own"
    other_folder = tmp_path / "other"
    command = [*MODEL_AND_TASK, "method=base"]
    other_hashes = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"

    subprocess.run(
        [sys.executable, "-m", "moe_lab", *command, f"output_dir={other_folder}"],
        env=os.environ | {"PYTHONHASHSEED": other_hashes},
        check=True,
        capture_output=True,
    )
    ended = run_forked(tmp_path, *command, f"output_dir={own_folder}")

    assert ended.code == 0, ended.err
    own_weights, own_results = weights_and_results(own_folder)
    other_weights, other_results = weights_and_results(other_folder)
    assert own_weights == other_weights
    assert own_results == other_results


TWO_SEEDS = ["method=calibration", *MODEL_AND_TASK, "seeds=2"]
TUNING = ["tuning=scale", "tuning.num_samples=2"]


def test_a_plan_counts_the_trainings_of_all_seeds(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    planned = run_command(capsys, *TWO_SEEDS, *TUNING, "mode=plan")
    assert planned.code == 0, planned.err
    assert "To train: 2, 8 optimizer steps" in planned.out
    assert "Trained models to write: 2, " in planned.out
    assert "what follows the trainings and the studies" in planned.out

    planned_without_study = run_command(capsys, *TWO_SEEDS, "mode=plan")
    assert "studies" not in planned_without_study.out
    assert not (tmp_path / "outputs").exists()


def training_times(folder: Path) -> dict[Path, int]:
    """When each training was written."""
    return {file: file.stat().st_mtime_ns for file in folder.rglob("training.json")}


@pytest.mark.slow
def test_each_seed_has_a_model_of_its_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = run_command(capsys, *TWO_SEEDS, *TUNING)
    assert ended.code == 0, ended.err
    models = sorted(folder.name for folder in (tmp_path / "outputs" / "models").iterdir())
    assert len(models) == 2

    blocks = [result["moe_lab"] for result in ended.results]
    used_models = sorted(Path(block["model"]["path"]).parent.name for block in blocks)
    baselines = {block["baseline"]["run_id"] for block in blocks}
    studies = {block["tuning"]["study"] for block in blocks}
    assert used_models == models
    assert len(baselines) == 2
    assert len(studies) == 2

    [file] = (tmp_path / "outputs" / "summaries").iterdir()
    summary = json.loads(file.read_text())
    assert summary["seeds"] == [0, 1]
    assert summary["run_ids"] == [block["run_id"] for block in blocks]

    trained = training_times(tmp_path)
    second_run = run_command(capsys, *TWO_SEEDS, *TUNING)
    assert second_run.out == ended.out
    assert training_times(tmp_path) == trained

    base = run_command(capsys, *MODEL_AND_TASK, "seeds=2", "method=base")
    assert base.code == 0, base.err
    base_runs = [result["moe_lab"]["run_id"] for result in base.results]
    assert len(base_runs) == 2, "base has a run per model, too"
    assert set(base_runs) == baselines


@pytest.mark.slow
def test_rules_are_learned_asked_and_re_routed_in_one_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ended = run_command(
        capsys,
        "method=c3po",
        "method.layers=all",
        "method.reference=toy_rules:max",
        "method.reference_size=40",
        "method.steps=2",
        "seeds=2",
        "model=toy-rules",
        *SMALL_RECIPE,
        "task=toy_rules",
        "limit=4",
    )
    assert ended.code == 0, ended.err
    blocks = [result["moe_lab"] for result in ended.results]
    assert len({block["model"]["path"] for block in blocks}) == 2
    for block in blocks:
        [source] = block["c3po"]["reference"]["set"]["sources"]
        assert source["tasks"] == ["toy_rules:max"]
        assert source["asked"] == 40
        assert source["dropped"] == 0
