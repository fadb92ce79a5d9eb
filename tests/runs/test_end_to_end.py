"""The command on a small random model, nothing replaced: run, stored result, grid, and a table that was killed.

Broken by: a stored result that is computed again or parsed twice, a model that a grid loads twice, a cell lost to `kill -9`.
"""

import json
import time
from collections import Counter
from pathlib import Path

import pytest

from moe_lab.results import stored_files as stored_results
from tests.support.command import fork_command, run_command
from tests.support.pages import rows_of, tree


@pytest.mark.slow
def test_a_grid_loads_its_model_once_and_then_never(tiny_olmoe_dir, tmp_path, capsys, loads, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grid = ["-m", "method=base,roe", f"model.path={tiny_olmoe_dir}", "task=toy_choice", "limit=3"]
    first = run_command(capsys, *grid)
    assert first.code == 0
    assert loads == [tiny_olmoe_dir.name]
    paths = [Path(line) for line in first.out.splitlines() if line.endswith("results.json")]
    methods = [json.loads(path.read_text())["moe_lab"]["method"]["name"] for path in paths]
    assert methods == ["base", "roe"]
    assert first.out.splitlines()[-1] == str(paths[-1])
    page = tree(tmp_path / "outputs" / "report.html")
    [table] = page.xpath("//table[.//@data-run]")
    rows = dict(zip(table.xpath(".//@data-run"), rows_of(table), strict=True))
    for stored in (json.loads(path.read_text()) for path in paths):
        value = rows[stored["moe_lab"]["run_id"]]["value"]
        assert float(value) == stored["results"]["toy_choice"]["acc,none"]
    loads.clear()
    second = run_command(capsys, *grid)
    assert second.code == 0
    assert loads == []
    assert second.out == first.out
    reported = run_command(capsys, *grid, "mode=report")
    assert reported.out == first.out
    assert "To run: 0" in run_command(capsys, *grid, "mode=plan").out


@pytest.mark.slow
def test_a_killed_table_is_completed_without_running_a_finished_cell_again(tiny_olmoe_dir, tmp_path, capsys):
    output = tmp_path / "out"
    command = ["experiment=roe/figure3", "limit=2", f"output_dir={output}", f"model.path={tiny_olmoe_dir}"]
    process = fork_command(tmp_path, *command)
    deadline = time.monotonic() + 300
    while not list(output.glob("runs/*/results.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.join()
    finished = {path: path.stat().st_mtime_ns for path in output.glob("runs/*/results.json")}
    assert 1 <= len(finished) < 6
    assert not (output / "tables").exists()
    ended = run_command(capsys, *command)
    assert ended.code == 0, ended.err
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert len(list(output.glob("runs/*/results.json"))) == 8, "base, two seeds, temperature 0"
    [table] = (output / "tables").glob("roe-figure3-tiny-limit-2-*.md")
    assert "6 of 6 cells are measured" in table.read_text()
    assert str(table) in ended.out


@pytest.mark.slow
def test_each_results_json_is_parsed_once_per_command(tmp_path, capsys, monkeypatch):
    parsed: Counter[Path] = Counter()
    whole_mapping = stored_results.whole_mapping

    def counted(path: Path):
        parsed[path] += path.name == "results.json" and path.exists()
        return whole_mapping(path)

    monkeypatch.setattr(stored_results, "whole_mapping", counted)

    def command(*argv: str) -> str:
        """Its output; nothing is known from the command before, as in a process of its own."""
        parsed.clear()
        stored_results._parsed.cache_clear()
        ended = run_command(capsys, "method.n=2", "limit=2", "seeds=2", f"output_dir={tmp_path}", *argv)
        assert ended.code == 0, ended.err
        return ended.out

    written = command()
    files = sorted(tmp_path.glob("runs/*/results.json"))
    assert len(files) == 3, "two seeds and their baseline"
    assert max(parsed.values()) == 1
    for argv in ((), ("mode=plan",), ("mode=report",)):
        out = command(*argv)
        assert +parsed == dict.fromkeys(files, 1)
        assert argv == ("mode=plan",) or out.splitlines()[-2:] == written.splitlines()[-2:]
