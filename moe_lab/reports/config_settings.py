"""The settings in which a command's configurations differ, as columns of a data frame."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from moe_lab.results.model import RunResult
from moe_lab.results.run_parts import flat

if TYPE_CHECKING:
    import pandas as pd

    from moe_lab.config.schema import Config

SHOWN_ELSEWHERE = (
    "model.name",
    "method.name",
    "task.name",
    "task.metric",
    "seed",
    "seeds",
    "overrides",
)
"""Settings that are columns already, or that repeat others."""


def settings_of(
    configs: Sequence[Config], asked: Sequence[Config], all_settings: bool = False
) -> list[dict[str, Any]]:
    """The settings of each configuration by `group.key`.

    They are those whose values differ among `asked`, or all of them. A key of `model`, `method` or
    `task` differs if two configurations with the same option have other values of it: what only
    follows from another option is no setting of its own.
    """
    asked_settings = [flat(asdict(config)) for config in asked]
    if all_settings:
        keys = _all_keys(asked_settings)
    else:
        keys = _differing(asked_settings)
    keys = [key for key in keys if key not in SHOWN_ELSEWHERE]

    shown = []
    for config in configs:
        settings = flat(asdict(config))
        shown.append({key: settings.get(key) for key in keys})
    return shown


def _all_keys(configurations: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys of all configurations, each once."""
    keys: dict[str, None] = {}
    for settings in configurations:
        keys |= dict.fromkeys(settings)
    return list(keys)


def _differing(configurations: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys with several values in configurations with the same option of the key's group."""
    # values may be lists, and 1 and True are two values: their texts are compared
    values: dict[str, dict[str, set[str]]] = {}
    for settings in configurations:
        for key, value in settings.items():
            option = repr(_option(settings, key))
            values.setdefault(key, {}).setdefault(option, set()).add(repr(value))

    differing = []
    for key, by_option in values.items():
        if any(len(of_option) > 1 for of_option in by_option.values()):
            differing.append(key)
    return differing


def _option(settings: Mapping[str, Any], key: str) -> Any:
    """The option of a key's group, such as `roe` for `method.n`; None for a key without a group."""
    group, dot, _ = key.partition(".")
    if not dot:
        return None
    return settings.get(f"{group}.name")


def settings_by_run(
    results: Sequence[RunResult],
    configs: Mapping[str, Config],
    asked: Sequence[Config],
    all_settings: bool = False,
) -> dict[str, dict[str, Any]]:
    """The settings of each result's configuration (`settings_of`) by run id."""
    run_ids = [result.run_id for result in results]
    settings = settings_of([configs[run_id] for run_id in run_ids], asked, all_settings)
    return dict(zip(run_ids, settings, strict=True))


def with_counts(frame: pd.DataFrame, settings: Collection[Mapping[str, Any]]) -> pd.DataFrame:
    """The frame, in which settings that are integers, or None, in every run are Int64 columns.

    A setting that is None in every run stays as it is.

    Args:
        settings: the settings of each run by name; each name is a column of the frame.
    """
    names = next(iter(settings), {})
    counts = []
    for name in names:
        values = [run_settings[name] for run_settings in settings]
        known = [value for value in values if value is not None]
        if known and all(type(value) is int for value in known):
            counts.append(name)
    return frame.astype(dict.fromkeys(counts, "Int64"))
