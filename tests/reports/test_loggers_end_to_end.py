"""Breaks if the command does not give its study, its runs and their figures to W&B.

Breaks if the command line does not take what a W&B sweep agent gives it.

Breaks if expert metrics do not reach W&B, under other names, or with another layer's values.
"""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from moe_lab.config.compose import compose
from moe_lab.metrics.stored import StoredMetrics
from moe_lab.reports.expert import logged_values
from moe_lab.reports.loggers import layer_frame
from moe_lab.runs.config import to_config
from tests.support.command import run_forked
from tests.support.wandb_log import Logged


@pytest.fixture(autouse=True, scope="module")
def wandb_is_imported() -> None:
    """Once for all forked commands."""
    import wandb  # noqa: F401


@pytest.mark.slow
def test_a_tuned_command_is_logged_offline(tmp_path):
    """One study with its trials, heatmap and table, a run per seed, and the table, in one group. They are logged once."""
    command = "method=roe method.n=2 task=toy_choice tuning=tpe tuning.n_trials=3 tuning.num_samples=4 seeds=2 limit=4"
    keys = [*command.split(), "logger=wandb", f"output_dir={tmp_path}"]
    ended = run_forked(tmp_path, *keys, WANDB_MODE="offline")
    assert ended.code == 0, ended.err
    assert ended.err.count("wandb sync") == 1
    logged = [Logged(folder) for folder in (tmp_path / "wandb").glob("offline-run-*")]
    (study,) = (one for one in logged if one.run["job_type"] == "study")
    (table,) = (one for one in logged if one.run["job_type"] == "command")
    runs = [one for one in logged if one.run["job_type"] == "run"]
    assert len(runs) == 2 and {one.run["run_group"] for one in logged} == {table.run["run_id"]}
    scores = table.table("tables/scores")
    place = [scores["columns"].index(name) for name in ("method", "seed", "p_holm")]
    rows = [tuple(row[number] for number in place) for row in scores["data"]]
    assert [row[:2] for row in rows] == [("base", None), ("roe", 0), ("roe", 1), ("roe", None)]
    assert rows[-1][2] is not None, "the mean has the test"
    trials = [item for item in study.history if "trial" in item]
    assert [item["trial"] for item in trials] == [0, 1, 2]
    layers = len([key for key in trials[0] if key.startswith("temperature/")])
    assert layers == study.summary["config"]["study"]["moe_layers"]
    assert len(study.table("trials")["data"]) == 3
    assert study.table("tables/heatmap")["data"]
    assert list((study.folder / "files" / "media" / "images" / "figures").glob("heatmap*.png"))
    assert {run.summary["config"]["seed"] for run in runs} == {0, 1}
    for run in runs:
        assert run.summary["config"]["method"]["temperature"].endswith("best.yaml")
        assert run.summary["config"]["tuning"]["n_trials"] == 3
        assert f"temperature/layer_{layers - 1}" in run.summary["summary"]
        assert 0 <= run.summary["summary"]["score"] <= 1
        assert len(run.table("samples/toy_choice")["data"]) == 4
    assert run_forked(tmp_path, *keys, WANDB_MODE="offline").code == 0
    again = [Logged(folder) for folder in (tmp_path / "wandb").glob("offline-run-*")]
    assert sorted(one.run["job_type"] for one in again) == ["command", "command", "run", "run", "study"]


@pytest.mark.slow
def test_a_traced_run_draws_its_figures_and_logs_them(tmp_path):
    """Traces joined with the real log: the last step's accuracy is the run's score, the first one's is base's."""
    keys = "method=c3po task=toy_choice limit=12 method.steps=3 method.trace=true method.learning_rate=[0.1,0.0001]"
    keys += f" method.reference_size=60 logger=wandb output_dir={tmp_path}"
    ended = run_forked(tmp_path, *keys.split(), WANDB_MODE="offline")
    assert ended.code == 0, ended.err
    path = Path(ended.out.splitlines()[-1])
    results = json.loads(path.read_text())
    with (path.parent / "figures" / "steps.csv").open(newline="") as file:
        steps = [float(row["accuracy"]) for row in csv.DictReader(file)]
    assert len(steps) == 4
    assert steps[-1] == pytest.approx(results["results"]["toy_choice"]["acc,none"])
    assert steps[0] == pytest.approx(results["moe_lab"]["baseline"]["results"]["toy_choice"]["acc,none"])
    (run,) = (Logged(folder) for folder in (tmp_path / "wandb").glob("offline-run-*"))
    for name in ("steps", "activation", "sample", "retained"):
        assert list((run.folder / "files" / "media" / "images" / "figures").glob(f"{name}*.png"))
    assert len(run.table("tables/steps")["data"]) == 4


DOCS = Path(__file__).resolve().parents[2] / "docs" / "wandb.md"


def agent_arguments(parameters: dict[str, Any]) -> list[str]:
    """What `wandb agent` puts in the place of ${args_no_hyphens}."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    command = {"args": {name: {"value": value} for name, value in parameters.items()}}
    return list(create_sweep_command_args(command)["args_no_hyphens"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("method.temperature", 0.123456789),
        ("method.temperature", 1e-05),
        ("method.temperature", [0, 0.1, 0.2, 0]),
        ("method.n", 16),
        ("method.include_clean", False),
        ("method.weights", "perturbed"),
        ("seed", 3),
        ("samples", [0, 5, 9]),
        ("data_dir", "/some where/data"),
    ],
)
def test_an_agent_s_arguments_are_overrides(key, value):
    (argument,) = agent_arguments({key: value})
    (cell,) = compose([argument, "method=roe"])
    found: Any = to_config(cell)
    for name in key.split("."):
        found = getattr(found, name)
    assert found == value and type(found) is type(value)


@pytest.mark.slow
def test_the_documented_sweep_composes():
    sweep = yaml.safe_load(next(re.finditer(r"```yaml\n(.*?)```", DOCS.read_text(), re.S))[1])
    fixed = [part for part in sweep["command"] if "=" in part]
    assert sweep["command"][:3] == ["python", "-m", "moe_lab"]
    assert sweep["command"][-1] == "${args_no_hyphens}"
    values = {
        name: parameter.get("min", parameter.get("values", [None])[0])
        for name, parameter in sweep["parameters"].items()
    }
    (cell,) = compose([*fixed, *agent_arguments(values)])
    config = to_config(cell)
    assert config.logger.name == "wandb" and config.method.n == 8 and config.method.temperature == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["base", "c2r"])
def test_expert_metrics_can_be_read_back(method, tmp_path):
    keys = f"method={method} task=toy_choice limit=3 metrics=expert logger=wandb baseline=false"
    own = ["method.dataset_size=8"] if method == "c2r" else []
    ended = run_forked(tmp_path, *keys.split(), *own, f"output_dir={tmp_path}", WANDB_MODE="offline")
    assert ended.code == 0, ended.err
    folder = Path(ended.out.splitlines()[-1]).parent
    found = json.loads((folder / "expert_metrics.json").read_text())
    (run,) = (Logged(path) for path in (tmp_path / "wandb").glob("offline-run-*"))
    summary = run.summary["summary"]
    scores = logged_values(StoredMetrics(found))
    assert scores["expert/load_balance/all"] == found["load_balance"]["all"]["value"]
    assert ("expert/specialization/toy_choice/acc,none" in scores) == (method == "base")
    for key, value in scores.items():
        assert summary[key] == pytest.approx(value), key
    table = run.table("expert/layers")
    frame = layer_frame(StoredMetrics(found))
    assert table["columns"] == list(frame.columns) and len(table["data"]) == len(frame) == 2 * 2 * 8
    last = found["collaboration"]["prefill"]["layers"][7]
    assert table["data"][-1] == pytest.approx(
        ["collaboration", "prefill", 7, last["value"], *last["ci95"], last["maximum"]]
    )
