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
        known = tuple(each for each in argv if not each.startswith(OUTPUT))
        output = [each.removeprefix(OUTPUT) for each in argv if each.startswith(OUTPUT)]
        if len(output) != 1 or len(known) == len(argv):
            return compose(argv)
        if known not in cells:
            cells[known] = compose(argv)
        return [_with_output(cell, output[0]) for cell in cells[known]]

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
        f"{OUTPUT}{output}" if each.startswith(OUTPUT) else each for each in cell.overrides
    ]
    return replace(cell, values=cell.values | {"output_dir": output}, overrides=overrides)
