"""The comparison of golden runs.

Broken by: a difference that is not seen, and times that count as one.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.golden.commands import COMMANDS
from benchmarks.golden.compare import compare
from benchmarks.golden.record import chosen

RUN = "files/outputs/runs/tiny-roe-toy_math-0123abcd"
RESULTS = {
    "results": {"toy_math": {"exact_match,none": 0.1}},
    "moe_lab": {"cost": {"wall_seconds": 1.5, "tokens_in": 7}},
}


def recorded(
    folder: Path, name: str = "roe", exit_code: int = 0, run: str = RUN, seconds: float = 1.5
) -> Path:
    """A made-up command of a recording; returns its folder."""
    place = folder / name
    (place / run).mkdir(parents=True)
    places = {"<files>": str(place / "files")}
    command = {"line": "method=roe", "exit_code": exit_code, "seconds": seconds, "places": places}
    (place / "command.json").write_text(json.dumps(command))
    (place / "stdout.txt").write_text(
        f"roe  0.1000   {seconds} s  PARTIAL\n{place}/{run}/results.json\n"
    )
    results = json.loads(json.dumps(RESULTS))
    results["moe_lab"]["cost"]["wall_seconds"] = seconds
    if seconds > 2:
        results["moe_lab"]["cost"]["peak_working_bytes"] = 4096
    (place / run / "results.json").write_text(json.dumps(results))
    (place / run / "run.log").write_text(
        f"2026-01-01 00:00:0{seconds:.0f},000 {seconds * 10:.0f} INFO finished\n"
    )
    (place / run / ".holder").write_text(f"process {seconds}")
    (place / run / "scores.csv").write_text("method,value\nroe,0.1\n")
    save_file({"counts": torch.arange(3.0)}, place / run / "counts.safetensors")
    return place


def changed(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def compared(
    folder: Path, capsys: pytest.CaptureFixture[str], rtol: float = 0.0
) -> tuple[int, str, list[str]]:
    """Exit code, what was printed, and the row of the command `roe` in the table at the end."""
    code = compare(folder / "before", folder / "after", rtol=rtol)
    printed = capsys.readouterr().out
    [row] = [line.split()[1:] for line in printed.splitlines() if line.startswith("roe ")]
    return code, printed, row


def differing(*kinds: str) -> list[str]:
    """The row of a command that differs in these kinds."""
    columns = ["command", "exit code", "ids", "files", "numbers", "texts"]
    return ["differ" if column in kinds else "equal" for column in columns]


def test_the_same_commit_does_not_differ(tmp_path, capsys):
    """Times, the process and the folder of the recording differ."""
    recorded(tmp_path / "before")
    recorded(tmp_path / "after", seconds=2.5)
    code, printed, row = compared(tmp_path, capsys)
    assert (code, row) == (0, differing()), printed
    assert "Nothing differs in 1 commands." in printed


def test_a_changed_number_is_named(tmp_path, capsys):
    recorded(tmp_path / "before")
    place = recorded(tmp_path / "after")
    changed(place / RUN / "results.json", '": 0.1}', '": 0.1000000000001}')
    code, printed, row = compared(tmp_path, capsys)
    assert (code, row) == (1, differing("numbers"))
    assert (
        "results.json: /results/toy_math/exact_match,none: 0.1 before, 0.1000000000001 after"
        in printed
    )
    assert compared(tmp_path, capsys, rtol=1e-9)[0] == 0


def test_a_number_of_a_table_and_of_weights_is_compared(tmp_path, capsys):
    recorded(tmp_path / "before")
    place = recorded(tmp_path / "after")
    changed(place / RUN / "scores.csv", "roe,0.1", "roe,0.2")
    save_file({"counts": torch.tensor([0.0, 1.0, 3.0])}, place / RUN / "counts.safetensors")
    code, printed, row = compared(tmp_path, capsys)
    assert (code, row) == (1, differing("numbers"))
    assert "scores.csv: /0/value: 0.1 before, 0.2 after" in printed
    assert "counts.safetensors: /counts/numbers: differ by up to 1" in printed


def test_a_missing_key_is_named(tmp_path, capsys):
    """Also where its value is not compared."""
    recorded(tmp_path / "before")
    place = recorded(tmp_path / "after")
    changed(place / RUN / "results.json", '"wall_seconds"', '"seconds"')
    code, printed, row = compared(tmp_path, capsys)
    assert (code, row) == (1, differing("numbers"))
    assert "/moe_lab/cost/wall_seconds: only before" in printed


def test_a_changed_id_is_named_once(tmp_path, capsys):
    recorded(tmp_path / "before")
    recorded(tmp_path / "after", run=RUN.replace("0123abcd", "4567cdef"))
    code, printed, row = compared(tmp_path, capsys)
    assert (code, row) == (1, differing("ids", "texts"))
    assert "- tiny-roe-toy_math-0123abcd" in printed
    assert "+ tiny-roe-toy_math-4567cdef" in printed


def test_a_changed_text_is_shown(tmp_path, capsys):
    recorded(tmp_path / "before")
    place = recorded(tmp_path / "after")
    changed(place / "stdout.txt", "PARTIAL", "PART")
    code, printed, row = compared(tmp_path, capsys)
    assert (code, row) == (1, differing("texts"))
    assert "-roe  0.1000  <duration>  PARTIAL" in printed
    assert "+roe  0.1000  <duration>  PART" in printed


def test_inputs_are_not_compared(tmp_path, capsys):
    """They belong to the golden run, which may be a newer one than that of the other recording."""
    recorded(tmp_path / "before")
    inputs = recorded(tmp_path / "after") / "files" / "inputs"
    inputs.mkdir()
    (inputs / "policy.py").touch()
    assert compared(tmp_path, capsys)[0] == 0


def test_a_missing_file_is_named(tmp_path, capsys):
    recorded(tmp_path / "before")
    place = recorded(tmp_path / "after")
    (place / RUN / "run.log").unlink()
    code, printed, row = compared(tmp_path, capsys)
    assert (code, row) == (1, differing("files"))
    assert f"- {RUN}/run.log" in printed


def test_a_changed_exit_code_is_named(tmp_path, capsys):
    recorded(tmp_path / "before")
    recorded(tmp_path / "after", exit_code=2)
    code, printed, row = compared(tmp_path, capsys)
    assert (code, row) == (1, differing("exit code"))
    assert "0 before, 2 after" in printed


def test_a_command_of_one_recording_is_named(tmp_path, capsys):
    for folder in ("before", "after"):
        recorded(tmp_path / folder)
    recorded(tmp_path / "after", name="c3po")
    code, printed, row = compared(tmp_path, capsys)
    assert (code, row) == (1, differing())
    assert "== c3po" in printed
    assert f"{tmp_path / 'before'} has no such command." in printed
    assert compare(tmp_path / "before", tmp_path / "after", "roe*") == 0


def test_folders_without_a_recording_are_refused(tmp_path):
    with pytest.raises(SystemExit, match="hold no recording"):
        compare(tmp_path, tmp_path)


def test_a_command_is_recorded_after_the_one_that_it_follows():
    assert chosen("roe-again") == ["roe", "roe-again"]
    names = list(COMMANDS)
    for number, command in enumerate(COMMANDS.values()):
        assert not command.after or command.after in names[:number]
    with pytest.raises(SystemExit, match="no command has such a name"):
        chosen("reo")
