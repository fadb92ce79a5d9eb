"""Breaks if a worker that failed is not named, or if the command shows progress that is not its workers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moe_lab.cli.launchers import watch
from moe_lab.runs.board import Board, log_file


def test_workers_that_failed_are_named_with_their_last_lines(capsys: Any, tmp_path: Path) -> None:
    log_file(tmp_path, 1).write_text("".join(f"line {i}\n" for i in range(9)))
    watch.print_failed(Board(tmp_path), [0, 3, 1])
    err = capsys.readouterr().err
    log = tmp_path / "worker-1.log"
    assert (
        f"Worker 1 ended with exit code 3 ({log}):\nline 4\nline 5\nline 6\nline 7\nline 8\nWorker 2" in err
    )
    assert "Worker 0" not in err and err.endswith("It printed nothing.\n")


def test_progress_counts_what_workers_made_beside_what_was_stored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown: list[tuple[Any, ...]] = []

    class Shown:
        def __init__(self, total: int, what: str, unit: str, initial: int):
            shown.append((total, what, unit, initial))

        def __enter__(self) -> Shown:
            return self

        def __exit__(self, *raised: object) -> None: ...

        def at(self, done: int, note: str | None) -> None:
            shown.append((done, note))

    worker = Board(tmp_path, 0)
    steps = [
        lambda: worker.begin(5, ["a", "b"]),
        lambda: worker.end("c"),
        lambda: Board(tmp_path, 1).end("d", "full"),
    ]

    def alive() -> bool:
        if steps:
            steps.pop(0)()
        return bool(steps)

    monkeypatch.setattr(watch, "Progress", Shown)
    monkeypatch.setattr(watch, "PAUSE", 0.0)
    watch.watch(Board(tmp_path), 2, alive)
    assert shown == [(5, "2 workers", "run", 2), (3, None)]


def test_workers_that_end_at_once_are_not_waited_for(tmp_path: Path) -> None:
    watch.watch(Board(tmp_path), 2, lambda: False)
