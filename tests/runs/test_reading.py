"""Breaks if a command parses the same results.json twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from moe_lab.results import stored_files as stored
from tests.support.command import run_command


@pytest.mark.slow
def test_each_results_json_is_parsed_once_per_command(tmp_path, capsys, monkeypatch):
    parsed: Counter[Path] = Counter()
    whole_mapping = stored.whole_mapping

    def counted(path: Path):
        parsed[path] += path.name == "results.json" and path.exists()
        return whole_mapping(path)

    monkeypatch.setattr(stored, "whole_mapping", counted)

    def command(*argv: str) -> str:
        """Its output; nothing is known from the command before, as in a process of its own."""
        parsed.clear()
        stored._parsed.cache_clear()
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
