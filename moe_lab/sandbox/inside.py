"""What runs inside the cage: limits, then the program, then one line about what came of it.

Python's standard library only: this module is imported by an interpreter that sees little else.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from typing import Any

from moe_lab.sandbox.system_calls import refuse_system_calls

NO_NEW_PRIVS = 38
CAPABILITIES_VERSION = 0x20080522


def run_request() -> None:
    """Read {"program", "nonce", "limits", "paths"} from stdin, run the program, report on stdout and exit.

    The report is {"nonce", "outcome"}. The nonce is not told to the program: one that ends the process early, with
    whatever exit code, reports nothing. What the program prints is dropped.
    """
    with os.fdopen(0, "rb", closefd=False) as stdin:
        request = json.loads(stdin.read())
    report = os.dup(1)
    nothing = os.open("/dev/null", os.O_RDWR)
    limit(request["limits"])
    for descriptor in (
        0,
        1,
        2,
    ):  # what went wrong until here is told on stderr, what the program writes is not
        os.dup2(nothing, descriptor)
    sys.path[:] = request["paths"]
    code, nonce = request["program"], request["nonce"]
    outcome = execute(code)
    os.write(report, json.dumps({"nonce": nonce, "outcome": outcome}).encode())
    os._exit(0)


def execute(program: str) -> str:
    """What came of it: "passed", or "failed: " and the type of what was raised."""
    try:
        exec(compile(program, "<program>", "exec"), {})
    except BaseException as error:  # a failed program, whatever it raised, SystemExit included
        return f"failed: {type(error).__name__}"
    return "passed"


def limit(limits: dict[str, Any]) -> None:
    """Give up all privileges and set the limits of this process and its children, for good. Raises OSError."""
    drop_capabilities()
    refuse_system_calls()
    cpu = int(limits["cpu_seconds"])
    for kind, most in (
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_FSIZE, limits["file_size"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        resource.setrlimit(kind, (int(most), int(most)))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))


def drop_capabilities() -> None:
    """No capability in any user namespace, now and after any exec. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    none = (ctypes.c_uint32 * 6)()
    for call, arguments in ((libc.capset, (header, none)), (libc.prctl, (NO_NEW_PRIVS, 1, 0, 0, 0))):
        if call(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "cannot give up privileges")
