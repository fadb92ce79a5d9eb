"""The attack runs, sees what is wrong, and finds nothing wrong.

Broken by: a check that no violation fails.
"""

import json
from pathlib import Path

import pytest

from benchmarks.faults.__main__ import main
from benchmarks.faults.child import Ended
from benchmarks.faults.kinds import Kind, results_in
from tests.support.command import exit_code

RESULTS = {
    "results": {"t": {"acc,none": 0.5}},
    "date": 1.0,
    "moe_lab": {"cost": {"wall_seconds": 2.0}},
}


def stored(folder: Path, results: dict, name: str = "run") -> Path:
    run = folder / "runs" / name
    run.mkdir(parents=True)
    (run / "results.json").write_text(json.dumps(results))
    return folder


def ended(code: int = 0, output: str = "") -> Ended:
    return Ended(code, output, 1.0)


def test_a_lost_wrong_or_left_thing_is_seen(tmp_path):
    whole = stored(tmp_path / "whole", RESULTS)
    kind = Kind("roe", expected=results_in(whole))
    assert kind.problems(ended(), whole) == []
    assert kind.problems(ended(), stored(tmp_path / "later", RESULTS | {"date": 2.0})) == []
    wrong = stored(tmp_path / "wrong", RESULTS | {"results": {"t": {"acc,none": 0.25}}})
    assert (
        "results differ: /run/results/t/acc,none: 0.5 and 0.25" in kind.problems(ended(), wrong)[0]
    )
    assert "only one has run" in kind.problems(ended(), tmp_path / "none")[0]
    assert kind.problems(ended(1, "why"), whole) == ["ended with 1: why"]
    assert kind.problems(ended(0, "Traceback (most recent call last):"), whole)
    (whole / "runs" / "run" / ".status.json.abcdefgh").touch()
    assert "is left" in kind.problems(ended(), whole)[0]


def test_a_damaged_result_is_a_problem_unless_the_command_reports_it(tmp_path):
    folder = stored(tmp_path / "out", RESULTS)
    kind = Kind("roe", expected=results_in(folder))
    path = folder / "runs" / "run" / "results.json"
    path.write_text("[")
    message = f"{path} is damaged: Expecting value. It is not used."
    assert kind.problems(ended(output=""), folder) != []
    assert kind.problems(ended(output=message), folder) == []


@pytest.mark.slow
def test_a_short_attack_finds_nothing(monkeypatch, capfd):
    counts = "--kills 2 --damaged 5 --lines 12 --kinds roe judged"
    monkeypatch.setattr("sys.argv", ["faults", *counts.split()])
    assert exit_code(main) == 0  # in a process of its own: it sets variables of the environment
    printed = capfd.readouterr()
    rows = [line.split(" | ") for line in printed.out.splitlines() if line.startswith("| ")][1:]
    parts = ["undisturbed", "kills", "damaged", "lines"]
    assert [row[0].strip("| ") for row in rows] == parts
    assert all(row[2] == "0" for row in rows), printed
