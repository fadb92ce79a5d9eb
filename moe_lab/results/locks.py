"""Locks between processes: a file is locked until its process releases it or ends."""

import fcntl
import os
from pathlib import Path

from filelock import FileLock, Timeout


def lock_on(file: Path) -> FileLock:
    """The lock on a file. It is not acquired yet."""
    return FileLock(file, is_singleton=False)


def acquire(file: Path) -> FileLock | None:
    """Acquire the lock on a file; None if another process has it. Raises OSError if the file cannot
    be locked."""
    lock = lock_on(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    except NotImplementedError as error:
        raise OSError(str(error)) from error
    return lock


def is_locked(file: Path) -> bool:
    """Whether a living process has the lock. Makes no file, and works in a folder that cannot be
    written."""
    if not file.exists():
        return False
    handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # shared: the holder's lock, which is exclusive, excludes it, and a file that is only read
        # can have it
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
