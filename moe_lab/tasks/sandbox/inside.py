"""The source of the process that executes one program. It needs only Python's standard library."""

import json
import os
import resource
import sys


def main() -> None:
    """Read {"program", "paths", "limits", "user"} from stdin, and write the outcome of the program
    on stdout.

    Nothing is written if the program ends its process. What the program prints is dropped.
    """
    request = json.load(sys.stdin)
    report = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    if request["user"] is not None:  # root of a namespace becomes a user without rights
        os.setgroups([])
        os.setgid(request["user"])
        os.setuid(request["user"])
    sys.path[:] = request["paths"]
    for name, most in request["limits"].items():
        # at the soft limit of processor time a signal says why, at the hard one the process is
        # killed
        resource.setrlimit(getattr(resource, name), (most, most + (name == "RLIMIT_CPU")))
    process = os.getpid()
    try:
        exec(compile(request["program"], "<program>", "exec"), {})
        outcome = "passed"
    except BaseException as error:  # SystemExit, too, is a failure
        outcome = f"failed: {type(error).__name__}"
    if os.getpid() == process:  # and no process that the program forked
        os.write(report, outcome.encode(errors="replace"))
    os._exit(0)


main()
