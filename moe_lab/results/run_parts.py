"""The parts of a run in results.json: its model, method, task and cost, and the runs that it is
compared with."""

from collections.abc import Mapping
from functools import cached_property
from operator import not_
from typing import Any

from pydantic import Field

from moe_lab.results.lm_eval_results import Scores
from moe_lab.results.measured import Paired
from moe_lab.results.stored import Name, Stored

Comparisons = dict[str, dict[str, Paired]]
"""Differences to another run by task, then by lm-eval's `metric,filter`."""


class ModelPart(Stored):
    """The model. Further keys are what it ran on: the implementations of experts and attention."""

    name: Name
    path: str | None = None
    revision: str | None = None
    commit: str | None = None
    """Of a hub model."""
    identified_by: str | None = None
    """What its identity is made of: commit, or content."""
    family: str | None = None
    dtype: str | None = None
    moe_layers: int | None = None
    experts: int | None = None
    """Of an MoE layer."""
    top_k: int | None = None


class MethodPart(Stored):
    """The method and its keys."""

    name: Name
    config: dict[str, Any] = Field({})

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The keys with their values, nested ones with dots: `space.scale`."""
        return flat(self.config)


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without nesting: `{"a": 1, "b": {"c": 2}}` becomes `{"a": 1, "b.c": 2}`. Nested
    ones come last."""
    simple: dict[str, Any] = {}
    nested: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            nested |= {f"{key}.{inner}": of_inner for inner, of_inner in flat(value).items()}
        else:
            simple[key] = value
    return simple | nested


class TaskPart(Stored):
    """The tasks."""

    name: Name | list[Name]
    """What was asked for: a task, a group, or a list of them."""
    tasks: list[Name]
    """The tasks that were evaluated, those of groups one by one."""
    data: dict[str, Any] = Field({})
    """The source of each task's data."""
    metric: str | None = None
    """The headline metric of the command that computed the run; None with predict_only."""

    @property
    def names(self) -> list[str]:
        """The tasks and groups that were asked for."""
        return [self.name] if isinstance(self.name, str) else self.name


Number = int | float | None


class Cost(Stored):
    """What the answers cost, over all sessions of a run (docs/results.md). A number may be
    missing."""

    wall_seconds: Number = None
    load_seconds: Number = None
    tokens_in: Number = None
    tokens_out: Number = None
    near_ties: Number = None
    cut_prompts: Number = None
    cut_reasoning: Number = None
    decoded_in_context: Number = None
    eos_added: Number = None
    bos_scored: Number = None
    no_end_token: Number = None
    tokens_per_second: Number = None
    peak_memory_bytes: Number = None
    peak_working_bytes: Number = None
    weight_bytes: Number = None
    energy_joules: Number = None
    device: str | None = None

    def known(self) -> dict[str, Any]:
        """The keys that the file has, with their values."""
        return self.model_dump(exclude_unset=True)


class OtherRun(Stored):
    """A run that a run is compared with, on the same documents."""

    run_id: Name
    results: Scores = Field({})
    paired: Comparisons = Field({}, exclude_if=not_)
    """Empty for the base model's run, whose differences are `RunBlock.paired`."""
