"""The lines of a plan's table."""

from collections.abc import Sequence
from dataclasses import dataclass

from moe_lab.config.schema import Config
from moe_lab.reports.columns import Column, count, numbers, texts
from moe_lab.reports.labels import settings
from moe_lab.runs.planning.memory import GIGABYTE

NAMES = {"model": "", "weights": "", "method": "", "task": "", "seed": "-"}
"""Columns with names, and what an empty cell of each shows."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the plan. What is not known before a study or a training is None."""

    config: Config
    state: str
    run: str | None = None
    """The first eight characters of its id."""
    method: str | None = None
    """Shown in place of the configuration's method."""
    seed: str | None = None
    """None: of a method without randomness."""
    examples: int | None = None
    tokens: int | None = None
    """Forward tokens still to compute. Those of a study are an upper bound: its trials share what
    does not depend on them."""
    gpu_memory: int | None = None
    """Planned bytes; None for embedded models."""
    one_device: str | None = None
    """Why a training has to fit on one device (`TrainingMethod.one_device`)."""

    @property
    def names(self) -> dict[str, str | None]:
        """Model, weights, method, task and seed."""
        config = self.config
        return {
            "model": config.model.name,
            "weights": config.model.path,
            "method": self.method or config.method.name,
            "task": task_name(config),
            "seed": self.seed,
        }


def task_name(config: Config) -> str:
    """The task's name, or its tasks' names joined by commas."""
    name = config.task.name
    if isinstance(name, str):
        return name
    return ",".join(name)


def columns_of(rows: Sequence[Row]) -> list[Column]:
    """The columns of the table. What is not known of a row is an empty cell, or a dash for its id
    and seed."""
    return [*_name_columns(rows), *_work_columns(rows)]


def _name_columns(rows: Sequence[Row]) -> list[Column]:
    """The columns that say what the rows are: id, names, and the settings in which they differ."""
    ids = [row.run or "-" for row in rows]
    columns = [Column(heading="run", cells=ids, name=True)]
    for key, empty in NAMES.items():
        cells = [row.names[key] or empty for row in rows]
        columns.append(Column(heading=key, cells=cells, name=True))
    no_seeds = [None] * len(rows)
    labels = settings([row.config.overrides for row in rows], no_seeds)
    columns.append(Column(heading="settings", cells=labels, name=True))
    return columns


def _work_columns(rows: Sequence[Row]) -> list[Column]:
    """Documents, tokens and memory of the rows, and their state."""
    documents = [row.examples for row in rows]
    tokens = [row.tokens for row in rows]
    states = [row.state for row in rows]
    gigabytes = []
    for row in rows:
        gigabytes.append(None if row.gpu_memory is None else row.gpu_memory / GIGABYTE)
    return [
        numbers("documents", documents, count, spare=2),
        numbers("forward tokens left (estimated)", tokens, count),
        numbers("memory (GB)", gigabytes, "{:.3g}".format, spare=1),
        texts("state", states),
    ]
