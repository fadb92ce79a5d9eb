"""The memory of a run on its device, planned without weights."""

from contextlib import suppress
from typing import Any

import torch

from moe_lab.config.schema import Config
from moe_lab.engine import pass_size
from moe_lab.engine.footprint import meta_model
from moe_lab.engine.forward.layers import runs_on_kv_cache
from moe_lab.methods.method import DesignMethod, TrainingMethod
from moe_lab.models.memory import weight_bytes
from moe_lab.runs.planning.workload import design_of
from moe_lab.runs.run import Run
from moe_lab.runs.tuning.study import Study
from moe_lab.tasks.loading import once
from moe_lab.tasks.workload import Workload

GIGABYTE = 1e9
GPU = 80 * GIGABYTE
"""Bytes of a GPU where none is visible."""
USABLE = 0.9
"""Share of a GPU for what is planned. The rest is for the context, workspaces of kernels and
fragmentation."""


def gpu_memory() -> list[int]:
    """Bytes of each visible GPU."""
    sizes = []
    for number in range(torch.cuda.device_count()):
        sizes.append(torch.cuda.get_device_properties(number).total_memory)
    return sizes


def planned_memory(work: Run | Study, workload: Workload) -> int | None:
    """The bytes of a GPU that a run or study needs (`engine/pass_size.py`); None for an embedded
    model.

    If a training is left and takes more, its bytes. Quantized weights count as dequantized. Only
    the weights are counted for a model without a `KVEngine`, and for a family whose own code reads
    values of tensors, which a model without weights does not have.
    """
    config = work.config
    method = work.method
    if work.facts.path is None and not isinstance(method, DesignMethod):
        return None
    design = design_of(work)
    slots, logit_rows = method.held(workload, work.facts)
    model = f"{design.to_json_string()} {config.model} {config.dtype}"
    key = f"memory {model} {(slots, logit_rows)}"
    size = once(key, lambda: _evaluation_bytes(config, design, slots, logit_rows))
    if isinstance(method, TrainingMethod) and method.training_left(config, work.facts):
        size = max(size, method.planned_memory(config, work.facts))
    return size


def _evaluation_bytes(config: Config, design: Any, slots: float, logit_rows: float) -> int:
    """The bytes of an evaluation. `slots` and `logit_rows` as in `pass_size.planned_memory`."""
    dtype = config.dtype
    if dtype == "auto":
        dtype = str(design.dtype or "float32")
    model = meta_model(design, getattr(torch, dtype.removeprefix("torch.")))
    if config.model.attn_implementation is not None:
        model.set_attn_implementation(config.model.attn_implementation)
    with suppress(NotImplementedError):
        if runs_on_kv_cache(model):
            return pass_size.planned_memory(model, slots, logit_rows)
    return weight_bytes(model)
