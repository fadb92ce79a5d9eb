"""Several processes as torchrun starts them: one writes, the others follow, and what cannot work is refused.

torchrun's own processes, which import everything anew, are in tests/methods/finetune_freeze/test_processes.py.

Broken by: two processes that write, a follower that waits for ever, answers that depend on the number of processes,
a stored result that only the first process finds.
"""

import json

import pytest

from moe_lab.cli.main import main
from moe_lab.config.schema import Config, ModelConfig, TuningConfig
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.runs.distributed import follow
from moe_lab.runs.grid import do
from tests.support.command import run_command
from tests.support.models import make_tokenizer, small_model
from tests.support.ranks import fork_ranks

SPLIT = ModelConfig(path="some/model", tp_plan="auto")


def config(method="roe", **keys):
    return Config(method=get_method(method).Config(name=method), **keys)


def test_a_single_process_does_as_ever():
    assert follow([config()]) is None


@pytest.mark.parametrize(
    ("processes", "configs", "says"),
    [
        ("2", [config(), config(tuning=TuningConfig(name="tpe"))], "no study"),
        ("2", [config("base", metrics="expert")], "metrics=expert takes one process"),
        ("2", [config(device="cuda:1")], "one GPU"),
        ("2", [config(model=ModelConfig(path="some/model", device_map="auto"))], "one GPU"),
        ("1", [config(model=SPLIT)], "torchrun --nproc-per-node"),
        ("2", [config(model=SPLIT), config("base", model=SPLIT)], "one run at a time"),
        ("2", [config(model=SPLIT, seeds=2)], "one run at a time"),
        ("2", [config(model=SPLIT, tuning=TuningConfig(name="tpe"))], "one run at a time"),
        ("2", [config(model=SPLIT, experiment="roe/figure3")], "one run at a time"),
    ],
)
def test_what_processes_cannot_share_is_refused(processes, configs, says, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", processes)
    with pytest.raises(ConfigError, match=says):
        follow(configs)


@pytest.mark.parametrize(("processes", "model"), [("2", ModelConfig()), ("1", SPLIT), ("2", SPLIT)])
def test_one_process_makes_a_model(processes, model, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", processes)
    with pytest.raises(ConfigError, match="without torchrun"):
        do("run", [config("pretrain-tiny", model=model)], [], [])


def answers(output):
    """Run folder -> its answers by request, in any order."""
    found = {}
    for log in output.glob("runs/*/responses.jsonl"):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        found[log.parent.name] = {line["key"]: line["response"] for line in lines if "key" in line}
    return found


@pytest.mark.slow
def test_the_command_over_two_processes(tmp_path, capsys):
    model = tmp_path / "olmoe"
    small_model("olmoe").save_pretrained(model)
    make_tokenizer().save_pretrained(model)
    arguments = ["method=roe", "method.n=3", f"model.path={model}", "task=toy_math", "limit=3", "device=cpu"]
    arguments += ["gen_kwargs=max_gen_toks=6", "dtype=float32"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert run_command(capsys, *arguments, f"output_dir={one}").code == 0
    split = [*arguments, "model.tp_plan=auto", f"output_dir={two}"]
    log = tmp_path / "ranks.log"
    assert fork_ranks(main, split, log=log) == [0, 0], log.read_text()
    assert log.read_text().count("results.json") == 1, "one process reports"
    assert answers(two) == answers(one) and len(answers(two)) == 2

    (results,) = two.glob("runs/*-roe-*/results.json")
    responses = results.with_name("responses.jsonl")
    responses.write_text("".join(responses.read_text().splitlines(keepends=True)[:3]))
    results.unlink()
    assert fork_ranks(main, split, log=log) == [0, 0], "only one process knows how far it was"
    assert answers(two) == answers(one)
    assert fork_ranks(main, split, log=log) == [0, 0], "a stored result is shown, and the follower ends"
