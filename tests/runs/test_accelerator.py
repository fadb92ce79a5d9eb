"""The cases of CASES: every method on a stand-in for a GPU, and the bytes that it counts against those of plans.

Broken by a tensor that is left on the CPU, values that the host asks for too often, and a plan of another peak. They run in
a process of their own: with another device autograd starts threads, after which a process cannot fork, as other tests do.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = ("tests/support/accelerator_cases.py", "tests/support/planned_memory_cases.py")


@pytest.mark.slow
def test_methods_run_on_a_device_that_is_not_the_cpu_within_their_plans():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CASES]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-8000:]
