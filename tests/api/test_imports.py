"""`import moe_lab` imports nothing heavy, and a name no more than it needs.

Broken by an import at the top of a module that belongs where it is used.
"""

import subprocess
import sys

import pytest

from tests.support.lm_eval_logs import samples_of, write_log

HEAVY = {
    "torch",
    "transformers",
    "lm_eval",
    "numpy",
    "scipy",
    "pandas",
    "matplotlib",
    "hydra",
    "omegaconf",
    "datasets",
    "optuna",
    "peft",
    "wandb",
    "sklearn",
    "PIL",
}
"""Packages that take 50 milliseconds or more."""
MODELS = {"torch", "transformers", "numpy"}
NEEDED = {
    "; dir(moe_lab)": set(),
    "; moe_lab.compare": {"numpy"},
    "; moe_lab.plan": {"hydra", "omegaconf", "numpy"},
    "; from moe_lab import expert_metrics, freeze, override, record": MODELS,
    "; moe_lab.tiny": {*MODELS, "PIL"},
}
"""What each statement after `import moe_lab` may import."""


@pytest.mark.slow
@pytest.mark.parametrize("used", NEEDED)
def test_a_name_imports_what_it_needs(used):
    code = f"import sys, moe_lab{used}; print(*sys.modules, sep='\\n')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY & set(ended.stdout.split()) <= NEEDED[used]


COMMANDS = {
    "--help": "torch transformers lm_eval datasets hydra",
    "--help method=c3po experiment=all": "torch transformers lm_eval datasets hydra",
    "mode=plan limit=2": "transformers.modeling_utils torch._dynamo",
    "mode=compare a=mine b=theirs": "torch transformers datasets",
}
"""Modules that commands do not import.

transformers' modeling code takes longer to import than a plan takes to compute.
"""


@pytest.mark.slow
@pytest.mark.parametrize("command_line", COMMANDS)
def test_a_command_imports_what_it_needs(command_line, tmp_path):
    for name, right in (("mine", [0.0, 1.0]), ("theirs", [1.0, 1.0])):
        write_log(tmp_path / name, {"t": samples_of(acc=right)})
    code = (
        f"import sys; from moe_lab.cli.main import main; code = main({command_line.split()}); "
        "print(*sys.modules); sys.exit(code)"
    )
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert not set(COMMANDS[command_line].split()) & set(ended.stdout.splitlines()[-1].split())
