"""Attacks on the cage, from within an outer limit: if the cage were broken, they could still not hurt the machine."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from moe_lab.tasks.sandbox.inside import free_id

REPOSITORY = Path(__file__).resolve().parents[2]
CODE = """
import json, sys
from moe_lab.errors import TaskError
from moe_lab.tasks.sandbox import programs
from moe_lab.tasks.sandbox.cage import Cage, Limits
asked = json.load(sys.stdin)
if asked["known"]:
    programs.require_cage = lambda: Cage(*asked["known"])
try:
    outcomes = programs.run_programs(asked["programs"], Limits(cpu_seconds=1, wall_seconds=5))
    print(json.dumps({"outcomes": outcomes, "cage": [programs.require_cage().bubblewrap]}))
except TaskError as error:
    print(json.dumps({"refused": str(error)}))
"""

_known: dict[str, list[str | None]] = {}


def attack(*programs: str, environment: dict[str, str] | None = None) -> list[str]:
    """What came of each program, in a process with limits on time, memory and processes of its own.

    The first call finds the machine's cage, which takes two seconds; calls with an `environment` find their own.
    Skips the test where this machine cannot build a cage, and says why.
    """
    known = None if environment else _known.get("cage")
    ended = subprocess.run(
        [sys.executable, "-c", CODE],
        input=json.dumps({"programs": programs, "known": known}),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **(environment or {})},
        preexec_fn=_outer_limits,
    )
    said = json.loads(ended.stdout)
    if "refused" in said:
        skip_where_impossible(said["refused"])
    if not environment:
        _known["cage"] = said["cage"]
    outcomes: list[str] = said["outcomes"]
    return outcomes


def skip_where_impossible(refusal: str) -> NoReturn:
    """Skip where this machine refuses what a cage needs; that a cage breaks a promise for another reason is a failure.

    Limits on processes do not bind root where there is no other user id to run as.
    """
    not_built = re.search("namespaces could not be built: .*(OSError|PermissionError)", refusal, re.DOTALL)
    assert not_built or (os.geteuid() == 0 and free_id("uid") is None), refusal
    pytest.skip(refusal)


def _outer_limits() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it
    for kind, most in (
        (resource.RLIMIT_CPU, 60),
        (resource.RLIMIT_AS, 12 * 2**30),
        (resource.RLIMIT_FSIZE, 2**30),
        (resource.RLIMIT_NPROC, 1000),  # binds the caged user, who is not root
    ):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
