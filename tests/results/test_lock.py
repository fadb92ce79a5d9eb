"""Breaks if a lock is acquired twice, or if asking whether a file is locked keeps it locked.

A lease, too: it is its holder's as long as the holder lives, and another's once nobody refreshes it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moe_lab.results import lock as locks
from moe_lab.results.lock import acquire, is_locked


def test_a_lock_is_acquired_once_until_it_is_released(tmp_path):
    file = tmp_path / ".lock"
    assert not is_locked(file) and not file.exists()
    lock = acquire(file)
    assert lock is not None and acquire(file) is None and is_locked(file)
    lock.release()
    assert not is_locked(file) and acquire(file) is not None


@pytest.fixture
def leases(monkeypatch: pytest.MonkeyPatch) -> Iterator[float]:
    """Leases that expire after this many seconds. One that is kept would end the process in a later test, once it is late."""
    monkeypatch.setenv(locks.LEASES, "1")
    monkeypatch.setattr(locks, "LEASE_SECONDS", 0.4)
    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", 0.05)
    own: dict[Path, Any] = {}
    monkeypatch.setattr(locks, "_own", own)
    yield 0.4
    for lease, _ in own.values():
        lease.release()
    assert not [one for one in threading.enumerate() if one.name.startswith("filelock-lease")]


@pytest.mark.slow
def test_a_living_holder_keeps_its_lease(tmp_path, leases):
    file = tmp_path / ".lock"
    assert not is_locked(file) and not list(tmp_path.iterdir())
    lease = acquire(file)
    assert lease is not None
    end = time.monotonic() + 3 * leases
    while time.monotonic() < end:
        assert acquire(file) is None and is_locked(file)
        time.sleep(0.02)
    lease.release()
    assert not is_locked(file) and acquire(file) is not None


def test_a_lease_that_nobody_refreshes_is_taken_over(tmp_path, leases):
    file = tmp_path / ".lock"
    lease = acquire(file)
    assert lease is not None
    marker = tmp_path / ".lock.lease"
    record = marker.read_text()
    lease.release()
    marker.write_text(record)  # what a machine leaves that has been switched off
    start = time.monotonic()
    while (taken := acquire(file)) is None:
        assert time.monotonic() < start + 20
        time.sleep(0.02)
    assert time.monotonic() - start >= 0.9 * leases
    assert acquire(file) is None
    taken.release()


def test_a_process_that_has_lost_its_lease_stops(tmp_path, leases, monkeypatch, capsys):
    sent: list[int] = []
    monkeypatch.setattr(locks.os, "kill", lambda pid, number: sent.append(number))
    lease = acquire(tmp_path / ".lock")
    assert lease is not None
    (tmp_path / ".lock.lease").unlink()
    end = time.monotonic() + 20
    while not sent and time.monotonic() < end:
        time.sleep(0.02)
    assert sent == [signal.SIGTERM] and "The same command continues" in capsys.readouterr().err
