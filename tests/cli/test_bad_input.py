"""Every wrong request ends with exit code 2, a few lines that name what to do, and no traceback.

Broken by: an error of Hydra, OmegaConf or ours that is not mapped, and a key
that slips in with a prefix.
"""

import subprocess
import sys
from dataclasses import fields

import numpy
import pytest
from transformers import set_seed

from moe_lab.config.schema import EMBEDDED_MODELS, Config
from moe_lab.models.source import EMBEDDED
from tests.support.command import FakeRuns, install, run_command

WRONG = {
    "workers without a launcher": (["launcher.workers=2"], "Add launcher=local"),
    "workers on one GPU": (["launcher=local", "device=cuda:1"], "each worker has GPUs of its own"),
    "workers that would train one model": (
        ["launcher=local", "method=pretrain-tiny"],
        "Leave launcher= out",
    ),
    "Hydra's folder of a run": (["hydra.run.dir=elsewhere"], "output_dir=<folder>"),
    "a list for an option": (["tuning=[tpe,grid]"], "A grid: -m tuning=a,b"),
    "a list of tasks": (["task=[gsm8k,piqa]"], "task=lm_eval task.name=[piqa,sciq]"),
    "a hub id as an option": (["model=someone/a-model"], "model.path=someone/a-model"),
    "a word that is no key": (["report"], "mode=report"),
    "several values": (
        ["limit=1,2"],
        "A grid: -m limit=1,2. A list, if the key takes one: limit=[1,2].",
    ),
    "several seeds": (
        ["seed=1,2"],
        "A grid: -m seed=1,2. Consecutive seeds with a summary: seeds=",
    ),
    "a key of one method of a grid": (["-m", "method=roe,scmoe", "method.n=8"], "Run them apart"),
    "an unknown key": (["metod=roe"], "Did you mean 'method'?"),
    "an unknown key of a group": (["method.temprature=0.1"], "Did you mean 'method.temperature'?"),
    "a key without its group": (["temperature=0.1"], "Did you mean 'method.temperature'?"),
    "a removed key": (["~seed"], "'seed' was removed"),
    "an unknown method": (["method=reo"], "Did you mean 'roe'?"),
    "an unknown task": (["task=gsm8"], "Did you mean 'gsm8k'?"),
    "a task of lm-eval that is no option": (["task=triviaqa"], "task=lm_eval task.name=triviaqa"),
    "an unknown scale": (["scale=large"], "Choices: tiny, small, paper"),
    "an unknown experiment": (["experiment=roe/figure33"], "Did you mean 'roe/figure3'?"),
    "text for an integer": (["seed=abc"], "seed=abc: expected an integer"),
    "a number for a switch": (["baseline=3"], "baseline=3: expected true or false"),
    "a mapping for samples": (["samples={a:1}"], "samples={'a': 1}: expected a list or null"),
    "a limit that is no number": (["limit=nan"], "limit=nan: must be a finite number"),
    "a number beyond float's": ([f"method.temperature={10**400}"], "0: must be a finite number"),
    "a key of another": (["-m", "method=base,roe", "method.n=4"], "it is a key of policy, roe"),
    "a key for base": (["method=base", "+method.n=4"], "each method is compared with it anyway"),
    "a table's other key": (
        ["experiment=roe/figure3", "method.k=4"],
        "no cell of experiment=roe/figure3 has it",
    ),
    "a table's wrong key": (["experiment=c3po/table1", "++method.kk=4"], "Did you mean 'k'?"),
    "a key without cells": (["experiment=moe_bench/table1", "method.n=4"], "has it."),
    "a method's empty key in a table": (
        ["experiment=roe/figure3", "method.n="],
        "method.n= has no value",
    ),
    "nested references": (
        ["method=icl", "method.reference=[[a]]"],
        "reference[0]=['a']: expected text",
    ),
    "phases that are no mappings": (
        ["method=finetune-freeze", "method.phases=[1]"],
        "expected a mapping",
    ),
    "no number": (
        ["gen_kwargs=temperature=nan"],
        "gen_kwargs.temperature=nan: must be a finite number",
    ),
    "a nested setting of generation": (["gen_kwargs={until:[[a]]}"], "gen_kwargs.until[0]"),
    "limit zero": (["limit=0"], "a number of documents, or a fraction"),
    "negative samples": (["samples=[-1]"], "from 0 on"),
    "a data_dir that is not there": (["data_dir=/nowhere/at/all"], "there is no such folder"),
    "an unknown device": (["device=cuda-0"], "Use auto, cpu, cuda"),
    "an unknown dtype": (["dtype=float64x"], "Choices: auto, float32"),
    "an unknown batch size": (["batch_size=big"], "positive integer or auto"),
    "a list without -m": (["method=base,roe"], "A grid: -m method=base,roe."),
    "a value that does not parse": (["limit=[1"], "--help"),
    "a value that needs quotes": (["task.name=['a b"], "Quote a value"),
    "an empty path": (["model.path="], "model.path= has no value"),
    "no key": (["=3"], "--help"),
    "an interpolation to nothing": (["seed=${nothing}"], "nothing"),
    "a missing name": (["task=lm_eval"], "task.name must be given"),
    "a config folder that is none": (["--config-dir", "/nowhere/at/all"], "not found"),
    "a flag that is none": (["--unknown"], "unrecognized arguments"),
    "a flag of lm-eval": (["--tasks", "gsm8k"], "Instead: task=gsm8k, or task=lm_eval"),
    "the model of lm-eval": (
        ["--model", "hf", "--model_args", "pretrained=x"],
        "or model.path=<hub id",
    ),
    "a key with dashes": (["--limit", "5"], "Use limit=<value>"),
    "a group with dashes": (["--model", "hf"], "Use model=<value>"),
    "a key of transformers": (["model.load_in_4bit=true"], "fused tensors"),
    "flash attention": (
        ["model.attn_implementation=flash_attention_2"],
        "flex kernels do not take",
    ),
    "an unknown hydra key": (["hydra.foo=1"], "Hydra only composes here"),
    "another launcher": (["-m", "hydra/launcher=joblib"], "launcher=local"),
    "Optuna as a sweeper": (["-m", "hydra/sweeper=optuna"], "tuning=tpe"),
    "variables of jobs": (["+hydra.job.env_set.A=b"], "Hydra only composes here"),
    "a grid of no run": (["-m", "method.n=glob(*)"], "method.n=glob(*) has no runs"),
    "a function as a method": (
        ["method=a.py:f"],
        "A function of a file: method=policy method.policy=a.py:f",
    ),
    "null as a task": (["task=null"], "--help task= lists"),
    "two equal signs": (["seed=1=2"], "seed=1=2: expected an integer"),
    "a key of a method with dashes": (["--method.n=2"], "Use method.n=<value>"),
    "gen_kwargs that are none": (["gen_kwargs='a,b'"], "gen_kwargs=key=value"),
    "a grid of modes": (["-m", "mode=run,plan"], "one mode"),
    "a grid of experiments": (["-m", "experiment=roe/figure3", "seed=1,2"], "brings its own grid"),
    "keys of a tuning without one": (["tuning.n_trials=3"], "Add tuning=tpe"),
    "a study without trials": (["tuning=tpe", "tuning.n_trials=0"], "at least 1"),
    "one wrong cell of a grid": (["-m", "method.n=4,zero"], "method.n=zero"),
}


@pytest.mark.parametrize("argv, message", WRONG.values(), ids=WRONG.keys())
def test_wrong_requests(argv, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    ran = install(monkeypatch, FakeRuns())
    ended = run_command(capsys, *argv)
    assert ended.code == 2
    assert message in ended.err
    assert "Traceback" not in ended.err
    assert len(ended.err.splitlines()) <= 12
    assert not ran.executed, "nothing may run before the whole request is checked"
    assert list(tmp_path.iterdir()) == []


def test_full_error_shows_the_traceback(capsys, monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    ended = run_command(capsys, "method=reo")
    assert ended.code == 2
    assert "Traceback" in ended.err


@pytest.mark.parametrize(
    ("line", "says"),
    [("path: [unclosed", "mine.yaml"), ("pth: somewhere", "Did you mean 'model.path'?")],
)
def test_a_wrong_yaml_of_ones_own_is_named(line, says, capsys, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text(f"# mine\nname: mine\n{line}\n")
    ended = run_command(capsys, "--config-dir", str(tmp_path), "model=mine", "mode=plan")
    assert ended.code == 2
    assert says in ended.err
    assert "Traceback" not in ended.err


MANDATORY = [
    ("model", "later", "path: ???", "model.path"),
    ("model", "later", "recipe: {steps: '???'}", "model.recipe.steps"),
    ("task", "later", "name: toy_math\nmetric: ???", "task.metric"),
    ("tuning", "later", "name: tpe\nn_trials: ???", "tuning.n_trials"),
    ("logger", "later", "name: none\nproject: ???", "logger.project"),
    ("launcher", "later", "name: none\nworkers: ???", "launcher.workers"),
    ("method", "later", "name: roe\nn: ???", "method.n"),
    ("method", "later", "defaults: [roe, _self_]\nn: ???", "method.n"),
]


@pytest.mark.parametrize(("group", "name", "text", "key"), MANDATORY)
def test_a_mandatory_value_of_an_option_must_be_given(
    group, name, text, key, capsys, monkeypatch, tmp_path
):
    ran = install(monkeypatch, FakeRuns())
    (tmp_path / group).mkdir()
    (tmp_path / group / f"{name}.yaml").write_text(f"# mine\n{text}\n")
    argv = ["--config-dir", str(tmp_path), f"{group}={name}", f"output_dir={tmp_path}"]
    for options in ([], ["limit=4"]):  # as a whole, and option by option
        ended = run_command(capsys, *argv, *options)
        assert ended.code == 2
        assert f"{key} must be given: {key}=<value>" in ended.err
        assert not ran.executed
    values = run_command(capsys, *argv, f"{key}=3", "--cfg", "job")
    assert values.code == 0
    assert "must_be_given" not in values.out


def test_a_model_without_a_path_is_an_embedded_one(capsys, monkeypatch, tmp_path):
    ran = install(monkeypatch, FakeRuns())
    monkeypatch.chdir(tmp_path)
    ended = run_command(capsys, "model=tiny", "model.name=later")
    assert ended.code == 2
    assert "model.path must be given" in ended.err
    assert not ran.executed
    for name in EMBEDDED_MODELS:
        assert (EMBEDDED / name / "config.json").is_file()
        assert run_command(capsys, f"model={name}", "method=base").code == 0


NOT_UTF_8 = {
    "an option": ("model/mine.yaml", ["model=mine"]),
    "an option of another group": ("task/mine.yaml", ["task=mine"]),
    "a word of help": ("model/mine.yaml", ["--help", "model="]),
    "an option's help": ("model/mine.yaml", ["--help", "model=mine"]),
    "a key's help": ("model/mine.yaml", ["--help", "revision"]),
    "a table": ("experiments/own/mine.yaml", ["experiment=own/mine"]),
    "a task": (
        "tasks/mine.yaml",
        ["task=lm_eval", "task.name=mine", "task.include_path={folder}/tasks"],
    ),
    "a profile": ("best.yaml", ["method.temperature={folder}/best.yaml"]),
}


@pytest.mark.parametrize("case", NOT_UTF_8)
def test_a_yaml_that_is_not_utf_8_is_refused_by_name(case, capsys, tmp_path):
    name, argv = NOT_UTF_8[case]
    file = tmp_path / "own" / name
    file.parent.mkdir(parents=True)
    file.write_bytes("# mine\ntask: mine\n# Grüße\nname: tiny\n".encode("latin-1"))
    arguments = [argument.format(folder=tmp_path / "own") for argument in argv]
    ended = run_command(
        capsys, "--config-dir", str(tmp_path / "own"), *arguments, f"output_dir={tmp_path}"
    )
    assert ended.code == 2
    assert name in ended.err
    assert "Traceback" not in ended.err
    assert "utf-8" in ended.err.lower()
    assert len(ended.err.splitlines()) <= 3
    if name.startswith("model"):
        assert "line 3 is not UTF-8" in ended.err


SEEDS = [field.name for field in fields(Config) if field.name.endswith("seed")]


@pytest.mark.parametrize("value", [2**32, 5_000_000_000, 2**63, 10**20, -1])
@pytest.mark.parametrize("key", SEEDS)
def test_a_seed_is_what_numpy_and_transformers_take(key, value, capsys, monkeypatch, tmp_path):
    ran = install(monkeypatch, FakeRuns())
    for options in (
        ["method=roe"],
        ["mode=plan"],
        ["method=finetune-freeze", "method.dataset=toy"],
    ):
        ended = run_command(capsys, f"{key}={value}", f"output_dir={tmp_path}", *options)
        assert ended.code == 2
        assert not ran.executed
        assert (
            f"{key}={value}: must be a number that is at least 0 and at most 4,294,967,295"
            in ended.err
        )


def test_the_largest_seed_is_one_and_the_last_of_several_is_below_it(capsys, monkeypatch, tmp_path):
    ran = install(monkeypatch, FakeRuns())
    monkeypatch.chdir(tmp_path)
    largest = [f"{key}={2**32 - 1}" for key in SEEDS]
    assert run_command(capsys, "method=roe", *largest).code == 0
    assert ran.executed
    ended = run_command(capsys, "method=roe", *largest, "seeds=2")
    assert ended.code == 2
    assert "seed=4294967295: 2 runs end with seed 4294967296" in ended.err
    numpy.random.seed(2**32 - 1)
    set_seed(2**32 - 1)
    with pytest.raises(ValueError, match="Seed must be between 0 and"):
        set_seed(2**32)


@pytest.mark.slow
def test_as_a_process(tmp_path):
    command = [sys.executable, "-m", "moe_lab", "method.n=abc"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("Error: method.n=abc: expected an integer.")
