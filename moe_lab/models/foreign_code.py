"""Code that a model's folder brings along (`auto_map`). It is never run, and nobody is asked whether it may."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from moe_lab.errors import ModelError

ADAPTER = "adapter_config.json"
"""transformers loads such an adapter with a model that has one in its folder."""

NO_CODE: dict[str, Any] = {"trust_remote_code": False}
"""An option of every `from_pretrained`. Without it transformers asks on the terminal, and runs the code on a `y`."""


def refuse_code(error: Exception, source: str, file: Path) -> None:
    """Raise ModelError if transformers refused to load `file` (config.json, tokenizer_config.json) for its code."""
    if isinstance(error, ValueError) and "custom code" in str(error):
        raise ModelError(
            f"{source} needs code of its own ({file.name} names {_named_code(file)}), which is never run. Use a model "
            "that transformers has built in (docs/models.md)."
        ) from error


def refuse_adapter(folder: Path, source: str) -> None:
    """Raise ModelError for an adapter in a model's folder: peft imports modules that its configuration names."""
    if (folder / ADAPTER).exists():
        raise ModelError(
            f"{source} has an adapter beside its weights ({ADAPTER}), which is not loaded: it may name code to import. "
            "Merge it into the weights first (peft's merge_and_unload), or remove it."
        )


def _named_code(file: Path) -> str:
    """The classes of `auto_map` as a text."""
    classes = json.loads(file.read_text(encoding="utf-8")).get("auto_map", {})
    named = classes.values() if isinstance(classes, dict) else classes
    flat = [name for each in named for name in (each if isinstance(each, list) else [each])]
    return ", ".join(dict.fromkeys(str(name) for name in flat if name))
