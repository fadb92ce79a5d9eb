"""The code that runs inside the sandbox, in two processes: one executes the program, the other reports the outcome.

The *reporter* has the report's descriptor and draws a random word after the fork. The *program's process* has neither:
it reads the word from a pipe after the program has ended, and sends it back with the outcome. A program that ends its
process, inspects its interpreter, replaces functions, or writes to every descriptor does not pass. A program that knows
this protocol can still forge a report, as it could redefine the tests: solution and tests are one program.

Python's standard library only: the interpreter in the sandbox has few other modules.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from typing import Any

from moe_lab.tasks.sandbox.system_calls import refuse_system_calls

DUMPABLE, NO_NEW_PRIVS = 4, 38
CAPABILITIES_VERSION = 0x20080522
WORD = 16
MOST = 1000
"""Bytes of the word, and of an outcome."""


def run_request() -> None:
    """Read {"program", "limits", "paths"} from stdin, run the program, write its outcome on stdout and exit.

    If the program did not run to its end, nothing is written and the exit code is that of its process, as in a shell.
    The program's output is dropped.
    """
    # Python's handler would let the program raise an error here
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with os.fdopen(0, "rb", closefd=False) as stdin:
        request = json.loads(stdin.read())
    limit(request["limits"])
    words, give_word = os.pipe()
    answers, give_answer = os.pipe()
    process = os.fork()
    if not process:
        os.close(give_word)
        os.close(answers)
        run_program(request["program"], request["paths"], words, give_answer)
    word = os.urandom(WORD)  # not in the memory that the program's process is a copy of
    os.write(give_word, word)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os.set_blocking(answers, False)
    try:
        answer = os.read(answers, WORD + MOST)
    except BlockingIOError:  # none was given
        answer = b""
    if answer.startswith(word):
        os.write(1, answer[WORD:])
    os._exit(code if code >= 0 else 128 - code)


def run_program(program: str, paths: list[str], words: int, give_answer: int) -> None:
    """Execute Python source, send its outcome after the word from the pipe `words`, and exit."""
    nothing = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):  # errors of building the sandbox were on stderr until here
        os.dup2(nothing, descriptor)
    os.close(nothing)
    sys.path[:] = paths
    identity, read, write, leave = os.getpid, os.read, os.write, os._exit  # the program may replace them
    own = identity()
    outcome = execute(program)
    if identity() == own:  # and not a process that the program forked
        write(give_answer, read(words, WORD) + outcome.encode(errors="replace")[:MOST])
    leave(0)


def execute(program: str) -> str:
    """The outcome of a program: "passed", or "failed: " and the type of its exception."""
    try:
        exec(compile(program, "<program>", "exec"), {})
    except BaseException as error:  # SystemExit, too, is a failure
        return f"failed: {type(error).__name__}"
    return "passed"


def limit(limits: dict[str, Any]) -> None:
    """Drop all privileges and set the limits of this process and its children. Raises OSError."""
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
    """Drop the capabilities in all user namespaces, also after an exec, and deny access by other processes of the user.

    The program can then neither trace the reporter nor take its descriptors. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    none = (ctypes.c_uint32 * 6)()
    for call, arguments in (
        (libc.capset, (header, none)),
        (libc.prctl, (NO_NEW_PRIVS, 1, 0, 0, 0)),
        (libc.prctl, (DUMPABLE, 0, 0, 0, 0)),
    ):
        if call(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "cannot give up privileges")
