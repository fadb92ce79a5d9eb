"""Breaks if what is printed ends a command: by a character that the terminal lacks,
or by a stream that is closed or ends.

The exit code is that of what was done.
"""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

import moe_lab
from moe_lab.cli.main import main
from moe_lab.config.streams import in_encoding
from moe_lab.errors import ModelError
from moe_lab.models import hub
from tests.support.command import FakeRuns, install
from tests.support.lm_eval_logs import samples_of, write_log

RUN = ["-m", "method=base,roe", "model=tiny", "model.name=tiny", "task=toy_math"]
TINY_TASK = ["method=base", "model=tiny", "task=toy_math", "limit=4"]
COMMANDS = {
    "run": RUN,
    "a text of the user": ["method=base", "system_instruction=Grüße × 模型", "output_dir=ü"],
    "seeds": ["method=roe", "seeds=2"],
    "plan": ["mode=plan", *RUN],
    "report": ["mode=report", *RUN],
    "compare": ["mode=compare", "a=mine", "b=ümlaut"],
    "prefetch": ["mode=prefetch", "model=tiny", "task=toy_math"],
    "experiment": ["experiment=c3po/table10", "mode=plan", "limit=4"],
    "configuration": ["--cfg", "job", "system_instruction=Grüße"],
    "help": ["--help"],
    "help on keys": ["--help", "keys"],
    "help on a table": ["--help", "experiment="],
    "version": ["--version"],
    "an error": ["method=röe"],
    "an error of Hydra": ["limit=[ü"],
}
WRONG = {"an error", "an error of Hydra"}


@pytest.fixture
def runs(monkeypatch, tmp_path) -> FakeRuns:
    monkeypatch.chdir(tmp_path)
    for name, right in (("mine", [0.0, 0.0, 1.0]), ("ümlaut", [1.0, 1.0, 0.0])):
        write_log(tmp_path / name, {"t": samples_of(acc=right)})
    return install(monkeypatch, FakeRuns())


def written(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize(
    "command",
    [
        *(name for name in COMMANDS if name != "experiment"),
        pytest.param("experiment", marks=pytest.mark.slow),
    ],
)
def test_no_encoding_ends_a_command(command, encoding, runs, monkeypatch):
    stdout = written(encoding)
    stderr = written(encoding)
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(hub, "is_offline", lambda: False)
    if command == "report":
        runs.done.update(["tiny-base-toy_math-0", "tiny-roe-toy_math-0"])
    code = main(COMMANDS[command])
    assert sys.stdout is stdout
    out = stdout.buffer.getvalue().decode(encoding)
    err = stderr.buffer.getvalue().decode(encoding)
    assert "Traceback" not in err
    if command in WRONG:
        assert code == 2, err
        assert err.strip()
    else:
        assert code == 0, err
        assert out.strip()
    if command in ("run", "report", "seeds") and encoding == "ascii":
        lines = [line for line in out.splitlines() if set(line) <= {"-", " "} and "-" in line]
        assert lines, "the line below the head of the table"


def test_an_escape_stands_for_a_character_that_an_encoding_lacks():
    assert in_encoding("a × b ─ ü", "ascii") == "a x b - \\xfc"
    assert in_encoding("a × b ─ ü", "latin-1") == "a × b - ü"
    assert in_encoding("a × b ─ ü", "utf-8") == "a × b ─ ü"
    assert in_encoding("\udcff", "utf-8") == "\\udcff"
    assert in_encoding("\udcff ×", "ascii", "surrogateescape") == "\udcff x"


def test_python_prints_in_any_encoding(runs, monkeypatch):
    stdout = written("ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    moe_lab.run(RUN)
    stdout.flush()
    assert b"results.json" in stdout.buffer.getvalue()


class Ended(io.StringIO):
    """A pipe whose reader has ended, `head` for example."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


@pytest.mark.parametrize("streams", [["stdout"], ["stderr"], ["stdout", "stderr"]])
@pytest.mark.parametrize("state", ["ended", "closed"])
def test_the_exit_code_is_the_runs_where_a_stream_is_closed_or_ends(
    state, streams, runs, monkeypatch, tmp_path
):
    for name in streams:
        monkeypatch.setattr(sys, name, Ended() if state == "ended" else None)
    assert main(RUN) == 0
    assert (tmp_path / "outputs" / "report.html").is_file()
    assert len(runs.executed) == 2
    assert main(["method=reo"]) == 2
    assert main(["--help"]) == 0
    runs.errors["tiny-roe-toy_math-7"] = ModelError("cannot be loaded")
    assert main(["method=roe", "model=tiny", "task=toy_math", "seed=7", "baseline=false"]) == 2


# In a shell

SHELL = {
    "stdout closed": (">&- 2>err", "err"),
    "stderr closed": ("2>&- >out", "out"),
    "both closed": (">&- 2>&-", None),
    "a reader that ends": ("2>err | head -1 >out", "out"),
    "a reader of both that ends": ("2>&1 | head -1 >out", "out"),
    "no reader": ("2>&1 | true", None),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SHELL)
def test_in_a_shell_the_run_is_stored_and_the_exit_code_is_the_runs(case, tmp_path):
    ending, file = SHELL[case]
    command = f"{sys.executable} -m moe_lab {' '.join(TINY_TASK)} {ending}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("outputs/runs/*/results.json"))) == 1
    if file is not None:
        assert "Traceback" not in (tmp_path / file).read_text()
    wrong = f"{sys.executable} -m moe_lab method=reo {ending}; exit ${{PIPESTATUS[0]}}"
    assert (
        subprocess.run(
            ["bash", "-c", wrong], cwd=tmp_path, capture_output=True, timeout=300
        ).returncode
        == 2
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    ],
)
def test_in_a_shell_without_utf_8_a_run_ends_in_its_table(environment, tmp_path):
    command = [sys.executable, "-m", "moe_lab", *TINY_TASK]
    package = str(Path(moe_lab.__file__).parents[1])
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": package} | environment,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(b"results.json")
    assert b"---" in done.stdout
