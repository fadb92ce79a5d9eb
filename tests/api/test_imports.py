"""`import moe_lab` imports nothing heavy, and a name no more than it needs.

Broken by an import at the top of a module that belongs where it is used.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    *("torch", "transformers", "lm_eval", "numpy", "scipy", "pandas", "matplotlib", "hydra", "omegaconf"),
    *("datasets", "optuna", "peft", "wandb", "sklearn", "PIL"),
}
"""Packages that take 50 milliseconds or more."""
NEEDED = {
    "": set(),
    "; dir(moe_lab)": set(),
    "; moe_lab.compare": set(),
    "; moe_lab.plan": {"hydra", "omegaconf", "numpy"},
    "; moe_lab.record; moe_lab.replay": {"torch", "transformers", "numpy"},
    "; moe_lab.override; moe_lab.freeze; moe_lab.expert_metrics": {"torch", "transformers", "numpy"},
    "; moe_lab.tiny": {"torch", "transformers", "numpy", "PIL"},
}
"""What each statement after `import moe_lab` may import."""


@pytest.mark.slow
@pytest.mark.parametrize("used", NEEDED)
def test_a_name_imports_what_it_needs(used):
    code = f"import sys, moe_lab{used}; print(*sys.modules, sep='\\n')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY & set(ended.stdout.split()) <= NEEDED[used]
