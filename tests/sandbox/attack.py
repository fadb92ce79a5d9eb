"""Attacks on the cage, from within an outer limit: if the cage were broken, they could still not hurt the machine."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CODE = """
import json, sys
from moe_lab.errors import TaskError
from moe_lab.sandbox.limits import Limits
from moe_lab.sandbox.programs import run_programs
try:
    print(json.dumps({"outcomes": run_programs(json.load(sys.stdin), Limits(cpu_seconds=1, wall_seconds=5))}))
except TaskError as error:
    print(json.dumps({"refused": str(error)}))
"""


@dataclass(frozen=True)
class Ended:
    outcomes: list[str]
    refused: str | None
    """Why nothing was executed, where this machine cannot build a cage."""


def attack(*programs: str, environment: dict[str, str] | None = None) -> Ended:
    """What came of each program, in a process with limits on time, memory and processes of its own."""
    ended = subprocess.run(
        [sys.executable, "-c", CODE],
        input=json.dumps(programs),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **(environment or {})},
        preexec_fn=_outer_limits,
    )
    said = json.loads(ended.stdout)
    return Ended(said.get("outcomes", []), said.get("refused"))


def _outer_limits() -> None:
    for kind, most in (
        (resource.RLIMIT_CPU, 60),
        (resource.RLIMIT_AS, 12 * 2**30),
        (resource.RLIMIT_FSIZE, 2**30),
        (resource.RLIMIT_NPROC, 1000),  # binds the caged user, who is not root
    ):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
