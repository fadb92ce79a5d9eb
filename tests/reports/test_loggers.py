"""Breaks if what is logged is missing or renamed, cannot be read with W&B's tools, needs
the network or costs a result.

Breaks if the command does not give its study, its runs and their figures to W&B.

Breaks if the command line does not take what a W&B sweep agent gives it.

Breaks if expert metrics do not reach W&B, under other names, or with another layer's values.
"""

import csv
import json
import os
import re
import socket
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import yaml

from moe_lab.config.compose import compose
from moe_lab.config.schema import Config, LoggerConfig
from moe_lab.config.validators import build
from moe_lab.errors import ConfigError
from moe_lab.metrics.stored import StoredMetrics
from moe_lab.reports import loggers, run_values
from moe_lab.reports.expert import logged_values
from moe_lab.reports.loggers import Logger, WandbLogger, open_logger
from moe_lab.results.model import RunResult
from moe_lab.results.stored_files import warn_once
from moe_lab.runs.config import to_config
from tests.support.command import run_forked
from tests.support.runs import write_jsonl
from tests.support.sources import ROOT
from tests.support.stored_results import changed, result_with, results_of


class Logged:
    """One offline run, read with the code behind `wandb leet inspect`.

    This saves the second that wandb's imports take.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.summary = json.loads(self._inspect("--summary", "--json"))
        self.records = [json.loads(line) for line in self._inspect("--json").splitlines()]
        self.history = [r["history"]["item"] for r in self.records if r["type"] == "history"]
        self.run = [record["run"] for record in self.records if record["type"] == "run"][-1]

    def _inspect(self, *flags: str) -> str:
        from wandb.util import get_core_path

        [file] = self.folder.glob("*.wandb")
        command = [get_core_path(), "leet", "inspect", "--no-observability", *flags]
        command += ["--run-file", str(file), str(self.folder.parent)]
        environment = os.environ | {"HOME": str(self.folder)}
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment
        ).stdout

    def table(self, key: str) -> dict[str, Any]:
        table_file = self.summary["summary"][key]
        path = (
            table_file["path"]
            if isinstance(table_file, dict)
            else self.summary["summary"][f"{key}.path"]
        )
        return json.loads((self.folder / "files" / path).read_text())


RESULTS = changed(
    results_of(
        run_id="abc",
        partial=True,
        untuned=True,
        c3po={"upper_bound": True},
        task={"name": "toy", "tasks": ["toy"], "metric": "acc,none"},
        samples={"toy": [3]},
        intervals={},
        baseline={"run_id": "b", "results": {"toy": {"acc,none": 0.4}}},
        paired={
            "toy": {"acc,none": {"difference": 0.1, "ci95": [-0.05, 0.25], "p_mcnemar": 0.125}}
        },
        cost={"wall_seconds": 2.0, "energy_joules": None, "device": "cpu"},
    ),
    results={
        "toy": {
            "alias": "toy",
            "acc,none": 0.5,
            "acc_stderr,none": "N/A",
            "f1,none": 0.25,
            "f1_stderr,none": 0.1,
        }
    },
)
KEY = "0123456789abcdef0123456789abcdef01234567"
CODE = """
import json, sys
import pandas
from pathlib import Path
from moe_lab.config.schema import Config, LoggerConfig
from moe_lab.config.validators import build
from moe_lab.reports.loggers import open_logger
from moe_lab.results.model import RunResult
from moe_lab.results.stored_files import warn_once
folder, results = Path(sys.argv[1]), json.loads(sys.argv[2])
wandb = LoggerConfig(name="wandb", tags=["mine"])
config = Config(logger=wandb, output_dir=str(folder / "out"), seed=5)
with open_logger(config, kind="study", name="study-1", group=None) as logger:
    logger.log_trial(0, 2.5, [0.0, 0.0, 0.0], "COMPLETE")
    logger.log_trial(1, None, [0.0, 0.25, 0.0], "PRUNED")
    logger.log_study(folder)
    logger.log_figure(folder / "heatmap.png")
    logger.log_figure(folder / "heatmap.csv")
(folder / "study").mkdir()
shared = {"kind": "study", "group": None, "folder": folder / "study"}
for name in ("begun", "resumed"):
    with open_logger(config, name="study-2", **shared) as logger:
        logger.log_trial(0, 2.5, [0.0], name)
        with open_logger(config, name="study-2", **shared) as other:
            other.log_trial(1, 2.0, [0.1], "shared")
run = {"kind": "run", "group": "figure3", "folder": folder / "run"}
for _ in range(2):
    with open_logger(config, name="run-1", **run) as logger:
        if not logger.logged:
            logger.begin()
            logger.log_results(RunResult(results, folder))
            columns = {"seed": pandas.array([1, None], "Int64"), "p": [0.5, None]}
            logger.log_table("scores", pandas.DataFrame(columns))
try:
    with open_logger(config, name="run-2", **run) as logger:
        logger.begin()
        raise MemoryError
except MemoryError:
    pass
"""


PNG = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg=="
)
"""One white pixel."""


def study_folder(folder: Path) -> Path:
    (folder / "run").mkdir()
    (folder / "study.json").write_text(
        json.dumps({"study_id": "s", "task": "toy", "moe_layers": 3})
    )
    best = "score: 2.25\nuntuned_score: 2.5\ntrial: 1\ntrials: 2\ntemperature: [0.0, 0.25, 0.0]\n"
    (folder / "best.yaml").write_text(best)
    trials = "number,value,params_layer_1,state\n0,2.5,0.0,COMPLETE\n1,,0.25,PRUNED\n"
    (folder / "trials.csv").write_text(trials)
    (folder / "heatmap.csv").write_text("layer,toy\n0,0.0\n1,0.25\n2,0.0\n")
    (folder / "heatmap.png").write_bytes(PNG)
    line = {
        "doc_id": 3,
        "filter": "none",
        "arguments": {"gen_args_0": {"arg_0": "Q", "arg_1": {"until": []}}},
        "target": "2",
    }
    line |= {"resps": [["two"]], "filtered_resps": ["2"], "metrics": ["acc"], "acc": 1.0}
    (folder / "samples_toy.jsonl").write_text(json.dumps(line) + "\n")
    return folder


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Logged], str, Path]:
    """The offline study and run by name, the text on stderr, and the output
    folder; no server was called."""
    folder = study_folder(tmp_path_factory.mktemp("wandb"))
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.settimeout(0.1)
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
            "WANDB_MODE": "offline",
            "WANDB_API_KEY": KEY,
            "WANDB_BASE_URL": f"http://127.0.0.1:{server.getsockname()[1]}",
        }
        ended = subprocess.run(
            [sys.executable, "-c", CODE, str(folder), json.dumps(RESULTS.content)],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
            cwd=folder,
        )
        with pytest.raises(TimeoutError):
            server.accept()
    runs = [Logged(path) for path in (folder / "out" / "wandb").glob("offline-run-*")]
    return {logged_run.summary["name"]: logged_run for logged_run in runs}, ended.stderr, folder


@pytest.mark.slow
def test_trials_and_the_heatmap_can_be_read_back(logged):
    study = logged[0]["study-1"]
    trials = [item for item in study.history if "trial" in item]
    assert [item["trial"] for item in trials] == [0, 1]
    assert trials[0]["value"] == 2.5
    assert "value" not in trials[1]
    assert trials[1]["state"] == "PRUNED"
    assert [trials[1][f"temperature/layer_{layer}"] for layer in range(3)] == [0.0, 0.25, 0.0]
    table = study.table("trials")
    assert table["columns"] == ["number", "value", "params_layer_1", "state"]
    assert len(table["data"]) == 2
    assert study.summary["summary"]["best/score"] == 2.25
    assert study.run["job_type"] == "study"
    artifacts = [
        record["artifact"]["type"] for record in study.records if record["type"] == "artifact"
    ]
    assert artifacts.count("profile") == 1
    images = list((study.folder / "files" / "media" / "images" / "figures").glob("heatmap*.png"))
    assert [image.read_bytes() for image in images] == [PNG]
    assert study.table("tables/heatmap")["data"] == [[0, 0.0], [1, 0.25], [2, 0.0]]


@pytest.mark.slow
def test_results_samples_and_configuration_can_be_read_back(logged):
    run = logged[0]["run-1"]
    assert run.summary["summary"]["toy/acc,none"] == 0.5
    assert run.summary["summary"]["score"] == 0.5
    assert run.summary["config"]["seed"] == 5
    assert run.summary["config"]["run_id"] == "abc"
    assert run.table("samples/toy")["data"] == [["toy", 3, "Q", "two", "2", 1.0, "acc,none"]]
    assert {"mine", "partial", "untuned", "upper-bound"} <= set(run.run["tags"])
    assert run.summary["state"] == "finished"
    scores = run.table("tables/scores")
    assert (scores["columns"], scores["data"]) == (["seed", "p"], [[1, 0.5], [None, None]])
    assert logged[0]["study-1"].summary["config"]["study"]["moe_layers"] == 3


@pytest.mark.slow
def test_a_run_is_logged_once_under_an_id_of_its_own(logged):
    runs, _, folder = logged
    assert runs["run-1"].run["run_id"] == "run-1"
    assert runs["study-1"].run["run_id"] == "study-1"
    record = {"entity": None, "project": "moe_lab", "id": "run-1"}
    assert json.loads((folder / "run" / "wandb.json").read_text()) == record
    assert len(list((folder / "out" / "wandb").glob("offline-run-*-run-1"))) == 1


@pytest.mark.slow
def test_a_resumed_study_continues_its_run_and_a_process_that_shares_it_has_its_own(logged):
    """Broken by an id for each session of a study, and by two processes writing one W&B run."""
    folder = logged[2] / "out" / "wandb"
    sessions = [Logged(path) for path in folder.glob("offline-run-*")]
    states: dict[str, list[str]] = {}
    for session in sessions:
        if session.summary["name"] == "study-2":
            states.setdefault(session.run["run_id"], []).extend(
                item["state"] for item in session.history
            )
    assert sorted(states.pop("study-2")) == ["begun", "resumed"]
    assert list(states.values()) == [["shared"], ["shared"]]


@pytest.mark.slow
def test_a_difference_is_logged_with_its_p_and_its_interval(logged):
    summary = logged[0]["run-1"].summary["summary"]
    values = [summary[name] for name in ("difference", "p", "difference_low", "difference_high")]
    assert values == [0.1, 0.125, -0.05, 0.25]


@pytest.mark.slow
def test_a_run_that_fails_is_a_failed_run(logged):
    failed = logged[0]["run-2"]
    assert failed.summary["state"] == "failed"
    assert failed.run["run_group"] == "figure3"
    assert "score" not in failed.summary["summary"]


@pytest.mark.slow
def test_files_stay_in_the_output_folder_hold_no_key_and_one_line_says_how_to_upload(logged):
    _, printed, folder = logged
    upload = f"wandb sync {folder}/out/wandb/offline-run-*"
    assert printed.splitlines() == [f"W&B: logged offline. To upload: {upload}"]
    before = {
        "study.json",
        "best.yaml",
        "trials.csv",
        "heatmap.csv",
        "heatmap.png",
        "samples_toy.jsonl",
    }
    assert {path.name for path in folder.iterdir()} == before | {"out", "run", "study"}
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_ERROR_REPORTING", "WANDB_SILENT"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "")
    monkeypatch.setattr(WandbLogger, "unreached", "")
    warn_once.cache_clear()
    return Config(logger=LoggerConfig(name="wandb"), output_dir=str(tmp_path))


class Broken:
    """A W&B run whose every use fails."""

    url = "https://example.org"

    def __getattr__(self, name: str) -> Any:
        raise OSError(28, f"No space left on device ({KEY})")


@pytest.mark.parametrize("breaks", ["init", "use"])
def test_a_failing_logger_costs_nothing_and_is_told_once(breaks, config, monkeypatch, capsys):
    def init(self: Any, mode: str, folder: Path) -> Any:
        if breaks == "init":
            raise OSError(28, f"No space left on device ({KEY})")
        return Broken()

    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setattr(loggers, "has_key", lambda: False)
    monkeypatch.setattr(WandbLogger, "_init", init)
    for name in ("first", "second"):
        with open_logger(config, kind="run", name=name, group=None) as logger:
            logger.log_trial(0, 1.0, [0.0], "COMPLETE")
            logger.log_results(RunResult(RESULTS.content, Path("/nowhere")))
            logger.log_study(Path("/nowhere"))
            logger.log_figure(Path("/nowhere/x.png"))
    message = capsys.readouterr().err
    assert message.count("logs no further") == 1
    assert "Results are not affected" in message
    assert KEY not in message


def test_what_fails_inside_still_fails(config):
    """And without a value, no W&B run was begun."""
    with (
        pytest.raises(ValueError, match="of the run"),
        open_logger(config, kind="run", name="x", group=None) as logger,
    ):
        assert isinstance(logger, WandbLogger)
        raise ValueError("of the run")
    assert not list(Path(config.output_dir).glob("wandb/*run*"))


def test_a_server_that_is_not_reached_means_offline(config, monkeypatch, capsys):
    modes: list[str] = []

    def init(self: Any, mode: str, folder: Path) -> Any:
        modes.append(mode)
        if mode == "online":
            raise ConnectionError("no route to host")
        return Broken()

    monkeypatch.setattr(loggers, "has_key", lambda: True)
    monkeypatch.setattr(WandbLogger, "_init", init)
    for name in ("first", "second"):
        with open_logger(config, kind="run", name=name, group=None) as logger:
            logger.log_trial(0, 1.0, [0.0], "COMPLETE")
    assert modes == ["online", "offline", "offline"], (
        "the second does not wait for the server again"
    )
    message = "logged offline (ConnectionError: no route to host). To upload: wandb sync"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "setting", ["logger.mode=disabled", "WANDB_MODE=disabled", "WANDB_DISABLED=true"]
)
def test_disabled_is_no_logger(setting, config, monkeypatch):
    name, value = setting.split("=")
    if name == "logger.mode":
        config.logger.mode = value
    else:
        monkeypatch.setenv(name, value)
    with open_logger(config, kind="run", name="x", group=None) as logger:
        assert type(logger) is Logger


def test_the_variables_of_wandb_are_obeyed(config, tmp_path, monkeypatch):
    begun: list[tuple[WandbLogger, Path]] = []

    def init(self: WandbLogger, mode: str, folder: Path) -> Any:
        begun.append((self, folder))
        return Broken()

    monkeypatch.setattr(loggers, "has_key", lambda: True)
    monkeypatch.setattr(WandbLogger, "_init", init)
    for name, value in {"DIR": "else/where", "RUN_ID": "agent-1", "RUN_GROUP": "mine"}.items():
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / value) if name == "DIR" else value)
    with open_logger(config, kind="run", name="x", group="ours") as logger:
        logger.begin()
    [(ours, folder)] = begun
    assert (ours._id, ours._group, folder) == ("agent-1", "mine", tmp_path / "else" / "where")


def test_impossible_loggers_are_refused():
    with pytest.raises(
        ConfigError, match=r"logger\.mode=ofline is unknown.*Did you mean 'offline'"
    ):
        build(LoggerConfig, {"name": "wandb", "mode": "ofline"}, "logger.")


def test_scores_have_the_harness_s_names_and_one_headline():
    assert run_values.scores(RESULTS) == {
        "toy/acc,none": 0.5,
        "toy/f1,none": 0.25,
        "toy/f1_stderr,none": 0.1,
        "score": 0.5,
        "difference": 0.1,
        "p": 0.125,
        "difference_low": -0.05,
        "difference_high": 0.25,
        "baseline/toy/acc,none": 0.4,
        "cost/wall_seconds": 2.0,
    }


def test_the_score_of_a_group_is_its_own():
    block = RESULTS["moe_lab"] | {"task": {"name": "all", "tasks": ["toy"], "metric": "acc,none"}}
    groups = {"groups": {"all": {}}, "group_subtasks": {"all": ["toy"], "toy": []}}
    results = RunResult(
        {"results": RESULTS["results"] | {"all": {"acc,none": 0.75}}, "moe_lab": block, **groups}
    )
    assert run_values.scores(results)["score"] == 0.75
    assert "difference" not in run_values.scores(results), "it was compared task by task"


def test_temperatures_are_named_in_the_order_of_layers():
    names = list(run_values.by_layer([0.0] * 11))
    assert names == sorted(names)
    assert names[-1] == "temperature/layer_10"


@pytest.mark.parametrize("method", ["pretrain", "finetune-freeze"])
def test_a_trained_model_has_its_lines(method, tmp_path):
    lines = [{"step": 2, "loss": 3.5, "z_loss": [4.0, 5.0]}, {"step": 4, "validation_loss": 3.25}]
    write_jsonl(tmp_path / "models" / "mine" / "log.jsonl", lines)
    block = {
        "method": {"name": method},
        method.replace("-", "_"): {"model": "mine", "training": {}},
    }
    first, second = run_values.training_lines(result_with({}, tmp_path / "runs" / "run", **block))
    layers = {f"training/z_loss/layer_{layer}": value for layer, value in enumerate((4.0, 5.0))}
    assert first == {"training/step": 2, "training/loss": 3.5, **layers}
    assert second == {"training/step": 4, "training/validation_loss": 3.25}


@pytest.mark.parametrize(
    "block",
    [
        {"method": {"name": "roe"}, "roe": {}},
        {"method": {"name": "pretrain"}, "pretrain": {"model": "gone", "training": {}}},
        {
            "method": {"name": "soft-prompt"},
            "soft_prompt": {"training": {"steps": 8}},
        },  # without a model
    ],
    ids=["none", "gone", "virtual tokens"],
)
def test_a_run_without_a_trained_model_has_none(block, tmp_path):
    assert run_values.training_lines(result_with({}, tmp_path / "runs" / "run", **block)) == []


@pytest.fixture(autouse=True, scope="module")
def wandb_is_imported() -> None:
    """Once for all forked commands."""
    import wandb  # noqa: F401


@pytest.mark.slow
def test_a_tuned_command_is_logged_offline(tmp_path):
    """One study with its trials, heatmap and table, a run per seed, and the table, in one group.

    They are logged once.
    """
    command = (
        "method=roe method.n=2 task=toy_choice tuning=tpe tuning.n_trials=3 "
        "tuning.num_samples=4 seeds=2 limit=4"
    )
    keys = [*command.split(), "logger=wandb", f"output_dir={tmp_path}"]
    ended = run_forked(tmp_path, *keys, WANDB_MODE="offline")
    assert ended.code == 0, ended.err
    assert ended.err.count("wandb sync") == 1
    logged = [Logged(folder) for folder in (tmp_path / "wandb").glob("offline-run-*")]
    [study] = of_type("study", logged)
    [table] = of_type("command", logged)
    runs = of_type("run", logged)
    assert len(runs) == 2
    assert {logged_run.run["run_group"] for logged_run in logged} == {table.run["run_id"]}

    scores = table.table("tables/scores")
    rows = [dict(zip(scores["columns"], row, strict=True)) for row in scores["data"]]
    assert [row["method"] for row in rows] == ["base", "roe", "roe", "roe"]
    assert [row["seed"] for row in rows] == [None, 0, 1, None]
    assert rows[-1]["p_holm"] is not None, "the mean has the test"

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
    logged_again = [Logged(folder) for folder in (tmp_path / "wandb").glob("offline-run-*")]
    assert len(of_type("study", logged_again)) == 1
    assert len(of_type("run", logged_again)) == 2
    assert len(of_type("command", logged_again)) == 2
    assert len(logged_again) == 5


def of_type(job_type: str, logged: list[Logged]) -> list[Logged]:
    return [logged_run for logged_run in logged if logged_run.run["job_type"] == job_type]


@pytest.mark.slow
def test_a_traced_run_draws_its_figures_and_logs_them(tmp_path):
    """Traces joined with the real log.

    The last step's accuracy is the run's score, and the first step's is that of the base model.
    """
    keys = (
        "method=c3po task=toy_choice limit=12 method.steps=3 method.trace=true "
        "method.learning_rate=[0.1,0.0001]"
    )
    keys += f" method.reference_size=60 logger=wandb output_dir={tmp_path}"
    ended = run_forked(tmp_path, *keys.split(), WANDB_MODE="offline")
    assert ended.code == 0, ended.err
    path = Path(ended.out.splitlines()[-1])
    results = json.loads(path.read_text())
    with (path.parent / "figures" / "steps.csv").open(newline="") as file:
        steps = [float(row["accuracy"]) for row in csv.DictReader(file)]
    assert len(steps) == 4
    assert steps[-1] == pytest.approx(results["results"]["toy_choice"]["acc,none"])
    assert steps[0] == pytest.approx(
        results["moe_lab"]["baseline"]["results"]["toy_choice"]["acc,none"]
    )
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
    actual: Any = to_config(cell)
    for name in key.split("."):
        actual = getattr(actual, name)
    assert actual == value
    assert type(actual) is type(value)


@pytest.mark.slow
def test_the_documented_sweep_composes():
    sweep = yaml.safe_load(next(re.finditer(r"```yaml\n(.*?)```", DOCS.read_text(), re.S))[1])
    fixed = [part for part in sweep["command"] if "=" in part]
    assert sweep["command"][:3] == ["python", "-m", "moe_lab"]
    assert sweep["command"][-1] == "${args_no_hyphens}"
    parameters = sweep["parameters"].items()
    values = {
        name: parameter.get("min", parameter.get("values", [None])[0])
        for name, parameter in parameters
    }
    (cell,) = compose([*fixed, *agent_arguments(values)])
    config = to_config(cell)
    assert config.logger.name == "wandb"
    assert config.method.n == 8
    assert config.method.temperature == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["base", "c2r"])
def test_expert_metrics_can_be_read_back(method, tmp_path):
    keys = f"method={method} task=toy_choice limit=3 metrics=expert logger=wandb baseline=false"
    overrides = ["method.dataset_size=8"] if method == "c2r" else []
    ended = run_forked(
        tmp_path, *keys.split(), *overrides, f"output_dir={tmp_path}", WANDB_MODE="offline"
    )
    assert ended.code == 0, ended.err
    folder = Path(ended.out.splitlines()[-1]).parent
    metrics = json.loads((folder / "expert_metrics.json").read_text())
    (run,) = (Logged(path) for path in (tmp_path / "wandb").glob("offline-run-*"))
    summary = run.summary["summary"]
    scores = logged_values(StoredMetrics(metrics))
    assert scores["expert/load_balance/all"] == metrics["load_balance"]["all"]["value"]
    assert ("expert/specialization/toy_choice/acc,none" in scores) == (method == "base")
    for key, value in scores.items():
        assert summary[key] == pytest.approx(value), key
    for name in ("expert_metrics", "selections", "coactivation"):
        assert summary[f"figures/{name}"]["_type"] == "image-file"
        assert summary[f"tables/{name}"]["_type"] == "table-file"
