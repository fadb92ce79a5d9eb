"""Breaks if the command line does not take what a W&B sweep agent gives it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from moe_lab.config.compose import compose
from moe_lab.runs.config import to_config

DOCS = Path(__file__).resolve().parents[2] / "docs" / "wandb.md"


def agent_arguments(parameters: dict[str, Any]) -> list[str]:
    """What `wandb agent` puts in the place of ${args_no_hyphens}."""
    from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

    command = {"args": {name: {"value": value} for name, value in parameters.items()}}
    return list(create_sweep_command_args(command)["args_no_hyphens"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("method.temperature", 0.123456789),
        ("method.temperature", 1e-05),
        ("method.temperature", [0, 0.1, 0.2, 0]),
        ("method.n", 16),
        ("method.include_clean", False),
        ("method.weights", "perturbed"),
        ("seed", 3),
        ("samples", [0, 5, 9]),
        ("data_dir", "/some where/data"),
    ],
)
def test_an_agent_s_arguments_are_overrides(key, value):
    (argument,) = agent_arguments({key: value})
    (cell,) = compose([argument, "method=roe"])
    found: Any = to_config(cell)
    for name in key.split("."):
        found = getattr(found, name)
    assert found == value and type(found) is type(value)


@pytest.mark.slow
def test_the_documented_sweep_composes():
    sweep = yaml.safe_load(next(re.finditer(r"```yaml\n(.*?)```", DOCS.read_text(), re.S))[1])
    fixed = [part for part in sweep["command"] if "=" in part]
    assert (
        sweep["command"][:3] == ["python", "-m", "moe_lab"] and sweep["command"][-1] == "${args_no_hyphens}"
    )
    values = {
        name: parameter.get("min", parameter.get("values", [None])[0])
        for name, parameter in sweep["parameters"].items()
    }
    (cell,) = compose([*fixed, *agent_arguments(values)])
    config = to_config(cell)
    assert config.logger.name == "wandb" and config.method.n == 8 and config.method.temperature == 0.0
