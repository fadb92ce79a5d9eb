"""Data sets that the hub has in other columns than a task reads: a task's `custom_dataset` without
local files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import Dataset

Columns = dict[str, str | list[Any]]
"""Column -> a template of the hub's columns ("{Body} {Question}"), or [column, values]: the index
of its value."""


def published(
    *,
    path: str,
    columns: Columns,
    name: str | None = None,
    data_files: dict[str, str] | None = None,
    splits: tuple[str, ...] = ("test",),
    **_: Any,
) -> dict[str, Dataset]:
    """{"test": the rows of `splits`, one after the other, in other columns}.

    Args: the keys of a task's `dataset_kwargs`.
        path: id of the hub, with its configuration `name`, or the files of its splits.
    """
    from datasets import Dataset, load_dataset

    loaded = load_dataset(path, name, data_files=data_files)
    rows = []
    for split in splits:
        for row in loaded[split]:
            rows.append({column: _value(template, row) for column, template in columns.items()})
    return {"test": Dataset.from_list(rows)}


def _value(template: str | list[Any], row: dict[str, Any]) -> str | int:
    """A number has no ".0", as in the files of `data_dir`."""
    if isinstance(template, str):
        return template.format(**row).strip().removesuffix(".0")
    column, values = template
    return int(values.index(row[column]))


def hub_id(config: dict[str, Any]) -> str | None:
    """The id of the data set that a task configuration names; None if it names none."""
    path = config.get("dataset_path") or (config.get("dataset_kwargs") or {}).get("path")
    return None if path is None else str(path)
