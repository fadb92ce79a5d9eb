"""`lm_eval run --model moe_lab`, by the entry point that lm-eval reads from a later release on.

Broken by: an entry point that names nothing, other numbers than `moe_lab.lm`, arguments of
lm-eval's command that it does not take.
"""

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.api import registry
from lm_eval.tasks import TaskManager

import moe_lab
from moe_lab.errors import ConfigError

PROJECT = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())
ENTRY = PROJECT["project"]["entry-points"]["lm_eval.models"]["moe_lab"]


def model_class() -> Any:
    """The class that the entry point names."""
    module, _, name = ENTRY.partition(":")
    return getattr(import_module(module), name)


def evaluated(**arguments: Any) -> dict[str, Any]:
    tasks = TaskManager(include_path=f"{moe_lab.__path__[0]}/tasks/toy", include_defaults=False)
    results = lm_eval.simple_evaluate(
        tasks=["toy_choice"], task_manager=tasks, limit=6, bootstrap_iters=0, **arguments
    )
    return results["results"]["toy_choice"]


@pytest.mark.slow
def test_lm_evals_command_gives_the_numbers_of_the_method():
    if "moe_lab" not in registry.model_registry:
        registry.register_model("moe_lab")(model_class())  # as the entry point does
    arguments = "method=roe,n=2,temperature=0.3,dtype=float32"
    by_name = evaluated(model="moe_lab", model_args=arguments, batch_size="1", device="cpu")
    model, tokenizer = moe_lab.tiny()
    under_method = moe_lab.lm(model.float(), tokenizer, "roe", n=2, temperature=0.3, batch_size=1)
    assert by_name == evaluated(model=under_method)


def test_an_unknown_key_is_refused_with_the_closest_name():
    with pytest.raises(ConfigError, match="temprature"):
        model_class()(method="roe", temprature=0.3, device="cpu")
