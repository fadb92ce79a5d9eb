"""What stored files must look like to be read: types at every place that readers use, and nothing about the rest.

A results.json may come from anywhere. Its readers index into it freely, so that it is checked here, once, as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from moe_lab.config.terminal import one_line


@dataclass(frozen=True)
class Kind:
    """Values of one kind."""

    name: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class Each:
    """A mapping with any keys, whose values have one shape."""

    shape: Any


@dataclass(frozen=True)
class Either:
    """One of several shapes."""

    shapes: tuple[Any, ...]


ANY = Kind("anything", lambda value: True)
TEXT = Kind("a text", lambda value: isinstance(value, str))
NAME = Kind("a name", lambda value: isinstance(value, str) and 0 < len(value) <= LONGEST_NAME)
WHOLE = Kind("a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool))
NUMBER = Kind(
    "a number of usual size",
    lambda value: isinstance(value, int | float) and not (abs(value) > LARGEST),  # NaN passes
)
LONGEST_NAME = 1000
"""Characters of the name of a model, a method, a task or a run."""
MOST_LEVELS = 10
MOST_WAYS = 10**6
LARGEST = 1e300
"""Sums and squares of what is smaller stay finite numbers for every statistic that is computed here."""
NULL = Kind("null", lambda value: value is None)
LIMITS = Kind(
    "two limits",
    lambda value: isinstance(value, list) and len(value) == 2 and all(map(_is_limit, value)),
)
NAMES = Either((NAME, [NAME]))
"""One name or several."""
MAPPING = Each(ANY)


def or_null(shape: Any) -> Either:
    return Either((NULL, shape))


PAIRED = {
    "n?": or_null(WHOLE),
    "difference?": or_null(NUMBER),
    "ci95?": or_null(LIMITS),
    "p_mcnemar?": or_null(NUMBER),
    "p_randomization?": or_null(NUMBER),
    "to_right?": or_null(WHOLE),
    "to_wrong?": or_null(WHOLE),
}
COMPARED = {"run_id": NAME, "results?": Each(MAPPING), "paired?": Each(Each(PAIRED))}
LM_EVAL = {
    "results": Each(MAPPING),
    "configs?": Each({"metric_list?": or_null([{"metric?": ANY}])}),
    "config?": or_null(MAPPING),
    "groups?": MAPPING,
    "group_subtasks?": Each([TEXT]),
    "versions?": MAPPING,
    "n-shot?": MAPPING,
    "n-samples?": Each(MAPPING),
    "higher_is_better?": Each(MAPPING),
}
"""What lm-eval writes into a results file."""
BLOCK = {
    "run_id": NAME,
    "model": {"name": NAME, "commit?": or_null(TEXT)},
    "method": {"name": NAME, "config?": MAPPING},
    "task": {"name": NAMES, "tasks": [NAME], "metric?": or_null(TEXT)},
    "versions": MAPPING,
    "samples": Each([WHOLE]),
    "overrides?": [TEXT],
    "seed?": or_null(WHOLE),
    "intervals?": Each(Each(or_null(LIMITS))),
    "baseline?": or_null(COMPARED),
    "paired?": Each(Each(PAIRED)),
    "compared?": Each(COMPARED),
    "cost?": Each(ANY),
    "tuning?": {"study?": or_null(TEXT), "model?": TEXT},
    "judges?": Each({"metrics": [TEXT]}),
}
"""The block `moe_lab` of a results.json. It may lack what other versions did not write."""
REPORT = {"temperatures?": or_null([NUMBER])}
"""What a method reports of itself, in a block of its own name (`Method.report`)."""
RESULTS = LM_EVAL | {"moe_lab": BLOCK}
LINE = {
    "doc_id": WHOLE,
    "filter": TEXT,
    "metrics": [TEXT],
    "arguments?": Each({"arg_0?": ANY}),
    "resps?": [[ANY]],
    "filtered_resps?": [ANY],
}
"""A line of a sample log."""
LM_EVAL_LINE = LINE | {"doc_hash": TEXT, "prompt_hash": TEXT, "target_hash": TEXT}
STUDY = {"model": NAME, "task": NAME, "tuning": NAME, "metric": NAME, "seed?": or_null(WHOLE)}
PROFILE = {"trials?": or_null(WHOLE), "score?": or_null(NUMBER)}
TRAINING = {
    "method?": NAME,
    "recipe?": or_null(MAPPING),
    "seed?": or_null(WHOLE),
    "steps?": or_null(WHOLE),
    "validation?": or_null({"loss?": NUMBER, "losses?": [{"loss?": NUMBER}]}),
}
CONFIG = {"model": {"name": NAME}, "method": {"name": NAME}, "task": {"name": NAMES}, "seed?": or_null(WHOLE)}


def report_key(method: str) -> str:
    """The key of a method's own block."""
    return method.replace("-", "_")


def results_misfit(results: Any) -> str | None:
    """What is wrong with the content of a results.json of this package; None if it can be read."""
    if (problem := misfit(results, RESULTS)) is not None:
        return problem
    block = results["moe_lab"]
    key = report_key(block["method"]["name"])
    if (problem := misfit({"moe_lab": block}, {"moe_lab": {f"{key}?": or_null(REPORT)}})) is not None:
        return problem
    if problem := _odd_names(results) or _odd_groups(results):
        return problem
    requested = block["task"]["name"]
    requested = [requested] if isinstance(requested, str) else requested
    names = {*requested, *results.get("groups", {}), *block["task"]["tasks"]}
    for name in names & results["results"].keys():
        for task in leaves(results, block["samples"], name):
            if task not in block["samples"]:
                return f"moe_lab.samples has no {task}"
    if unscored := block["samples"].keys() - results["results"].keys():
        return f"results has no {min(unscored)}"
    return None


def lm_eval_misfit(results: Any) -> str | None:
    """As `results_misfit`, of a results file that lm-eval wrote."""
    return misfit(results, LM_EVAL) or _odd_names(results) or _odd_groups(results)


def leaves(results: Mapping[str, Any], samples: Any, name: str) -> list[str]:
    """A task itself; the tasks of a group, and of the groups in it."""
    children = results.get("group_subtasks", {}).get(name, [])
    if name in samples or not children:
        return [name]
    return [task for child in children for task in leaves(results, samples, child)]


def _odd_names(results: dict[str, Any]) -> str | None:
    """A task whose name has control characters: messages name tasks, and such a name could begin a line of its own."""
    odd = [name for name in {**results["results"], **results.get("configs", {})} if one_line(name) != name]
    return f"a task is called {odd[0]!r}" if odd else None


def _odd_groups(results: dict[str, Any]) -> str | None:
    """A group that holds itself, or more levels or ways to its tasks than anything real has."""
    groups = results.get("group_subtasks", {})
    for group in groups:
        level = Counter({group: 1})
        for _ in range(MOST_LEVELS):
            below: Counter[str] = Counter()
            for name, ways in level.items():
                for child in groups.get(name, ()):
                    below[child] += ways
            level = below
            if level.total() > MOST_WAYS:
                break
        if level:
            return f"group_subtasks.{group} holds itself, or too many groups"
    return None


def _is_limit(value: Any) -> bool:
    return value is None or NUMBER.holds(value)


def misfit(value: Any, shape: Any) -> str | None:
    """The first place where a value does not have a shape, in words; None if it has it.

    Shapes: a Kind; a dict with the shape of each key, where `key?` may be missing; a list with the shape of all
    items; Each; Either.
    """
    return next(_misfits(value, shape, ""), None)


def _misfits(value: Any, shape: Any, place: str) -> Iterator[str]:
    where = place.lstrip(".") or "it"
    if isinstance(shape, Kind):
        if not shape.holds(value):
            yield f"{where} is not {shape.name}"
    elif isinstance(shape, Either):
        found = [next(_misfits(value, each, place), None) for each in shape.shapes]
        if None not in found:
            yield found[-1] or f"{where} has an unexpected type"
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{where} is no list"
            return
        for i, item in enumerate(value):
            yield from _misfits(item, shape[0], f"{place}[{i}]")
    elif not isinstance(value, dict):
        yield f"{where} is no mapping"
    elif isinstance(shape, Each):
        for key, item in value.items():
            yield from _misfits(item, shape.shape, f"{place}.{key}")
    else:
        yield from _misfits_of_keys(value, shape, place)


def _misfits_of_keys(value: dict[str, Any], shape: dict[str, Any], place: str) -> Iterator[str]:
    for key, inner in shape.items():
        name = key.removesuffix("?")
        if name in value:
            yield from _misfits(value[name], inner, f"{place}.{name}")
        elif name == key:
            yield f"{place.lstrip('.')}{'.' if place else ''}{name} is missing"


# Plain values of a JSON file as frozen dataclasses


def typed(kind: Any, value: Any) -> Any:
    """The value as an instance of a type: a dataclass from a mapping, and what its fields hold, lists and tuples too.

    Keys that a dataclass does not have are left out. Raises ValueError for a value of another type, and a missing key.
    """
    origin, inner, of_fields = _form(kind)
    if origin in (Union, UnionType):
        if value is None and type(None) in inner:
            return None
        [kind] = [one for one in inner if one is not type(None)]
        return typed(kind, value)
    if isinstance(value, dict):
        if hasattr(kind, "from_json"):
            return kind.from_json(value)
        if of_fields is not None:
            if lacking := [
                name for name, (_, required) in of_fields.items() if required and name not in value
            ]:
                raise ValueError(f"{lacking[0]} is missing")
            known = ((name, value[name]) for name in of_fields if name in value)
            return kind(**{name: typed(of_fields[name][0], one) for name, one in known})
        if origin is dict:
            return {key: typed(inner[1], one) for key, one in value.items()}
    if origin is list and isinstance(value, list):
        return [typed(inner[0], one) for one in value]
    if origin is tuple and isinstance(value, list) and (inner[-1] is ... or len(inner) == len(value)):
        return tuple(typed(inner[0], one) for one in value)
    if kind is Any or (isinstance(kind, type) and isinstance(value, (int, float) if kind is float else kind)):
        return value
    raise ValueError(f"{value!r:.40} is no {getattr(kind, '__name__', kind)}")


@cache  # a log of answers has a hundred thousand lines
def _form(kind: Any) -> tuple[Any, tuple[Any, ...], dict[str, tuple[Any, bool]] | None]:
    """What a type is of, its parts, and of a dataclass the type of each field and whether it is required."""
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return get_origin(kind), get_args(kind), None
    hints = get_type_hints(kind)
    own = [one for one in fields(kind) if one.init]
    required = {one.name: one.default is MISSING and one.default_factory is MISSING for one in own}
    return None, (), {name: (hints[name], needed) for name, needed in required.items()}
