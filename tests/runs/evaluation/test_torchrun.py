"""The command `run` in several processes, as torchrun starts them. (Its own processes, which import
everything anew, are in tests/methods/finetune_freeze/test_processes.py.)

Broken by: numbers that depend on the number of processes or of parts of the model, two processes
that write, a kill that loses what was answered, a follower that waits for ever.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from moe_lab.cli.main import main
from moe_lab.config.schema import Config, ModelConfig, TuningConfig
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.models.load import load_model
from moe_lab.results.response_log import ResponseLog
from moe_lab.runs.distributed import follow
from moe_lab.runs.grid import do
from tests.support.models import save_model, small_model
from tests.support.ranks import fork_ranks

COMMAND = ["-m", "method=roe", "method.n=4", "task=toy_math,toy_choice", "limit=4", "device=cpu"]
"""Four runs: RoE and the base model on two tasks."""


def results_in(output: Path) -> dict[str, dict]:
    """{the run's folder: its results}"""
    results = {}
    for file in output.glob("runs/*/results.json"):
        results[file.parent.name] = json.loads(file.read_text())
    return results


def answer_lines(log: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line for line in lines if "key" in line]


def answers_of(log: Path) -> dict[str, Any]:
    return {line["key"]: line["response"] for line in answer_lines(log)}


def assert_equal_runs(output: Path, expected_output: Path) -> None:
    """The same answers, log-likelihoods to 1e-4, and the same scores and counts."""
    results_of = results_in(output)
    expected_of = results_in(expected_output)
    assert len(results_of) == 4
    assert results_of.keys() == expected_of.keys()
    for run, results in results_of.items():
        expected = expected_of[run]
        assert results["results"] == expected["results"]
        block = results["moe_lab"]
        expected_block = expected["moe_lab"]
        assert block["cost"]["tokens_in"] == expected_block["cost"]["tokens_in"], run
        assert block["cost"]["tokens_out"] == expected_block["cost"]["tokens_out"], run
        assert block.get("roe") == expected_block.get("roe")
        assert_equal_answers(
            answers_of(output / "runs" / run / "responses.jsonl"),
            answers_of(expected_output / "runs" / run / "responses.jsonl"),
        )


def assert_equal_answers(answers: dict[str, Any], expected_answers: dict[str, Any]) -> None:
    assert answers.keys() == expected_answers.keys()
    for key, answer in answers.items():
        expected = expected_answers[key]
        if isinstance(answer, str):
            assert answer == expected
        else:
            log_likelihood, is_greedy = answer
            assert log_likelihood == pytest.approx(expected[0], abs=1e-4)
            assert is_greedy == expected[1]


def killed_after_three_answers(arguments: list[str]) -> int:
    """The command with process 0 killed after it has stored three answers of RoE.

    The other processes have stored all of theirs.
    """
    store_answer = ResponseLog.answer
    is_first_process = os.environ["RANK"] == "0"

    def store_and_kill(log: ResponseLog, *parts: Any) -> None:
        store_answer(log, *parts)
        run_folder = log.path.parent
        if is_first_process and "-roe-" in run_folder.name and len(log) == 3:
            while not list(run_folder.glob("responses.1.jsonl")):
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)

    ResponseLog.answer = store_and_kill  # type: ignore[method-assign]
    return main(arguments)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory) -> Path:
    """The output of the command in one process."""
    output = tmp_path_factory.mktemp("one")
    assert main([*COMMAND, f"output_dir={output}"]) == 0
    return output


@pytest.mark.slow
def test_two_processes_give_the_results_of_one(one_process, tmp_path):
    two_processes = tmp_path / "two"
    log = tmp_path / "ranks.log"

    codes = fork_ranks(main, [*COMMAND, f"output_dir={two_processes}"], log=log)
    assert codes == [0, 0], log.read_text()

    assert_equal_runs(two_processes, one_process)
    assert log.read_text().count("report.html") == 1, "one process reports"
    codes = fork_ranks(main, [*COMMAND, f"output_dir={two_processes}"], log=log)
    assert codes == [0, 0], "stored results are shown"


DRAWS = """
def draws(router, routing, tokens, temperature=3.0):
    scores_TE = router.scores(routing.logits_TE) + temperature * tokens.gumbel(router)
    index_TK = router.choose(scores_TE, routing.index_TK.shape[-1])
    weights_TK = router.weights(routing.logits_TE, index_TK)
    return routing._replace(index_TK=index_TK, weights_TK=weights_TK)
"""


@pytest.mark.slow
def test_the_noise_of_a_policy_is_that_of_one_process(tmp_path):
    (tmp_path / "draws.py").write_text(DRAWS, encoding="utf-8")
    policy = f"method.policy={tmp_path}/draws.py:draws"
    command = ["method=policy", policy, "task=toy_math", "limit=6", "baseline=false", "device=cpu"]
    answers = []
    log = tmp_path / "ranks.log"
    for name in ("one", "two"):
        arguments = [*command, f"output_dir={tmp_path}/{name}"]
        if name == "one":
            assert main(arguments) == 0
        else:
            assert fork_ranks(main, arguments, log=log) == [0, 0], log.read_text()
        [responses] = (tmp_path / name).glob("runs/*/responses.jsonl")
        answers.append(answers_of(responses))
    assert len(answers[0]) == 6
    assert answers[0] == answers[1]


@pytest.mark.slow
def test_one_process_continues_what_two_have_begun(one_process, tmp_path):
    output = tmp_path / "out"
    log = tmp_path / "ranks.log"

    first_code, second_code = fork_ranks(
        killed_after_three_answers, [*COMMAND, f"output_dir={output}"], log=log
    )
    assert first_code == -signal.SIGKILL
    assert second_code != 0
    [first_log] = [
        file
        for file in output.glob("runs/*-roe-*/responses.jsonl")
        if not file.with_name("results.json").exists()
    ]
    second_log = first_log.with_name("responses.1.jsonl")
    assert len(answers_of(first_log)) == 3
    answers_before = answers_of(first_log) | answers_of(second_log)

    assert main([*COMMAND, f"output_dir={output}"]) == 0
    assert answers_before.items() <= answers_of(first_log).items()
    assert not second_log.exists()
    assert len(answer_lines(first_log)) == len(answers_of(first_log)), "no answer is asked twice"
    assert results_in(output).keys() == results_in(one_process).keys()


def config(method: str = "roe", **keys: Any) -> Config:
    return Config(method=get_method(method).Config(name=method), **keys)


def test_one_process_follows_nobody():
    assert follow([config()]) is None


def test_several_processes_make_no_model(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="without torchrun"):
        do("run", [config("pretrain-tiny")], [], [])


@pytest.fixture
def two_ranks(monkeypatch) -> None:
    """The environment of process 0 of two."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ([config(), config(tuning=TuningConfig(name="tpe"))], "no study"),
        ([config("base", metrics="expert")], "metrics=expert takes one process"),
        ([config(device="cuda:1")], "one GPU"),
        ([config(model=ModelConfig(path="some/model", device_map="auto"))], "one GPU"),
    ],
)
def test_what_processes_cannot_share_is_refused(configs, message, two_ranks):
    with pytest.raises(ConfigError, match=message):
        follow(configs)


# A model that is split over the processes


@pytest.mark.slow
@pytest.mark.parametrize("family", ["olmoe", "mixtral", "qwen3_moe", "gpt_oss"])
def test_a_split_model_gives_the_results_of_a_whole_one(family, tmp_path):
    folder = str(save_model(small_model(family), tmp_path / family))
    settings = [f"model.path={folder}", "gen_kwargs=max_gen_toks=8", "method.skip_layers=0"]
    command = [*COMMAND, *settings]
    whole = tmp_path / "whole"
    split = tmp_path / "split"
    log = tmp_path / "ranks.log"

    assert main([*command, f"output_dir={whole}"]) == 0
    split_command = [*command, "model.load.tp_plan=auto", f"output_dir={split}"]
    assert fork_ranks(main, split_command, log=log) == [0, 0], log.read_text()

    assert_equal_runs(split, whole)
    assert not list(split.glob("runs/*/responses.1.jsonl")), "process 0 alone writes"


def half_of_the_weights(folder: str, file: Path) -> None:
    """Load a split model, and write the numbers of weights of this process and of the model."""
    dist.init_process_group("gloo")
    split = {"tp_plan": "auto"}
    loaded = load_model(
        ModelConfig(path=folder, load=split), dtype="auto", device="cpu", offline=True
    )
    of_process = 0
    of_model = 0
    for parameter in loaded.model.parameters():
        of_model += parameter.numel()
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        of_process += local.numel()
    file.with_suffix(f".{dist.get_rank()}").write_text(f"{of_process} {of_model}")
    dist.destroy_process_group()


@pytest.mark.slow
def test_a_split_model_is_half_in_each_process(tmp_path):
    model = small_model("mixtral")
    folder = str(save_model(model, tmp_path / "model"))
    file = tmp_path / "weights"
    assert fork_ranks(half_of_the_weights, folder, file, log=tmp_path / "log") == [0, 0]
    for rank in range(2):
        of_process, of_model = map(int, file.with_suffix(f".{rank}").read_text().split())
        assert of_model == model.num_parameters()
        assert of_process < 0.6 * of_model


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"method": "finetune-freeze"}, "method=finetune-freeze needs the whole model"),
        ({"experiment": "all"}, "experiment=all needs the whole model"),
    ],
)
def test_what_needs_a_whole_model_is_refused(keys, message, two_ranks):
    split = ModelConfig(path="some/model", load={"tp_plan": "auto"})
    with pytest.raises(ConfigError, match=message):
        follow([config(**keys, model=split)])
