"""The files of a run's expert metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from moe_lab.metrics.entropies import Entropy
from moe_lab.metrics.losses import Loss
from moe_lab.metrics.registry import HEADER, METRICS, Intervention
from moe_lab.results.atomic import write_atomically
from moe_lab.results.measured import Difference
from moe_lab.results.stored_files import content_of_run

SCHEMA_VERSION = 3
FILE = "expert_metrics.json"
BY_DOCUMENT = "by_document.safetensors"
FOLDER = "expert_metrics"
"""Counts, and answers under changed routing."""
COUNTS = "counts.safetensors"
Arrays = dict[str, np.ndarray]
"""By the path in expert_metrics.json, such as "capacity/least/tasks/arc_easy/acc,none/scores".
Counted metrics have LEFT_OUT, [1 + G] (G groups of documents); the others have SCORES, [1 + R, N]
(R evaluations of N documents)."""


@dataclass(frozen=True)
class StoredMetrics:
    """A run's expert_metrics.json."""

    content: Mapping[str, Any]

    @property
    def metric(self) -> str | None:
        """The headline metric of the run."""
        return self.content["metric"]

    @property
    def experts(self) -> list[int]:
        """Of each MoE layer."""
        return list(self.content["experts"])

    def entropies(self, name: str) -> dict[str, Entropy]:
        """A counted metric by the kind of tokens (all, prefill, decode), without kinds of which
        none was counted."""
        entropies = {}
        for kind, block in self.content[name].items():
            if block is not None:
                entropies[kind] = Entropy.model_validate(block)
        return entropies

    def layers(self, name: str) -> list[float | None]:
        """A counted metric of each MoE layer, over all tokens; empty if none was counted."""
        block = self.content[name]["all"]
        if block is None:
            return []
        return [layer["value"] for layer in block["layers"]]

    def losses(self, name: str, intervention: Intervention) -> dict[str, dict[str, Loss]]:
        """The losses by task and `metric,filter`; empty for a method that does not allow
        interventions."""
        block = self.content[name]
        if block is None:
            return {}
        losses: dict[str, dict[str, Loss]] = {}
        for task, metrics in intervention.block(block)["tasks"].items():
            losses[task] = {}
            if metrics is None:
                continue
            for metric, loss in metrics.items():
                losses[task][metric] = Loss.model_validate(loss)
        return losses

    def difference(self, other: str, *path: str) -> Difference:
        """The difference to another run ("baseline") at a path of the file; all values are None
        without one."""
        to_other = self.content["differences"].get(other, {})
        return Difference.model_validate(to_other.get("/".join(path), {}))


def stored_metrics(folder: Path, run_id: str, commit: str | None) -> StoredMetrics | None:
    """A run's expert metrics if they are complete and of this run and hub commit, else None.

    They are complete if the file has all metrics.
    """
    content = content_of_run(
        folder / FILE, run_id=run_id, commit=commit, schema_version=SCHEMA_VERSION
    )
    if content is None:
        return None
    if not content.keys() >= HEADER | METRICS.keys():
        return None
    if not (folder / FOLDER / BY_DOCUMENT).is_file():
        return None
    return StoredMetrics(content)


class Separated(NamedTuple):
    """A mapping in two parts, which are stored in two files."""

    plain: dict[str, Any]
    """Without the numpy arrays."""
    arrays: Arrays


def without_arrays(mapping: dict[str, Any], path: str = "") -> Separated:
    """A mapping, which may hold others, without its numpy arrays; and the arrays.

    Args:
        path: what the arrays' paths begin with.
    """
    plain: dict[str, Any] = {}
    arrays: Arrays = {}
    for key, value in mapping.items():
        if isinstance(value, np.ndarray):
            arrays[f"{path}{key}"] = value
        elif isinstance(value, dict):
            inner = without_arrays(value, f"{path}{key}/")
            plain[key] = inner.plain
            arrays |= inner.arrays
        else:
            plain[key] = value
    return Separated(plain, arrays)


def write_arrays(folder: Path, arrays: Arrays) -> None:
    """Write them into the folder atomically. Raises ResultsError."""
    from safetensors.numpy import save

    contiguous = {path: np.ascontiguousarray(array) for path, array in arrays.items()}
    write_atomically(folder / BY_DOCUMENT, save(contiguous))


def read_arrays(folder: Path) -> Arrays:
    """The arrays that `write_arrays` wrote."""
    from safetensors.numpy import load_file

    return load_file(folder / BY_DOCUMENT)
