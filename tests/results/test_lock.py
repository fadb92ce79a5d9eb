"""Breaks if a lock is acquired twice, or if asking whether a file is locked keeps it locked."""

from __future__ import annotations

from pathlib import Path

from moe_lab.results.lock import acquire, is_locked


def test_a_lock_is_acquired_once_until_it_is_released(tmp_path: Path) -> None:
    file = tmp_path / ".lock"
    assert not is_locked(file)
    lock = acquire(file)
    assert lock is not None and acquire(file) is None and is_locked(file)
    lock.release()
    assert not is_locked(file) and acquire(file) is not None
