"""What children find done already: the composed command line, the tasks' documents, the embedded
model."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

OUTPUT = "output_dir="


@contextlib.contextmanager
def warm() -> Iterator[None]:
    """Within this, what a command of this process composed or loaded is there in all children that
    come later."""
    import moe_lab.config.compose as composing
    import moe_lab.models.load as loading
    import moe_lab.tasks.loading as tasks

    compose = composing.compose
    load = loading.load_model
    cells: dict[tuple[str, ...], Any] = {}
    models: dict[str, Any] = {}

    def composed(argv: list[str]) -> Any:
        known_overrides = tuple(override for override in argv if not override.startswith(OUTPUT))
        output = [override.removeprefix(OUTPUT) for override in argv if override.startswith(OUTPUT)]
        if len(output) != 1 or len(known_overrides) == len(argv):
            return compose(argv)
        if known_overrides not in cells:
            cells[known_overrides] = compose(argv)
        return [_with_output(cell, output[0]) for cell in cells[known_overrides]]

    def loaded(model: Any, **options: Any) -> Any:
        if model.path is not None:
            return load(model, **options)
        key = f"{model} {options}"
        if key not in models:
            models[key] = load(model, **options)
        return replace(models[key], model=copy.deepcopy(models[key].model))

    with (
        tasks.task_cache(),
        patch.object(composing, "compose", composed),
        patch.object(loading, "load_model", loaded),
        patch.object(tasks, "task_cache", contextlib.nullcontext),
    ):
        yield


def _with_output(cell: Any, output: str) -> Any:
    overrides = [
        f"{OUTPUT}{output}" if override.startswith(OUTPUT) else override
        for override in cell.overrides
    ]
    return replace(cell, values=cell.values | {"output_dir": output}, overrides=overrides)
