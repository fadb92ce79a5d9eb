"""The methods by name. A method is a context manager that yields a language model for lm-eval.

Adding one: a module with a `Method` subclass and its `Config`, a line in `METHODS`, and `conf/method/<name>.yaml`.
Packages of others register theirs under the entry-point group `moe_lab.methods`.
"""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from importlib.metadata import entry_points

from moe_lab.errors import ConfigError
from moe_lab.methods.method import Method

METHODS = {
    "base": "moe_lab.methods.base:Base",
    "roe": "moe_lab.methods.roe.method:RoE",
    "c2r": "moe_lab.methods.c2r.method:C2R",
    "c3po": "moe_lab.methods.c3po.method:C3PO",
    "icl": "moe_lab.methods.icl.method:ICL",
    "prefix-tuning": "moe_lab.methods.virtual_tokens.method:PrefixTuning",
    "soft-prompt": "moe_lab.methods.virtual_tokens.method:SoftPrompt",
    "finetune-freeze": "moe_lab.methods.finetune_freeze.method:FinetuneFreeze",
    "pretrain": "moe_lab.methods.pretrain:Pretrain",
}


def method_names() -> list[str]:
    """All names that `method=` takes, plug-ins included."""
    return sorted({*METHODS, *(entry.name for entry in entry_points(group="moe_lab.methods"))})


def methods_with(key: str) -> list[str]:
    """The methods that have a key."""
    return [name for name in method_names() if key in {f.name for f in fields(get_method(name).Config)}]


def get_method(name: str) -> type[Method]:
    """The class of a method. Raises ConfigError with the known names for an unknown one."""
    if name in METHODS:
        module, _, attribute = METHODS[name].partition(":")
        return getattr(import_module(module), attribute)
    for entry in entry_points(group="moe_lab.methods", name=name):
        return entry.load()
    raise ConfigError(f"Unknown method {name!r}. Methods: {', '.join(method_names())}.")
