"""What docs/extending.md shows works: the files of examples/extending/.

Broken by: a change of what a model, a method, a task, a table or a metric of others needs.
"""

import json
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lm_eval.api.instance import Instance

import moe_lab
from tests.support.command import run_command

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "extending"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder, in which the commands of the page are given."""
    folder = tmp_path / "extending"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(folder)
    return folder


@contextmanager
def installed(package: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package in a folder, installed as its pyproject.toml says."""
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = package / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    ((group, entries),) = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {place}" for name, place in entries.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(package)
    try:
        yield
    finally:
        sys.modules.pop(about.name.partition("-")[0], None)


@pytest.fixture
def sharper(work: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The method's package."""
    with installed(work / "sharper", monkeypatch):
        yield


def results(out: str) -> dict:
    """The results.json that a command names in its last line."""
    return json.loads(Path(out.splitlines()[-1]).read_text(encoding="utf-8"))


@pytest.mark.slow
def test_a_method(sharper, capsys):
    run = ("model=tiny", "task=toy_choice", "limit=8", "method=sharper")
    same, other = run_command(capsys, *run, "method.power=1"), run_command(capsys, *run, "method.power=4")
    assert same.code == 0 == other.code
    block = results(same.out)["moe_lab"]
    assert block["paired"]["toy_choice"]["acc,none"]["difference"] == 0
    assert results(other.out)["moe_lab"]["run_id"] != block["run_id"]
    assert "More weight for a token" in run_command(capsys, "--help", "method=sharper").out
    wrong = run_command(capsys, *run, "method.power=0")
    assert wrong.code == 2 and "method.power" in wrong.err


def test_a_method_in_python(sharper, olmoe, tokenizer):
    asked = [Instance("loglikelihood", {}, ("hello", " world"), 0)]

    def score(*method: str, **keys: float) -> float:
        return moe_lab.lm(olmoe, tokenizer, *method, **keys).loglikelihood(asked)[0][0]

    assert score("sharper", power=1.0) == pytest.approx(score(), abs=1e-4)
    assert abs(score("sharper", power=4.0) - score()) > 1e-3


@pytest.mark.slow
def test_a_table(sharper, work, capsys):
    ended = run_command(capsys, "--config-dir", "conf", "experiment=sharper")
    assert ended.code == 0, ended.err
    table = (work / "outputs" / "tables" / "sharper-tiny.csv").read_text(encoding="utf-8")
    assert [row for row in ("0.5", "1", "2") if f"\n{row}," not in table] == []
    record = json.loads((work / "outputs" / "tables" / "sharper-tiny.json").read_text(encoding="utf-8"))
    flag, folder, *rest = shlex.split(record["command"])[3:]
    assert flag == "--config-dir" and (work / folder / "experiments").is_dir()
    assert rest == ["experiment=sharper", "scale=tiny"]


@pytest.mark.slow
def test_a_model_and_a_task(work, tiny_olmoe_dir, capsys):
    shutil.copytree(tiny_olmoe_dir, work / "models" / "mine")
    ended = run_command(capsys, "--config-dir", "conf", "method=base", "model=mine", "task=capitals")
    assert ended.code == 0, ended.err
    found = results(ended.out)
    assert found["moe_lab"]["model"]["name"] == "mine" and found["n-samples"]["capitals"]["effective"] == 4
