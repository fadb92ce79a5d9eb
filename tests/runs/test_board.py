"""Breaks if workers do not learn what others made or failed at, or read a line that is half written."""

from __future__ import annotations

from pathlib import Path

from moe_lab.runs.board import Board, current, is_worker, on_board


def test_workers_and_their_command_read_what_each_worker_wrote(tmp_path: Path) -> None:
    first, second, starter = Board(tmp_path, 0), Board(tmp_path, 1), Board(tmp_path)
    assert starter.total() is None and starter.stored() == starter.made() == set()
    first.begin(4, ["old"])
    second.begin(3, ["old"])  # a study of the other ended meanwhile
    first.end("new")
    second.end("broken", "no space\nleft")
    starter.end("ignored")
    assert starter.total() == 4
    assert starter.stored() == {"old"} and starter.made() == {"new", "broken"}
    told = f"no space\nleft\n(worker 1: {tmp_path}/worker-1.log)"
    assert starter.failures() == first.failures() == {"broken": told}
    assert second.failures() == {}, "its own failures are known to it"


def test_a_line_that_is_being_written_is_left_for_later(tmp_path: Path) -> None:
    Board(tmp_path, 0).end("whole")
    with (tmp_path / "worker-0.jsonl").open("a") as file:
        file.write('{"name": "hal')
    assert Board(tmp_path).made() == {"whole"}


def test_a_board_reads_on_where_it_ended(tmp_path: Path) -> None:
    """One board is asked at every step, while the files grow: a line is read once, and only when it is whole."""
    board, worker, file = Board(tmp_path), Board(tmp_path, 0), tmp_path / "worker-0.jsonl"
    worker.end("first é")
    assert board.made() == {"first é"}
    worker.end("second")
    with file.open("a") as stream:
        stream.write('{"name": "thi')
    assert board.made() == {"first é", "second"}
    with file.open("a") as stream:
        stream.write('rd", "error": null}\n')
    worker.end("fourth", "no space left")
    assert board.made() == {"first é", "second", "third", "fourth"}
    assert list(board.failures()) == ["fourth"]
    worker.end("fourth")
    assert board.failures() == {}


def test_a_process_is_a_worker_on_its_board_alone(tmp_path: Path) -> None:
    assert current() is None and not is_worker()
    with on_board(Board(tmp_path)):
        assert current() == Board(tmp_path) and not is_worker()
        with on_board(Board(tmp_path, 2)):
            assert is_worker()
    assert current() is None
