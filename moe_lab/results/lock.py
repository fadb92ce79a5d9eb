"""Locks between processes: a file is locked until its process releases it or ends.

With `MOE_LAB_LEASES=1` in the environment, for file systems whose locks do not hold between machines, a lock is a lease
instead: a file next to it that its holder refreshes. Another process takes it over once it has seen no refresh for
`LEASE_SECONDS`. A process that was suspended for longer still runs: before it writes, `check_lease` compares the lease
with its own.
"""

import os
import signal
import sys
from pathlib import Path

from filelock import BaseFileLock, FileLock, LeaseCompromise, SoftFileLease, Timeout

from moe_lab.errors import LeaseLostError

LEASES = "MOE_LAB_LEASES"
LEASE_SECONDS = 45.0
HEARTBEAT_SECONDS = 5.0

_own: dict[Path, tuple[SoftFileLease, tuple[int, int]]] = {}
"""Leases of this process by the file that they protect: the lease, and the device and inode of its file."""
_watched: dict[Path, SoftFileLease] = {}
"""Leases of other processes. A lease that expires is recognized by the object that has watched it."""


def lock_on(file: Path) -> BaseFileLock:
    """The lock on a file, not acquired."""
    if not os.environ.get(LEASES):
        return FileLock(file, is_singleton=False)
    return SoftFileLease(
        _lease(file),
        lease_duration=LEASE_SECONDS,
        heartbeat_interval=HEARTBEAT_SECONDS,
        on_compromise=_end_this_process,
        thread_local=False,  # the threads of this process write, too
    )


def acquire(file: Path) -> BaseFileLock | None:
    """Acquire the lock on a file; None if another process has it. Raises OSError if the file cannot be locked."""
    lock = _watched.pop(file, None) or lock_on(file)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if isinstance(lock, SoftFileLease):
            _watched[file] = lock
        return None
    if isinstance(lock, SoftFileLease) and (identity := _identity(_lease(file))):
        _own[file] = lock, identity
    return lock


def check_lease(path: Path) -> None:
    """Raise LeaseLostError if `path` is in a folder whose lease another process has taken over from this one."""
    for file in list(_own):
        if path.is_relative_to(file.parent):
            check_lease_on(file)


def check_lease_on(file: Path) -> None:
    """Raise LeaseLostError if another process has taken over this process's lease on `file`."""
    lease, identity = _own.get(file, (None, None))
    if lease is not None and not lease.is_locked:
        del _own[file]  # released
    elif lease is not None and _identity(_lease(file)) != identity:
        raise LeaseLostError(
            f"{file.parent.name}: another process has taken the lease over, as this one was suspended.\n"
            "Nothing more was written here. The same command continues, or shows the result.",
            file.parent,
        )


def is_locked(file: Path) -> bool:
    """Whether a living process has the lock. Makes no file."""
    if not (_lease(file) if os.environ.get(LEASES) else file).exists():
        return False
    lock = acquire(file)
    if lock is not None:
        lock.release()
    return lock is None


def _lease(file: Path) -> Path:
    return file.with_name(f"{file.name}.lease")


def _identity(lease: Path) -> tuple[int, int] | None:
    """The device and inode of a lease's file; None if it is gone."""
    try:
        with lease.open("rb") as opened:  # network file systems look again when a file is opened
            facts = os.fstat(opened.fileno())
    except FileNotFoundError:
        return None
    return facts.st_dev, facts.st_ino


def _end_this_process(lost: LeaseCompromise) -> None:
    """What a lost lease protects may be another's by now: stop as by SIGTERM, with everything stored so far."""
    print(f"The lease on a run was lost ({lost}). The same command continues.", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGTERM)
