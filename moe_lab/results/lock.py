"""Locks between processes: a file is locked until its process releases it or ends."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout


def acquire(file: Path) -> FileLock | None:
    """Acquire the lock on a file; None if another process has it. Raises OSError if the file cannot be locked."""
    lock = FileLock(file, is_singleton=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


def is_locked(file: Path) -> bool:
    """Whether a living process has the lock."""
    lock = acquire(file)
    if lock is not None:
        lock.release()
    return lock is None
