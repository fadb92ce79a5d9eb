"""The stored form of a configuration. A text that was typed as an interpolation stays one, because it may be a secret.

`system_instruction=${oc.env:INSTRUCTION}` is stored as typed. The run and its id use the value. Numbers are stored as
numbers, because tables and pages read them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from moe_lab.config.schema import Config


def interpolations(raw: Any) -> Any:
    """The interpolations among unresolved values, at their places: by key, and in lists by index. None without any."""
    if isinstance(raw, str):
        return raw if "${" in raw else None
    if not isinstance(raw, dict | list):
        return None
    items = raw.items() if isinstance(raw, dict) else enumerate(raw)
    return {place: found for place, value in items if (found := interpolations(value)) is not None} or None


def recorded(config: Config) -> dict[str, Any]:
    """The configuration as plain values, with interpolations instead of their texts."""
    values = asdict(config)
    texts = values.pop("interpolated")
    found: dict[str, Any] = _recorded(values, texts)
    return found


def without_values(content: Any, config: Config) -> Any:
    """Plain values without the values of interpolations. Names of tasks stay, because they are keys."""
    texts = {key: text for key, text in config.interpolated.items() if key != "task"}
    pairs = list(_pairs(asdict(config), texts)) if texts else []
    return _replaced(content, pairs) if pairs else content


def _recorded(value: Any, texts: Any) -> Any:
    if isinstance(texts, str):
        return texts if isinstance(value, str) else value
    if isinstance(value, dict):
        return {key: _recorded(one, texts[key]) if key in texts else one for key, one in value.items()}
    if isinstance(value, list):
        return [_recorded(one, texts[i]) if i in texts else one for i, one in enumerate(value)]
    return value


def _pairs(value: Any, texts: Any) -> list[tuple[str, str]]:
    """(value, its interpolation) of texts."""
    if isinstance(texts, str):
        # a shorter one would also be found within words
        return [(value, texts)] if isinstance(value, str) and len(value) >= 4 else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [pair for key, one in items if key in texts for pair in _pairs(one, texts[key])]


def _replaced(content: Any, pairs: list[tuple[str, str]]) -> Any:
    if isinstance(content, str):
        for value, text in pairs:
            content = content.replace(value, text)
        return content
    if isinstance(content, dict):
        return {key: _replaced(value, pairs) for key, value in content.items()}
    return [_replaced(one, pairs) for one in content] if isinstance(content, list) else content
