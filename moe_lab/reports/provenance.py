"""The origin of a run's numbers: its command, seed, versions and documents."""

import shlex
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from moe_lab.results.model import RunResult

Value = TypeVar("Value", bound=Hashable)


@dataclass(frozen=True)
class Provenance:
    """The origin of a run's numbers."""

    run_id: str
    command: str
    seed: int | None
    versions: dict[str, str | None]
    documents: dict[str, str]
    """Document numbers by task, as `ranges` writes them."""

    @classmethod
    def of(cls, run: RunResult) -> Self:
        documents = {task: ranges(numbers) for task, numbers in run.samples.items()}
        typed = command(run.overrides, run.config_dirs)
        return cls(run.run_id, typed, run.seed, dict(run.versions), documents)


def command(overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> str:
    """The command line of some overrides, quoted for a shell; `config_dirs` are the folders of `--config-dir`."""
    flags = [part for folder in config_dirs for part in ("--config-dir", folder)]
    return shlex.join(["python", "-m", "moe_lab", *flags, *overrides])


def not_shared(
    values: Sequence[Collection[Value]], groups: Sequence[Hashable] | None = None
) -> list[list[Value]]:
    """Of each collection, for example the overrides of a run, the values that not all collections of its group have.

    Args:
        groups: the group of each collection; by default all are one group.
    """
    places = groups or [None] * len(values)
    shared = {
        place: set.intersection(
            *(set(own) for own, other in zip(values, places, strict=True) if other == place)
        )
        for place in places
    }
    return [
        [one for one in own if one not in shared[place]] for own, place in zip(values, places, strict=True)
    ]


def ranges(numbers: Sequence[int]) -> str:
    """Document numbers as `0-4, 7`."""
    parts: list[list[int]] = []
    for each in sorted(numbers):
        if parts and each == parts[-1][1] + 1:
            parts[-1][1] = each
        else:
            parts.append([each, each])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
