"""Locks between processes: a file is locked until its process releases it or ends."""

from pathlib import Path

from filelock import FileLock, Timeout


def lock_on(file: Path) -> FileLock:
    """The lock on a file, not acquired."""
    return FileLock(file, is_singleton=False)


def acquire(file: Path) -> FileLock | None:
    """Acquire the lock on a file; None if another process has it. Raises OSError if the file cannot be locked."""
    lock = lock_on(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    except NotImplementedError as error:
        raise OSError(str(error)) from error
    return lock


def is_locked(file: Path) -> bool:
    """Whether a living process has the lock. Makes no file."""
    if not file.exists():
        return False
    lock = acquire(file)
    if lock is not None:
        lock.release()
    return lock is None
