"""The cost of runs before they start: tokens, memory, disk space."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from moe_lab.engine import pass_size
from moe_lab.engine.footprint import meta_model
from moe_lab.engine.forward.layers import runs_on_kv_cache
from moe_lab.methods.method import DesignMethod, TrainingMethod
from moe_lab.models.memory import weight_bytes
from moe_lab.models.source import load_config
from moe_lab.runs.run import Run
from moe_lab.runs.trainings import Training
from moe_lab.runs.tuning.study import Study
from moe_lab.tasks.loading import once
from moe_lab.tasks.workload import Workload, workload_of_tasks

# The workload of runs, estimated without weights


def workload_of(run: Run) -> Workload:
    """The workload of a run without its baseline."""
    return workload_of_tasks(run.tasks["tasks"], run.samples, run.config, _design(run))


def _design(of: Run | Study | Training) -> Any:
    """The configuration of transformers, read once for the runs of a command."""
    key = f"design {of.config.model} {of.config.offline} {of.method.config}"
    method = of.method
    if isinstance(method, DesignMethod):
        return once(key, lambda: method.architecture(of.config))
    return once(key, lambda: load_config(of.config.model, offline=of.config.offline))


GIGABYTE = 1e9

# The memory of a run on its device


GPU = 80 * GIGABYTE
"""Bytes of a GPU where none is visible."""
USABLE = 0.9
"""Share of a GPU for what is planned. The rest is for the context, workspaces of kernels and fragmentation."""


def gpu_memory() -> list[int]:
    """Bytes of each visible GPU."""
    return [
        torch.cuda.get_device_properties(number).total_memory
        for number in range(torch.cuda.device_count())
    ]


def planned_memory(of: Run | Study, workload: Workload) -> int | None:
    """The bytes of a GPU that a run or study needs (`engine/pass_size.py`); None for an embedded model.

    A training counts where it takes more. Quantized weights count as dequantized. It is the weights alone for a model
    without a `KVEngine`, and for a family whose own code reads values of tensors.
    """
    config, method = of.config, of.method
    if of.facts.path is None and not isinstance(method, DesignMethod):
        return None
    design, held = _design(of), method.held(workload, of.facts)

    def of_device() -> int:
        dtype = str(design.dtype or "float32") if config.dtype == "auto" else config.dtype
        model = meta_model(design, getattr(torch, dtype.removeprefix("torch.")))
        if config.model.attn_implementation is not None:
            model.set_attn_implementation(config.model.attn_implementation)
        with suppress(NotImplementedError):
            if runs_on_kv_cache(model):
                return pass_size.planned_memory(model, *held)
        return weight_bytes(model)

    size = once(f"memory {design.to_json_string()} {config.model} {config.dtype} {held}", of_device)
    if isinstance(method, TrainingMethod) and method.training_left(config, of.facts):
        size = max(size, method.planned_memory(config, of.facts))
    return size


# The disk space of a plan, estimated from the sizes of its models without loading weights

CHECKPOINT_BYTES = 12
"""Bytes per parameter in a checkpoint at most: its weight and AdamW's two moments, each in float32."""
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

    def add(self, of: Run | Study | Training, trains: bool = False) -> None:
        """Count the weights that a run, study or training reads, and the model that it writes if it `trains`."""
        architecture = _design(of)
        method: Any = of.method
        path, dtype = of.facts.path, str(architecture.dtype or "float32")
        left = method.training_left(of.config, of.facts) if trains else {}
        downloads = path is not None and not isinstance(method, DesignMethod)
        if not (downloads or left):
            return
        empty = once(
            f"empty {architecture.to_json_string()}",
            lambda: meta_model(architecture, torch.float32),
        )
        total = sum(own.numel() for own in empty.parameters())
        if path is not None and downloads:
            self.weights[path] = total * _bytes(dtype)
        for name in left:
            self.trained[name] = total * _bytes(of.facts.dtype)
            self.checkpoint = max(self.checkpoint, CHECKPOINTS * CHECKPOINT_BYTES * total)

    def lines(self) -> list[str]:
        """The lines below a plan on the required disk space."""
        found = []
        if self.weights:
            each = ", ".join(
                f"{name} {_gigabytes(size)}" for name, size in sorted(self.weights.items())
            )
            total = _gigabytes(sum(self.weights.values()))
            found.append(
                f"Weights, {total}: {each}. They need disk space, and memory while the model runs."
            )
        if self.trained:
            written, most = _gigabytes(sum(self.trained.values())), _gigabytes(self.checkpoint)
            found.append(
                f"Trained models to write: {len(self.trained)}, {written}. While one is trained, its checkpoints take "
                f"at most {most} ({CHECKPOINTS} of {CHECKPOINT_BYTES} bytes for each parameter; less with other "
                "optimizers than AdamW in float32)."
            )
        return found


def _bytes(dtype: str) -> int:
    return int(getattr(torch, dtype.removeprefix("torch.")).itemsize)


def _gigabytes(size: float) -> str:
    return f"{size / GIGABYTE:,.3g} GB" if size < 100 * GIGABYTE else f"{size / GIGABYTE:,.0f} GB"
