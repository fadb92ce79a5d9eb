"""Types of the content of results files, checked by pydantic where a file is read. It may have other keys, too.

A results.json may come from another machine or version. Its readers index into it freely, so that it is checked once,
as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, NotRequired

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

Name = Annotated[str, Field(min_length=1, max_length=1000)]
"""The name of a model, a method, a task or a run."""
Limits = Annotated[list[float | None], Field(min_length=2, max_length=2)]
"""A 95% interval."""


class Paired(TypedDict, total=False):
    """A difference to another run."""

    n: int | None
    difference: float | None
    ci95: Limits | None
    p_mcnemar: float | None
    p_randomization: float | None
    to_right: int | None
    to_wrong: int | None


class Compared(TypedDict):
    """The scores of the run that a result is compared with."""

    run_id: Name
    results: NotRequired[dict[str, dict[str, Any]]]
    paired: NotRequired[dict[str, dict[str, Paired]]]


class Model(TypedDict):
    """A model; `dtype`, `experts` and the like stand beside."""

    name: Name
    commit: NotRequired[str | None]


class Method(TypedDict):
    """A method with its keys."""

    name: Name
    config: NotRequired[dict[str, Any]]


class Task(TypedDict):
    """The tasks that were asked for, and those that were evaluated."""

    name: Name | list[Name]
    tasks: list[Name]
    metric: NotRequired[str | None]


class Tuning(TypedDict, total=False):
    """The study whose values a run has."""

    study: str | None
    model: str


class Judge(TypedDict):
    """The verdicts of a judge."""

    metrics: list[str]


class Block(TypedDict):
    """The block `moe_lab` of a results.json. It may lack what other versions did not write."""

    run_id: Name
    model: Model
    method: Method
    task: Task
    versions: dict[str, Any]
    samples: dict[str, list[int]]
    overrides: NotRequired[list[str]]
    seed: NotRequired[int | None]
    intervals: NotRequired[dict[str, dict[str, Limits | None]]]
    baseline: NotRequired[Compared | None]
    paired: NotRequired[dict[str, dict[str, Paired]]]
    compared: NotRequired[dict[str, Compared]]
    cost: NotRequired[dict[str, Any]]
    tuning: NotRequired[Tuning]
    judges: NotRequired[dict[str, Judge]]


class LmEvalResults(TypedDict):
    """What lm-eval writes into a results file."""

    results: dict[str, dict[str, Any]]
    configs: NotRequired[dict[str, dict[str, Any]]]
    config: NotRequired[dict[str, Any] | None]
    groups: NotRequired[dict[str, Any]]
    group_subtasks: NotRequired[dict[str, list[str]]]
    higher_is_better: NotRequired[dict[str, dict[str, Any]]]


class Results(LmEvalResults):
    """A results.json of this package."""

    moe_lab: Block


def misfit(value: Any, shape: Any) -> str | None:
    """The first place where a value does not have a type of this module, in words; None if it has it."""
    try:
        _adapter(shape).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "it"
        return f"{place}: {first['msg']}"
    return None


def typed(kind: Any, value: Mapping[str, Any]) -> Any:
    """The mapping as an instance of a dataclass, its fields too. Keys that it does not have are left out.

    Raises ValueError.
    """
    return _adapter(kind).validate_python(value)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def report_key(method: str) -> str:
    """The key of a method's own block."""
    return method.replace("-", "_")


def leaves(results: Mapping[str, Any], samples: Any, name: str) -> list[str]:
    """A task itself; the tasks of a group, and of the groups in it."""
    children = results.get("group_subtasks", {}).get(name, [])
    if name in samples or not children:
        return [name]
    return [task for child in children for task in leaves(results, samples, child)]
