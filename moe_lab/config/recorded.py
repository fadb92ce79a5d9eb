"""The stored form of a configuration. A text that was typed as an interpolation stays one, because it may be a secret.

`system_instruction=${oc.env:INSTRUCTION}` is stored as typed. The run and its id use the value. Numbers are stored as
numbers, because tables and pages read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

from moe_lab.config.schema import Config


def interpolations(raw: Any) -> Any:
    """The interpolations among unresolved values, at their places: by key, and in lists by index. None without any."""
    if isinstance(raw, str):
        return raw if "${" in raw else None
    return {
        place: found for place, value in _items(raw) if (found := interpolations(value)) is not None
    } or None


def recorded(config: Config) -> dict[str, Any]:
    """The configuration as plain values, with interpolations instead of their texts."""
    values = asdict(config)
    texts = values.pop("interpolated")
    found: dict[str, Any] = _recorded(values, texts)
    return found


def without_values(content: Any, config: Config) -> Any:
    """Plain values without the values of interpolations. Names of tasks stay, because they are keys."""
    texts = {key: text for key, text in config.interpolated.items() if key != "task"}
    values = asdict(config)
    both = zip(_leaves(values), _leaves(_recorded(values, texts)), strict=True) if texts else ()
    # a shorter one would also be found within words
    pairs = [(value, text) for value, text in both if value != text and len(value) >= 4]
    return _replaced(content, pairs) if pairs else content


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()


def _recorded(value: Any, texts: Any) -> Any:
    if isinstance(texts, str):
        return texts if isinstance(value, str) else value
    found = {key: _recorded(one, texts[key]) if key in texts else one for key, one in _items(value)}
    return found if isinstance(value, dict) else list(found.values()) if isinstance(value, list) else value


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for _, one in _items(value):
        yield from _leaves(one)


def _replaced(content: Any, pairs: list[tuple[str, str]]) -> Any:
    if isinstance(content, str):
        for value, text in pairs:
            content = content.replace(value, text)
        return content
    if isinstance(content, dict):
        return {key: _replaced(value, pairs) for key, value in content.items()}
    return [_replaced(one, pairs) for one in content] if isinstance(content, list) else content
