"""The methods by name. A method is a context manager that yields a language model for lm-eval.

To add one, write `conf/method/<name>.yaml`, and here a module of the same name (`<name>.py` or
`<name>/method.py`, "_" for "-") with a `Method` subclass whose `Config` has this name. A module
with several methods needs entries in `IN_OTHER_MODULES`. Plug-ins register their methods under the
entry-point group `moe_lab.methods`, and have the YAML as `conf/method/<name>.yaml` in their
package.
"""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from moe_lab.config.catalog import METHODS, option_files, resource_folder
from moe_lab.config.text_keys import Chosen, TextKeys, text_annotations
from moe_lab.errors import ConfigError
from moe_lab.methods.method import Method

OWN_NAMES = tuple(option_files("method", [resource_folder("conf")]))
"""The options of `conf/method/`."""
IN_OTHER_MODULES = {
    "soft-prompt": "virtual_tokens",
    "prefix-tuning": "virtual_tokens",
    "top-k": "expert_counts",
    "top-p": "expert_counts",
}
"""Modules of methods that share a module, by method."""


def method_names() -> list[str]:
    """All names that `method=` takes, plug-ins included."""
    plugins = {entry.name for entry in entry_points(group=METHODS)}
    return sorted({*OWN_NAMES, *plugins})


def methods_with(key: str) -> list[str]:
    """The methods that have a key."""
    names = []
    for name in method_names():
        if any(field.name == key for field in fields(get_method(name).Config)):
            names.append(name)
    return names


def methods_with_expert_metrics() -> list[str]:
    """The methods that `metrics=expert` takes."""
    return [name for name in method_names() if get_method(name).expert_metrics != "none"]


def get_method(name: str) -> type[Method]:
    """The class of a method. Raises ConfigError with the known names for an unknown one."""
    if name in OWN_NAMES:
        return _own_method(name)
    for entry in entry_points(group=METHODS, name=name):
        return entry.load()
    raise ConfigError(f"Unknown method {name!r}. Methods: {', '.join(method_names())}.")


def config_class(name: str, keys: Mapping[str, Any]) -> type[Method.Config]:
    """The class of a method's configuration, for its given keys."""
    method = get_method(name)
    return method.config_class(keys) if method.config_class else method.Config


def text_keys_of_methods(chosen: Chosen) -> dict[str, Any]:
    """The annotations of the keys whose values keep the characters that were typed, by key.

    They are those of `model.recipe`, of the chosen methods, and of the function of `method=policy`.
    If no known method is chosen (none is named, or an option of the user's own), they are those of
    all methods of this package.
    """
    known = method_names()
    names = tuple(name for name in chosen.methods if name in known)
    keys = _text_keys(names or OWN_NAMES)
    if chosen.policy is None:
        return keys
    return keys | text_annotations(config_class("policy", {"policy": chosen.policy}), "method.")


@cache
def _text_keys(names: tuple[str, ...]) -> dict[str, Any]:
    keys = text_annotations(get_method("pretrain").Config, "model.recipe.")
    for name in names:
        keys |= text_annotations(get_method(name).Config, "method.")
    return keys


TEXT_KEYS = TextKeys(text_keys_of_methods)
"""The text keys of the schema and of all methods."""


def _own_method(name: str) -> type[Method]:
    module_name = IN_OTHER_MODULES.get(name, name.replace("-", "_"))
    place = f"{__name__}.{module_name}"
    spec = find_spec(place)
    assert spec is not None, f"method={name} is in {place}"
    module = import_module(f"{place}.method" if spec.submodule_search_locations else place)
    for value in vars(module).values():
        is_method = isinstance(value, type) and issubclass(value, Method)
        if is_method and getattr(value.Config, "name", None) == name:
            return value
    raise AssertionError(f"{place} has no method {name}")
