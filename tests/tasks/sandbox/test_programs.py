"""Breaks if code is executed without permission, scored wrongly, or asked otherwise than lm-eval asks it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moe_lab.cli.doctor import command_needs
from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import TaskError
from moe_lab.methods import get_method
from moe_lab.runs.checks import check_code_execution
from moe_lab.tasks.loading import load_tasks
from moe_lab.tasks.sandbox import programs
from moe_lab.tasks.sandbox.programs import program, require_cage, score
from tests.support.documents import PROBLEMS
from tests.support.runs import write_jsonl


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in ("humaneval", "humaneval_plus"):
        write_jsonl(tmp_path / "data" / name / "test.jsonl", PROBLEMS)
    return tmp_path / "data"


def config(data: Path, name: str = "humaneval", **keys: Any) -> Config:
    allowed = keys.pop("allow", True)
    return Config(task=TaskConfig(name=name, allow_code_execution=allowed), data_dir=str(data), **keys)


def evaluate(data: Path, name: str, answer: Any) -> dict[str, Any]:
    """lm-eval's results where `answer(problem)` is what the model completes each prompt with."""
    from lm_eval.api.model import LM
    from lm_eval.evaluator import evaluate

    class Model(LM):
        def generate_until(self, requests: list[Any]) -> list[str]:
            return [answer(request.doc) for request in requests]

        def loglikelihood(self, requests: list[Any]) -> list[Any]:
            raise AssertionError("not asked")

        loglikelihood_rolling = loglikelihood

    tasks = load_tasks(config(data, name))
    results = evaluate(lm=Model(), task_dict=tasks, confirm_run_unsafe_code=True, bootstrap_iters=0)
    assert results is not None
    return dict(results)


def caged() -> bool:
    """Whether this machine can build a cage; where it cannot, that is said and nothing runs."""
    try:
        require_cage()
    except TaskError as error:
        assert "cannot be confined" in str(error)
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", ["humaneval", "humaneval_plus"])
def test_reference_solutions_pass_and_wrong_ones_do_not(data: Path, name: str) -> None:
    def half_right(problem: dict[str, Any]) -> str:
        return problem["canonical_solution"] if problem["task_id"] == "own/1" else "    return None\n"

    if not caged():
        with pytest.raises(TaskError, match="cannot be confined"):
            evaluate(data, name, lambda problem: problem["canonical_solution"])
        return
    right = evaluate(data, name, lambda problem: problem["canonical_solution"])
    assert right["results"][name]["pass@1,create_test"] == 1.0
    wrong = evaluate(data, name, half_right)
    assert wrong["results"][name]["pass@1,create_test"] == pytest.approx(1 / 3)
    outcomes = [sample["filtered_resps"][0][0] for sample in wrong["samples"][name]]
    assert outcomes == ["failed: AssertionError", "passed", "failed: TypeError"]


def test_pass_at_1_is_the_share_of_responses_that_passed() -> None:
    assert score({}, [["passed", "failed: NameError", "timed out: waiting", "passed"]]) == {"pass@1": 0.5}


def test_the_program_is_lm_evals(data: Path) -> None:
    """Its `build_predictions` and `doc_to_target`, joined by a line end as code_eval joins them."""
    problem = PROBLEMS[0]
    task: Any = load_tasks(config(data))["tasks"]["humaneval"]
    target = task.doc_to_target(problem)
    assert program(problem, "    return 1") == problem["prompt"] + "    return 1" + "\n" + target


@pytest.mark.parametrize("name", ["humaneval", "humaneval_plus"])
def test_prompt_and_stop_words_are_lm_evals(data: Path, name: str) -> None:
    import lm_eval
    from lm_eval.tasks._yaml_loader import load_yaml

    file = Path(lm_eval.__file__).parent / "tasks" / "humaneval" / f"{name}.yaml"
    theirs = load_yaml(file, resolve_func=False)
    ours: Any = load_tasks(config(data, name))["tasks"][name]
    for key in ("doc_to_text", "doc_to_target", "dataset_path", "test_split", "num_fewshot", "unsafe_code"):
        assert getattr(ours.config, key) == theirs[key], key
    assert ours.config.generation_kwargs == theirs["generation_kwargs"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["humaneval", "humaneval_plus"])
def test_lm_evals_own_module_is_not_executed(data: Path, name: str) -> None:
    """It asks the hub for a metric. Other tests import what it imports, so that an interpreter of its own must load the task."""
    code = (
        "import sys\nfrom moe_lab.config.schema import Config, TaskConfig\n"
        "from moe_lab.tasks.loading import load_tasks\n"
        f"load_tasks(Config(task=TaskConfig(name={name!r}, allow_code_execution=True), data_dir={str(data)!r}))\n"
        "print([module for module in sys.modules if 'tasks.humaneval' in module or module == 'evaluate'])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_nothing_is_executed_without_permission(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "require_cage", lambda: pytest.fail("probed"))
    refused = config(data, allow=False)
    with pytest.raises(TaskError, match=r"task\.allow_code_execution=true"):
        check_code_execution(refused, load_tasks(refused))


def test_predict_only_executes_nothing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "require_cage", lambda: pytest.fail("probed"))
    logged = config(data, allow=False, predict_only=True)
    tasks = load_tasks(logged)
    check_code_execution(logged, tasks)
    task: Any = tasks["tasks"]["humaneval"]
    task.build_all_requests()
    for instance in task.instances:
        instance.resps = ["    return 1"]
    task.apply_filters()
    assert [list(instance.filtered_resps.values()) for instance in task.instances] == [["    return 1"]] * 3


def test_a_machine_without_a_cage_is_told_before_anything_runs(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> None:
        raise TaskError("Programs that a model wrote cannot be confined on this machine")

    monkeypatch.setattr(programs, "require_cage", none)
    allowed = config(data)
    with pytest.raises(TaskError, match="cannot be confined"):
        check_code_execution(allowed, load_tasks(allowed))


def test_doctor_tells_whether_programs_can_be_executed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moe_lab.cli.doctor.code_execution", lambda: "possible, in a cage of x")
    wanted = "executing programs that the model writes: possible, in a cage of x"
    asked = replace(config(data), method=get_method("base").Config(name="base"), offline=True)
    assert wanted in command_needs([asked])
    assert wanted not in command_needs([replace(asked, predict_only=True)])
