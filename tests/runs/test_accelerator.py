"""The cases of `tests/support/accelerator_cases.py`: every method on a stand-in for a GPU.

Broken by a tensor that is left on the CPU, and by values that the host asks for too often. They run in a process of their
own: with another device autograd starts threads, after which a process cannot fork, as other tests do.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_method_runs_on_a_device_that_is_not_the_cpu():
    cases = "tests/support/accelerator_cases.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", cases]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-8000:]
