"""Executes programs in a sandbox that has been tested on this machine, and scores HumanEval (pass@1).

Before the first program of a model is executed, small programs try to break each limit.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from string import Template
from typing import Any

from moe_lab.errors import ResultsError, TaskError
from moe_lab.tasks.sandbox.cage import OUT_OF_PROCESSOR_TIME, OUT_OF_TIME, Cage, Limits, candidates

# The tests of a sandbox

QUICK = Limits(wall_seconds=8, cpu_seconds=1)
PASSED = "passed"
"""The outcome of a program that ran to its end."""

PLAIN = "import json, math, random, re, typing, collections\nassert sorted([2, 1]) == [1, 2]"
MEMORY = """
try:
    bytearray(10 * 2**30)
except MemoryError:
    pass
else:
    raise AssertionError
"""
UNCOUNTED_MEMORY = """
import ctypes
libc = ctypes.CDLL(None)
assert libc.shmget(0, 2**20, 0o1600) == -1
assert libc.memfd_create(b"x", 0) == -1
assert libc.socketpair(1, 1, 0, (ctypes.c_int * 2)()) == -1
"""
PROCESSES = """
import os, signal
children = []
try:
    for _ in range($many):
        child = os.fork()
        if not child:
            signal.pause()
        children.append(child)
except OSError:
    pass
assert len(children) < $many
"""
ENDLESS = "while True: pass"
SLEEP = "import time\ntime.sleep(1000)"
WRITE = """
import os
for folder in ("/", "/tmp", "/dev", "/usr", "/etc", "/var/tmp", os.path.dirname(os.__file__), $outside):
    try:
        open(os.path.join(folder, "written"), "w").close()
    except OSError:
        continue
    raise AssertionError(folder)
assert not os.path.exists($outside)
open("/program/written", "w").close()
"""
HOME = """
import os
assert not os.path.exists($secret)
"""
FILE_SIZE = """
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
written = 0
try:
    for number in range(64):
        with open(f"/program/{number}", "wb") as file:
            for _ in range(16):
                written += file.write(bytes(2**20))
except OSError:
    pass
assert written <= $most
"""
SOCKET = """
import socket
for family, address in ((socket.AF_INET, ("127.0.0.1", $port)), (socket.AF_UNIX, $abstract)):
    try:
        socket.socket(family, socket.SOCK_STREAM).connect(address)
    except OSError:
        continue
    raise AssertionError(address)
"""
PRIVILEGES = """
import ctypes, os
assert os.getuid() != 0
libc = ctypes.CDLL(None)
for namespace in (0x10000000, 0x20000, 0x20000000, 0x40000000):
    assert libc.unshare(namespace) != 0, namespace
"""


def broken_promises(cage: Cage) -> list[str]:
    """The limits that a sandbox does not enforce here, in words; empty if it enforces all.

    Raises ResultsError if it cannot be built.
    """
    with (
        tempfile.TemporaryDirectory(prefix="moe_lab_probe_") as outside,
        _file_in_home() as secret,
        _listeners() as (port, abstract),
    ):
        os.chmod(outside, 0o777)
        values = {
            "many": str(4 * QUICK.processes),
            "most": str(QUICK.folder_size),
            "outside": repr(outside),
            "secret": repr(secret),
            "port": str(port),
            "abstract": repr(abstract),
        }
        promises = {
            "an ordinary program does not run": (PLAIN, QUICK, PASSED),
            "memory is not limited": (MEMORY, QUICK, PASSED),
            "memory that no limit counts is given out": (UNCOUNTED_MEMORY, QUICK, PASSED),
            "the number of processes is not limited": (PROCESSES, QUICK, PASSED),
            "processor time is not limited": (ENDLESS, QUICK, OUT_OF_PROCESSOR_TIME),
            "waiting is not limited": (SLEEP, Limits(wall_seconds=1), OUT_OF_TIME),
            "files outside its own folder can be seen or written": (WRITE, QUICK, PASSED),
            "files of the home folder can be seen": (HOME, QUICK, PASSED),
            "the size of files is not limited": (FILE_SIZE, QUICK, PASSED),
            "the network is not cut off": (SOCKET, QUICK, PASSED),
            "privileges can be gained": (PRIVILEGES, QUICK, PASSED),
        }
        cage.run(PLAIN, QUICK)  # raises once an error that all others would raise
        with ThreadPoolExecutor(4) as pool:
            runs = {
                promise: (pool.submit(cage.run, Template(program).substitute(values), limits), expected)
                for promise, (program, limits, expected) in promises.items()
            }
        outcomes = {promise: (run.result(), expected) for promise, (run, expected) in runs.items()}
        broken = [f"{promise} ({got})" for promise, (got, expected) in outcomes.items() if got != expected]
        return broken + (["a file appeared outside"] if list(Path(outside).iterdir()) else [])


@contextmanager
def _file_in_home() -> Iterator[str]:
    """The path of a new file in the home folder; of one that is there if the folder cannot be written to."""
    try:
        home = Path.home()
    except RuntimeError:  # a user id without a home folder
        yield "/no home folder"
        return
    try:
        handle, name = tempfile.mkstemp(prefix=".moe_lab_probe_", dir=home)
    except OSError:
        files = (path for path in home.glob("*") if path.is_file())
        yield str(next(files, home / "no file"))
        return
    os.close(handle)
    try:
        yield name
    finally:
        os.unlink(name)


@contextmanager
def _listeners() -> Iterator[tuple[int, str]]:
    """A TCP port and an abstract Unix address of this machine that accept connections."""
    with socket.socket() as tcp, socket.socket(socket.AF_UNIX) as unix:
        tcp.bind(("127.0.0.1", 0))
        tcp.listen()
        unix.bind("")  # the kernel chooses an abstract address
        unix.listen()
        yield tcp.getsockname()[1], unix.getsockname().decode()


# Executing programs

WORKERS = 4
"""Programs in parallel, at most one per core."""


def run_programs(programs: Sequence[str], limits: Limits | None = None) -> list[str]:
    """Execute Python sources, each in its own sandbox. Returns their outcomes in order.

    "passed" after running to the end; "timed out: <which time>"; or "failed: " with the exception's type, or how the
    process ended. Raises TaskError, before any execution, if no sandbox works on this machine.
    """
    cage, limits = require_cage(), limits or Limits()
    with ThreadPoolExecutor(min(WORKERS, len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(lambda program: cage.run(program, limits), programs))


@lru_cache(maxsize=1)
def require_cage() -> Cage:
    """The first sandbox that enforces all limits here. Raises TaskError naming limits that are not enforced."""
    reasons = []
    for cage in candidates():
        try:
            broken = broken_promises(cage)
        except (ResultsError, OSError) as error:
            broken = [str(error)]
        if not broken:
            return cage
        reasons.append(f"{cage.name}: {'; '.join(broken)}")
    raise TaskError(
        "Programs that a model wrote cannot be confined on this machine, so none is executed.\n"
        + "\n".join(reasons)
        + "\nInstalling bubblewrap (bwrap) may help; predict_only=true logs the answers without executing them."
    )


# code/: the functions of the HumanEval tasks


def program(document: dict[str, Any], completion: str) -> str:
    """The prompt with the model's completion, then the problem's tests."""
    return f"{document['prompt']}{completion}\n{document['test']}\ncheck({document['entry_point']})"


def run_tests(responses: list[list[str]], documents: list[dict[str, Any]]) -> list[list[str]]:
    """lm-eval filter: the outcome of every response's program ("passed", "failed: AssertionError", ...).

    It gets all responses of a run, whose programs run in parallel.
    """
    pairs = zip(responses, documents, strict=True)
    outcomes = iter(run_programs([program(document, text) for texts, document in pairs for text in texts]))
    return [[next(outcomes) for _ in texts] for texts in responses]


def score(document: dict[str, Any], results: list[list[str]]) -> dict[str, float]:
    """lm-eval `process_results`: the share of a document's responses that passed, which is pass@1."""
    (outcomes,) = results
    return {"pass@1": sum(outcome == PASSED for outcome in outcomes) / len(outcomes)}
