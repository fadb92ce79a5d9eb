"""Breaks if a program of a model does harm or passes by ending early, if it is executed without
a sandbox that was not confirmed, scored wrongly, or asked otherwise than lm-eval asks it,
or if an instruct model's reply is misread.
"""

import os
import resource
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import indent
from typing import Any

import lm_eval
import psutil
import pytest
from lm_eval.tasks._yaml_loader import load_yaml

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import TaskError
from moe_lab.runs.checks import check_code_execution
from moe_lab.tasks.loading import load_tasks
from moe_lab.tasks.sandbox import programs
from moe_lab.tasks.sandbox.programs import PASSED, Limits, program, run_programs, score, unconfined
from moe_lab.tasks.sandbox.replies import completion
from tests.support.documents import PROBLEMS, evaluated
from tests.support.runs import write_jsonl
from tests.support.scoring import filtered


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for name in ("humaneval", "humaneval_plus"):
        write_jsonl(tmp_path / "data" / name / "test.jsonl", PROBLEMS)
    return tmp_path / "data"


def config(data: Path, name: str = "humaneval", **keys: Any) -> Config:
    task = TaskConfig(name=name, confirm_run_unsafe_code=keys.pop("confirmed", False))
    return Config(task=task, data_dir=str(data), **keys)


@pytest.fixture
def bubblewrap() -> None:
    if (problem := programs.why_no_bubblewrap()) is not None:
        pytest.skip(problem)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["humaneval", "humaneval_plus"])
def test_reference_solutions_pass_and_wrong_ones_do_not(data, name, bubblewrap):
    def half_right(request: Any) -> str:
        return (
            request.doc["canonical_solution"]
            if request.doc["task_id"] == "own/1"
            else "    return None\n"
        )

    tasks = load_tasks(config(data, name))
    right = evaluated(tasks, lambda request: request.doc["canonical_solution"])
    assert right["results"][name]["pass@1,create_test"] == 1.0
    wrong = evaluated(tasks, half_right)
    assert wrong["results"][name]["pass@1,create_test"] == pytest.approx(1 / 3)
    outcomes = [sample["filtered_resps"][0][0] for sample in wrong["samples"][name]]
    assert outcomes == ["failed: AssertionError", "passed", "failed: TypeError"]


def test_pass_at_1_is_the_share_of_responses_that_passed():
    assert score({}, [["passed", "failed: NameError", "timed out: waiting", "passed"]]) == {
        "pass@1": 0.5
    }


def test_the_program_is_lm_evals(data):
    """Its `build_predictions` and `doc_to_target`, joined by a line end as code_eval joins them."""
    problem = PROBLEMS[0]
    task: Any = load_tasks(config(data))["tasks"]["humaneval"]
    target = task.doc_to_target(problem)
    assert program(problem, "    return 1") == problem["prompt"] + "    return 1" + "\n" + target


def lm_evals(name: str) -> dict[str, Any]:
    """lm-eval's YAML of a task."""
    file = Path(lm_eval.__file__).parent / "tasks" / "humaneval" / f"{name}.yaml"
    return load_yaml(file, resolve_func=False)


@pytest.mark.parametrize("name", ["humaneval", "humaneval_plus"])
def test_prompt_and_stop_words_are_lm_evals(data, name):
    expected_task = lm_evals(name)
    ours: Any = load_tasks(config(data, name))["tasks"][name]
    for key in (
        "doc_to_text",
        "doc_to_target",
        "dataset_path",
        "test_split",
        "num_fewshot",
        "unsafe_code",
    ):
        assert getattr(ours.config, key) == expected_task[key], key
    assert ours.config.generation_kwargs == expected_task["generation_kwargs"]


@pytest.mark.slow
def test_lm_evals_own_module_is_not_executed(data):
    """It asks the hub for a metric.

    Other tests import what it imports, so that an interpreter of its own must load the task.
    """
    code = (
        "import sys\nfrom moe_lab.config.schema import Config, TaskConfig\n"
        "from moe_lab.tasks.loading import load_tasks\n"
        "for name in ('humaneval', 'humaneval_plus'):\n"
        f"    load_tasks(Config(task=TaskConfig(name=name), data_dir={str(data)!r}))\n"
        "print([module for module in sys.modules if 'tasks.humaneval' in module or module == "
        "'evaluate'])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


WITHOUT = "bubblewrap (bwrap) is not installed."


@pytest.mark.slow
def test_without_bubblewrap_nothing_is_executed_unless_that_is_confirmed(
    data, tmp_path, monkeypatch
):
    monkeypatch.setattr(programs, "why_no_bubblewrap", lambda: WITHOUT)
    refused = config(data)
    confirmed = config(data, confirmed=True)
    with pytest.raises(TaskError, match=r"not installed(.|\n)*task\.confirm_run_unsafe_code=true"):
        check_code_execution(refused, load_tasks(refused))
    check_code_execution(confirmed, load_tasks(confirmed))
    made = f"open({str(tmp_path / 'made')!r}, 'w')"
    with pytest.raises(TaskError, match="cannot be confined"):
        run_programs([made])
    assert not (tmp_path / "made").exists()
    with unconfined(confirmed.task.confirm_run_unsafe_code):
        outcomes = run_programs([made, *LIMITED], FEW)
        assert run_programs([WAITING], SHORT) == ["timed out: waiting"]
    assert (tmp_path / "made").exists()
    assert outcomes == [PASSED, *LIMITED.values()]


@pytest.mark.parametrize(
    ("kind", "hard", "message"),
    [
        ("RLIMIT_NOFILE", 32, "32 open files (ulimit -n), and 64 are needed"),
        ("RLIMIT_NPROC", 4, "4 processes (ulimit -u), and 5 are needed"),
        ("RLIMIT_CPU", 20, "20 seconds of processor time (ulimit -t), and 21 are needed"),
        ("RLIMIT_FSIZE", 1024, "1,024 bytes of a file (ulimit -f), and 8,388,608 are needed"),
        (
            "RLIMIT_AS",
            2**20,
            "1,048,576 bytes of memory (ulimit -v, in KiB), and 1,073,741,824 are needed",
        ),
    ],
)
@pytest.mark.parametrize("confirmed", [False, True])
def test_a_limit_of_the_user_that_is_too_low_is_named(
    data, monkeypatch, kind, hard, message, confirmed
):
    """The sandbox cannot raise a hard limit, and its failure looks like that of bubblewrap."""
    of_process = resource.getrlimit

    def getrlimit(number):
        return (hard, hard) if number == getattr(resource, kind) else of_process(number)

    monkeypatch.setattr(programs.resource, "getrlimit", getrlimit)
    of_run = config(data, confirmed=confirmed)
    with pytest.raises(TaskError) as raised:
        check_code_execution(of_run, load_tasks(of_run))
    assert message in str(raised.value)
    assert "bubblewrap" not in str(raised.value)


@pytest.mark.slow
def test_the_limits_that_are_checked_are_those_that_the_kernel_asks_for(bubblewrap):
    """With hard limits of just what is needed a program runs."""
    command = 'ulimit -n 64 -t 21 -f 8192; exec "$0" -c "$1"'
    source = (
        "from moe_lab.tasks.sandbox.programs import run_programs; print(run_programs(['x = 1']))"
    )
    ended = subprocess.run(
        ["bash", "-c", command, sys.executable, source], capture_output=True, text=True
    )
    assert ended.stdout == "['passed']\n", ended.stderr


@pytest.mark.slow
def test_a_bubblewrap_that_does_not_work_is_told(monkeypatch, tmp_path):
    script = "#!/bin/sh\necho 'No permissions to create a new namespace' >&2\nexit 1\n"
    (tmp_path / "bwrap").write_text(script)
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    programs.why_no_bubblewrap.cache_clear()
    try:
        with pytest.raises(
            TaskError, match="executed: bubblewrap: No permissions to create a new namespace"
        ):
            run_programs(["x = 1"])
    finally:
        programs.why_no_bubblewrap.cache_clear()


@pytest.mark.slow
def test_a_bubblewrap_that_does_not_limit_processes_is_refused(monkeypatch, bubblewrap):
    """Like a command that root starts as another user: the kernel never limits root's processes."""
    if not programs._is_root():
        pytest.skip("the processes of other users are limited")
    monkeypatch.setattr(programs, "_is_root", lambda: False)
    programs.why_no_bubblewrap.cache_clear()
    try:
        with pytest.raises(
            TaskError,
            match="executed: bubblewrap: the number of a program's processes is not limited",
        ):
            run_programs(["x = 1"])
    finally:
        programs.why_no_bubblewrap.cache_clear()


FORKS = """
import os, time
count = 0
for _ in range(100):
    try:
        process = os.fork()
    except BlockingIOError:
        break
    if process == 0:
        for _ in range(3):
            try:
                os.fork()
            except BlockingIOError:
                break
        time.sleep(5)
        os._exit(0)
    count += 1
raise type(f"Forked{count}", (Exception,), {})
"""
"""Where nothing limits it, forks at most 100 processes (children included), each for 5 seconds."""
THREADS = """
import threading, time
for _ in range(100):
    threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
"""


@pytest.mark.slow
def test_a_program_has_five_processes_or_threads_whoever_executes_it(bubblewrap):
    """Broken by root, whose processes the kernel does not limit.

    One of the five is bubblewrap's.
    """
    first, second, *threads = run_programs([FORKS, FORKS, THREADS], Limits(wall_seconds=30))
    for outcome in (first, second):
        count = int(outcome.removeprefix("failed: Forked"))
        assert 1 <= count <= 3, outcome
    assert threads == ["failed: RuntimeError"], "can't start new thread"


FEW = Limits(cpu_seconds=1, wall_seconds=20)
SHORT = Limits(cpu_seconds=1, wall_seconds=1)
WAITING = "import time; time.sleep(99)"
LIMITED = {
    "while True: pass": "timed out: processor time",
    "bytearray(10 * 2**30)": "failed: MemoryError",
    "open('own', 'wb').write(bytes(20 * 2**20))": "failed: OSError",
    "import os; os._exit(0)": "failed: ended early with exit code 0",
    "raise SystemExit(0)": "failed: SystemExit",
    "import os, time\nif os.fork():\n    time.sleep(1)\n    raise ValueError": "failed: ValueError",
    "import os; os.kill(os.getpid(), 11)": "failed: ended by signal 11",
    "import numpy; assert numpy.ones(3).sum() == 3": PASSED,
    "open('own', 'w').write('x')": PASSED,
}
"""The outcome of each program, in bubblewrap and without."""


@pytest.mark.slow
def test_programs_are_confined(bubblewrap, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "hush")
    with (
        tempfile.TemporaryDirectory() as outside,
        socket.socket() as server,
        socket.socket(socket.AF_UNIX) as local,
    ):
        server.bind(("127.0.0.1", 0))
        server.listen()
        local.bind("")  # the kernel chooses an abstract address
        local.listen()
        os.chmod(outside, 0o777)
        outside_file = Path(outside, "kept")
        outside_file.write_text("as it was")
        address = local.getsockname()
        port = server.getsockname()[1]
        outcomes = {
            f"open({str(outside_file)!r}, 'w')": "failed: FileNotFoundError",
            "import os; open(os.path.dirname(os.__file__) + '/made', 'w')": "failed: OSError",
            "open('/made', 'w')": "failed: OSError",
            f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)": (
                "failed: ConnectionRefusedError"
            ),
            f"import socket; socket.socket(socket.AF_UNIX).connect({address!r})": (
                "failed: ConnectionRefusedError"
            ),
            "import os; assert 'hush' not in str(dict(os.environ))": PASSED,
            "import os; assert not os.path.exists('/proc/1')": PASSED,
            "import os; assert os.getuid() == 1000": PASSED,
            "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == -1": PASSED,
            LEFT_BEHIND: PASSED,
        }
        outcomes = LIMITED | outcomes
        assert run_programs(list(outcomes), FEW) == list(outcomes.values())
        assert run_programs([WAITING], SHORT) == ["timed out: waiting"]
        assert outside_file.read_text() == "as it was"
        assert os.listdir(outside) == ["kept"]
    names = [process.info["name"] for process in psutil.process_iter(["name"])]
    assert "moe_lab_daemon" not in names, "a process that leaves its parent dies with the sandbox"


LEFT_BEHIND = """
import os, time, ctypes
if not os.fork():
    os.setsid()
    ctypes.CDLL(None).prctl(15, b"moe_lab_daemon")
    time.sleep(100)
"""


def test_predict_only_executes_nothing(data, monkeypatch):
    monkeypatch.setattr(programs, "why_no_bubblewrap", lambda: pytest.fail("asked"))
    logged = config(data, predict_only=True)
    tasks = load_tasks(logged)
    check_code_execution(logged, tasks)
    task: Any = tasks["tasks"]["humaneval"]
    task.build_all_requests()
    assert len(task.instances) == 3
    assert filtered(task, ["    return 1"]) == {"none": "    return 1"}


# Replies of instruct models

COPRIME = PROBLEMS[1]
"""Its prompt imports gcd, which the function needs."""
BODY = "    return gcd(a, b) == 1\n"
AGAIN = f"def coprime(a: int, b: int) -> bool:\n{BODY}"
HELPER = "def one(a, b):\n    return gcd(a, b) == 1\n"
WITH_HELPER = AGAIN.replace("gcd(a, b) == 1", "one(a, b)")
STUB = "def coprime(a: int, b: int) -> bool:\n"
RIGHT = {
    "continued": BODY,
    "continued, closed and explained": f"{BODY}```\n\nIt works because:\n- gcd is 1",
    "fenced": f"```python\n{BODY}```",
    "fenced and restated": f"```python\n{AGAIN}```",
    "fenced without a language": f"```\n{AGAIN}```\nDone",
    "prefixed": f"Sure! Here is the function:\n\n```python\n{AGAIN}```\nI hope this helps!",
    "prefixed by one word": f"Sure\n```py\n{AGAIN}```",
    "restated": f"\n{AGAIN}",
    "restated after a helper": "def one(a, b):\n    return gcd(a, b) == 1\n\n\n"
    + AGAIN.replace("gcd(a, b) == 1", "one(a, b)"),
    "with a helper after it": AGAIN.replace("gcd(a, b) == 1", "one(gcd(a, b))")
    + "\ndef one(x):\n    return x == 1\n",
    "with the whole prompt": f"```python\n{COPRIME['prompt']}{BODY}```",
    "truncated in an explanation": f"```python\n{AGAIN}\n# Example\nprint(coprime(4,",
    "truncated in the next fence": (
        f"{BODY}```\nOr shorter:\n```python\ndef coprime(a, b):\n    return"
    ),
    "with a wrong example": f"{BODY}\nassert coprime(4, 6)\n",
    "with a future import": f"```python\nfrom __future__ import annotations\n{AGAIN}```",
    "with a future import in brackets": (
        f"```python\nfrom __future__ import (\n    annotations,\n)\n\n{AGAIN}```"
    ),
    "a blank before the language": f"``` python\n{AGAIN}```",
    "braces after the language": f"```python {{.line-numbers}}\n{AGAIN}```",
    "braces around the language": f"```{{python}}\n{AGAIN}```",
    "a title after the language": f'```python title="coprime.py"\n{AGAIN}```',
    "four backticks": f"````python\n{AGAIN}````\nDone",
    "tildes": f"~~~python\n{AGAIN}~~~\nDone",
    "tildes around the body": f"~~~\n{BODY}~~~",
    "in a numbered list": "1. First:\n\n   ```python\n" + indent(AGAIN, "   ") + "   ```\n2. Done",
    "a fence as the item of a list": "- ```python\n" + indent(AGAIN, "  ") + "  ```",
    "the body in a list": "* Body:\n\n  ```python\n" + indent(BODY, "  ") + "  ```",
    "a helper in the block before": (
        f"First:\n```python\n{HELPER}```\nThen:\n```python\n{WITH_HELPER}```"
    ),
    "a helper in the block after": (
        f"```python\n{WITH_HELPER}```\nIt needs:\n```python\n{HELPER}```"
    ),
    "helpers of helpers": (
        f"```python\n{WITH_HELPER}```\n```python\nONE = 1\n```\n```python\n"
        f"{HELPER.replace('== 1', '== ONE')}```"
    ),
    "a helper with a decorator": (
        f"```python\n@kept\n{HELPER}```\n```python\ndef kept(f):\n"
        f"    return f\n```\n```python\n{WITH_HELPER}```"
    ),
    "a stub before": f"```python\n{STUB}    pass\n```\nNow in full:\n```python\n{AGAIN}```",
    "a stub of dots before": f"```python\n{STUB}    ...\n```\n```python\n{AGAIN}```",
    "a stub that raises before": (
        f"```python\n{STUB}    raise NotImplementedError('to do')\n```\n```python\n{AGAIN}```"
    ),
}
WRONG = {
    "nothing": "",
    "the docstring alone": f"```python\n{COPRIME['prompt']}```",
    "truncated in the function": (
        "```python\ndef coprime(a: int, b: int) -> bool:\n    return gcd(a, "
    ),
    "wrong": f"```python\n{AGAIN.replace('==', '!=')}```",
    "a refusal": "I cannot do that.",
    "a stub alone": f"```python\n{STUB}    pass\n```",
    "a wrong function before the right one": (
        f"```python\n{AGAIN.replace('==', '!=')}```\n```python\n{AGAIN}```"
    ),
}


def passes(reply: str) -> bool:
    """Whether the program passes. These programs are ours, so no sandbox is needed."""
    try:
        exec(program(COPRIME, completion(COPRIME, reply)), {})
    except (AssertionError, SyntaxError, NameError):
        return False
    return True


@pytest.mark.parametrize("form", RIGHT | WRONG)
def test_the_function_is_found_in_a_reply_that_has_it(form):
    assert passes((RIGHT | WRONG)[form]) == (form in RIGHT)


@pytest.mark.parametrize(
    ("reply", "executed"),
    [
        (f"~~~py\n{AGAIN}~~~", f"\n{AGAIN}"),
        (
            f"```python\n{WITH_HELPER}```\n```python\n{HELPER}\nprint(one(1, 2))\n```",
            f"\n{WITH_HELPER}\n{HELPER}",
        ),
        (
            f"```python\n{AGAIN}```\n```python\n{HELPER}```",
            f"\n{AGAIN}",
        ),  # a helper that is not needed
        ("I cannot do that.", "I cannot do that."),
    ],
)
def test_what_is_executed(reply, executed):
    assert completion(COPRIME, reply).strip() == executed.strip()


def test_prompt_is_lm_evals_instruct_form_with_a_chat_template_alone(data):
    expected_task = lm_evals("humaneval_instruct")
    ours = load_tasks(config(data, apply_chat_template=True))["tasks"]["humaneval"].config
    assert (ours.doc_to_text, ours.gen_prefix) == (
        expected_task["doc_to_text"],
        expected_task["gen_prefix"],
    )
    plain = load_tasks(config(data))["tasks"]["humaneval"].config
    assert (plain.doc_to_text, plain.gen_prefix, len(plain.filter_list)) == ("{{prompt}}", None, 1)
    assert plain.generation_kwargs["until"] == expected_task["generation_kwargs"]["until"]


@pytest.mark.slow
def test_replies_are_scored_in_the_sandbox_by_our_extraction_and_by_lm_evals(data, bubblewrap):
    """lm-eval's own filter finds nothing in a reply that opens with a fence.

    It cuts a reply that writes the function again.
    """
    replies = {
        "own/0": "```python\ndef double(x):\n    return 2 * x\n```",
        "own/1": f"{BODY}```\nIt uses gcd.",
        "own/2": "\ndef mean(values):\n    return sum(values) / len(values)\n",
    }

    def answer(request: Any) -> str:
        prompt, options = request.args
        assert "Here is the completed function:\n```python\n" in prompt
        assert options["until"] == []
        return replies[request.doc["task_id"]]

    tasks = load_tasks(config(data, apply_chat_template=True))
    scores = evaluated(tasks, answer, apply_chat_template=True)["results"]["humaneval"]
    names = [key for key in scores if key.startswith("pass@1,")]
    assert names == ["pass@1,extract_code", "pass@1,create_test"], "the first is the headline"
    assert scores["pass@1,extract_code"] == 1
    assert scores["pass@1,create_test"] == pytest.approx(1 / 3)
