"""The cases of `tests/support/accelerator_cases.py`: every method on a stand-in for a GPU.

Broken by a tensor that is left on the CPU, and by values that the host asks for too often.
"""

import pytest

from tests.support.command import run_cases


@pytest.mark.slow
def test_every_method_runs_on_a_device_that_is_not_the_cpu():
    run_cases("accelerator_cases.py")
