"""Models that are trained on first use. Broken by: a training that is made twice, seeds that share a model, a baseline of
another seed's model, a run of the embedded model where the trained one is missing.
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

RECIPE = {"dataset_size": 40, "steps": 4, "hidden_size": 16, "layers": 1, "active_size": 16}
RECIPE |= {"sequence_length": 32, "validation_rows": 2}
KEYS = [f"++model.recipe.{key}={value}" for key, value in RECIPE.items()]
COMMAND = ["method=calibration", "model=toy-repeated", *KEYS, "task=toy_text", "limit=3", "seeds=2"]


def test_a_model_that_is_yet_to_be_trained_is_never_the_embedded_one():
    with pytest.raises(ModelError, match="is trained on first use"):
        model_source(ModelConfig(name="toy-repeated", recipe={"steps": 4}))
    with pytest.raises(ConfigError, match=r"model\.path and model\.recipe"):
        ModelConfig(path="somewhere", recipe={"steps": 4})


@pytest.mark.parametrize(
    ("typed", "says"),
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
def test_the_run_is_checked_before_its_model_is_trained(typed, says, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Training, "make", lambda *_: pytest.fail("The model is trained."))
    for mode in ("run", "plan"):
        ended = run_command(
            capsys, *typed, "model=toy-rules", "task=toy_rules", "limit=3", f"mode={mode}"
        )
        assert ended.code == 2 and says in ended.out + ended.err, ended.err
        assert not (tmp_path / "outputs").exists()


@pytest.mark.slow
def test_the_same_training_gives_the_same_bytes(tmp_path):
    """Weights and results of two interpreters, this one included, whose sets of texts have other orders."""
    overrides = [*COMMAND[1:-1], "method=base"]
    here = tmp_path / "here"
    there = tmp_path / "there"
    other_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    command = [sys.executable, "-m", "moe_lab", *overrides, f"output_dir={there}"]
    environment = os.environ | {"PYTHONHASHSEED": other_seed}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert run_forked(tmp_path, *overrides, f"output_dir={here}").code == 0

    weights = []
    results = []
    for folder in (here, there):
        [weights_file] = folder.glob("models/*/model/model.safetensors")
        [results_file] = folder.glob("runs/*/results.json")
        weights.append(weights_file.read_bytes())
        results.append(json.loads(results_file.read_text())["results"])
    assert weights[0] == weights[1]
    assert results[0] == results[1]


@pytest.mark.slow
def test_each_seed_has_a_model_of_its_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    planned = run_command(capsys, *COMMAND, "tuning=scale", "tuning.num_samples=2", "mode=plan")
    assert planned.code == 0 and "To train: 2, 8 optimizer steps" in planned.out
    assert "Trained models to write: 2, " in planned.out
    assert "what follows the trainings and the studies" in planned.out
    assert "studies" not in run_command(capsys, *COMMAND, "mode=plan").out
    assert not (tmp_path / "outputs").exists()
    ended = run_command(capsys, *COMMAND, "tuning=scale", "tuning.num_samples=2")
    assert ended.code == 0, ended.err
    models = sorted(folder.name for folder in (tmp_path / "outputs" / "models").iterdir())
    assert len(models) == 2
    blocks = [result["moe_lab"] for result in ended.results]
    used = [Path(block["model"]["path"]).parent.name for block in blocks]
    assert sorted(used) == models
    assert len({block["baseline"]["run_id"] for block in blocks}) == 2
    assert len({block["tuning"]["study"] for block in blocks}) == 2
    [file] = (tmp_path / "outputs" / "summaries").iterdir()
    summary = json.loads(file.read_text())
    assert summary["seeds"] == [0, 1] and summary["run_ids"] == [
        block["run_id"] for block in blocks
    ]

    stamps = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("training.json")}
    again = run_command(capsys, *COMMAND, "tuning=scale", "tuning.num_samples=2")
    assert again.out == ended.out
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("training.json")} == stamps
    base = run_command(capsys, *COMMAND[1:], "method=base")
    assert base.code == 0 and len(base.results) == 2, "base has a run per model, too"
    baselines = {block["baseline"]["run_id"] for block in blocks}
    assert {result["moe_lab"]["run_id"] for result in base.results} == baselines


@pytest.mark.slow
def test_rules_are_learned_asked_and_re_routed_in_one_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    c3po = ["method=c3po", "method.layers=all", "method.reference=toy_rules:max", "seeds=2"]
    c3po += ["method.reference_size=40", "method.steps=2"]
    ended = run_command(capsys, *c3po, "model=toy-rules", *KEYS, "task=toy_rules", "limit=4")
    assert ended.code == 0, ended.err
    blocks = [result["moe_lab"] for result in ended.results]
    assert len({block["model"]["path"] for block in blocks}) == 2
    for block in blocks:
        [source] = block["c3po"]["reference"]["set"]["sources"]
        assert (
            source["tasks"] == ["toy_rules:max"]
            and source["asked"] == 40
            and source["dropped"] == 0
        )
