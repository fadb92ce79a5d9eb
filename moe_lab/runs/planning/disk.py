"""The disk space of a plan, estimated from the sizes of its models without loading weights."""

from dataclasses import dataclass, field
from typing import Any

import torch

from moe_lab.engine.footprint import meta_model
from moe_lab.methods.method import DesignMethod
from moe_lab.runs.planning.memory import GIGABYTE
from moe_lab.runs.planning.workload import design_of
from moe_lab.runs.run import Run
from moe_lab.runs.trainings import Training
from moe_lab.runs.tuning.study import Study
from moe_lab.tasks.loading import once

CHECKPOINT_BYTES = 12
"""Bytes per parameter in a checkpoint at most: its weight and AdamW's two moments in float32."""
CHECKPOINTS = 2
"""Number of checkpoints that a training keeps until it is finished."""


@dataclass
class Budget:
    """The disk space of a plan, summed up run by run."""

    weights: dict[str, float] = field(default_factory=dict)
    """Bytes of the weights to download, by hub id."""
    trained: dict[str, float] = field(default_factory=dict)
    """Bytes of the trained models to write, by folder."""
    checkpoint: float = 0
    """Bytes of the checkpoints of the largest training."""

    def add(self, work: Run | Study | Training, trains: bool = False) -> None:
        """Count the weights that the work downloads, and if it `trains`, the model that it
        writes."""
        design = design_of(work)
        method: Any = work.method
        path = work.facts.path
        downloads = path is not None and not isinstance(method, DesignMethod)
        training_left: dict[str, tuple[int, int]] = {}
        if trains:
            training_left = method.training_left(work.config, work.facts)
        if not downloads and not training_left:
            return
        parameters = _parameters(design)
        if path is not None and downloads:
            self.weights[path] = parameters * _bytes_of(str(design.dtype or "float32"))
        for name in training_left:
            saved = method.adapter_parameters(work.config)
            if saved is None:
                saved = parameters
            self.trained[name] = saved * _bytes_of(work.facts.dtype)
            checkpoints = CHECKPOINTS * CHECKPOINT_BYTES * saved
            self.checkpoint = max(self.checkpoint, checkpoints)

    def lines(self) -> list[str]:
        """The lines below a plan on the required disk space; none if nothing is downloaded or
        trained."""
        lines = []
        if self.weights:
            models = []
            for name, size in sorted(self.weights.items()):
                models.append(f"{name} {_gigabytes(size)}")
            total = _gigabytes(sum(self.weights.values()))
            lines.append(
                f"Weights, {total}: {', '.join(models)}. "
                "They need disk space, and memory while the model runs."
            )
        if self.trained:
            written = _gigabytes(sum(self.trained.values()))
            checkpoints = _gigabytes(self.checkpoint)
            lines.append(
                f"Trained models to write: {len(self.trained)}, {written}. "
                f"While one is trained, its checkpoints take at most {checkpoints} "
                f"({CHECKPOINTS} of {CHECKPOINT_BYTES} bytes for each parameter; "
                "less with other optimizers than AdamW in float32)."
            )
        return lines


def _parameters(design: Any) -> int:
    """The number of parameters of a model."""
    key = f"empty {design.to_json_string()}"
    model = once(key, lambda: meta_model(design, torch.float32))
    return sum(parameter.numel() for parameter in model.parameters())


def _bytes_of(dtype: str) -> int:
    """Bytes of a number of this type."""
    return int(getattr(torch, dtype.removeprefix("torch.")).itemsize)


def _gigabytes(size: float) -> str:
    """A number of bytes as text: "1.25 GB"."""
    if size < 100 * GIGABYTE:
        return f"{size / GIGABYTE:,.3g} GB"
    return f"{size / GIGABYTE:,.0f} GB"
