"""The stored form of a configuration. A text that was typed as an interpolation stays one, because it may be a secret.

`system_instruction=${oc.env:INSTRUCTION}` is stored as typed. The run and its id use the value. Numbers are stored as
numbers, because tables and pages read them.
"""

import json
from dataclasses import asdict
from typing import Any

from moe_lab.config.schema import Config


def interpolations(raw: dict[str, Any]) -> dict[str, Any]:
    """The unresolved values with interpolations by key: `{"logger.tags": ["a", "${oc.env:TAG}"]}`."""
    flat: dict[str, Any] = {}
    for group, section in raw.items():
        flat |= (
            {f"{group}.{k}": v for k, v in section.items()} if isinstance(section, dict) else {group: section}
        )
    return {key: value for key, value in flat.items() if "${" in str(value)}


def recorded(config: Config) -> dict[str, Any]:
    """The configuration as plain values, with interpolations instead of their texts."""
    values = asdict(config)
    for key, typed in values.pop("interpolated").items():
        group, _, name = key.rpartition(".")
        section = values[group] if group else values
        if not isinstance(section[name], int | float):
            section[name] = typed
    return values


def without_values(content: Any, config: Config) -> Any:
    """Plain values without the values of interpolations. Names of tasks stay, because they are keys."""
    values = asdict(config)
    text = json.dumps(content)
    for key, typed in config.interpolated.items():
        group, _, name = key.rpartition(".")
        value = (values[group] if group else values)[name]
        lists = (value, typed) if isinstance(typed, list) else ([value], [typed])
        for own, raw in zip(*lists, strict=True):
            # a shorter one would also be found within words
            if isinstance(own, str) and own != raw and len(own) >= 4 and group != "task":
                text = text.replace(json.dumps(own)[1:-1], json.dumps(raw)[1:-1])
    return json.loads(text) if config.interpolated else content
