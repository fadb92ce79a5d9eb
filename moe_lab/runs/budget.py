"""The estimated cost of runs before they start: tokens, memory, disk space."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil, prod
from typing import TYPE_CHECKING, Any

from moe_lab.engine.planned import Asked
from moe_lab.methods.method import Method, TrainingMethod
from moe_lab.results.identity import HASHED
from moe_lab.tasks.loading import once
from moe_lab.tasks.requests import Workload, workload_of_tasks

if TYPE_CHECKING:
    from moe_lab.runs.jobs import Training
    from moe_lab.runs.run import Run
    from moe_lab.runs.tuning.study import Study


# The workload of runs, estimated without weights


def estimates(runs: Sequence[Run]) -> list[Workload]:
    """The workload of every run. Runs of a grid that send the same requests to the same model are estimated once."""
    known: dict[tuple[Any, ...], Workload] = {}
    workloads = []
    for run in runs:
        config = run.config
        settings = repr([getattr(config, name) for name in sorted(HASHED)])
        designed = repr(config.method) if type(run.method).architecture is not Method.architecture else ""
        key = (id(run.tasks), str(run.samples), repr(config.model), config.offline, settings, designed)
        if key not in known:
            known[key] = workload_of(run)
        workloads.append(known[key])
    return workloads


def workload_of(run: Run) -> Workload:
    """The workload of a run without its baseline."""
    config = run.method.architecture(run.config)
    workload = workload_of_tasks(run.tasks["tasks"], run.samples, run.config, config)
    embedded = run.facts.path is None and type(run.method).architecture is Method.architecture
    by_engine = embedded or _has_kv_engine(config.__class__, config.to_json_string(use_diff=False))
    return replace(workload, one_by_one=not by_engine)


@lru_cache(maxsize=64)
def _has_kv_engine(kind: Any, text: str) -> bool:
    from moe_lab.engine.forward.layers import runs_on_kv_cache
    from moe_lab.methods.finetune_freeze.parameter_groups import empty_model

    return runs_on_kv_cache(empty_model(kind.from_dict(json.loads(text))))


GIGABYTE = 1e9

# The memory of a run on its device


GPU = 80 * GIGABYTE
"""Bytes of a GPU where none is visible."""
USABLE = 0.9
"""Share of a GPU for what is planned. The rest is for the context, workspaces of kernels and fragmentation."""


def gpu_memory() -> list[int]:
    """Bytes of each visible GPU."""
    import torch

    return [
        torch.cuda.get_device_properties(number).total_memory for number in range(torch.cuda.device_count())
    ]


def gpus_for(size: int, gpu: float) -> int:
    """How many GPUs of `gpu` bytes hold a model whose run takes `size` bytes."""
    return max(1, ceil(size / (USABLE * gpu)))


EXAMPLES = 8
"""Prompts of each form whose passes are planned."""


def planned_memory(of: Run | Study, workload: Workload, reuse: bool = False) -> int | None:
    """The peak bytes of a run or study on GPUs with passes of `PASS_TOKENS` tokens; None for an embedded model.

    A training counts where it takes more. Quantized weights count as dequantized. It is the weights alone for a model
    without a `KVEngine`, and for a family whose own code reads values of tensors. Runs that ask alike are planned once.

    Args:
        reuse: whether it caches clean activations, as a study of temperatures does.
    """
    config, method = of.config, of.method
    if of.facts.path is None and type(method).architecture is Method.architecture:
        return None
    whole = Asked()
    for _, each in workload.asked:
        whole.add(each)
    asked = whole.first(EXAMPLES)
    key = f"{config.model} {config.dtype} {method.config} {config.batch_size} {config.max_batch_size} {reuse} {asked}"
    size = once(f"memory {key}", lambda: _dry_run(of, asked, workload.one_by_one, reuse))
    training = method.training_memory(config, of.facts) if isinstance(method, TrainingMethod) else None
    return max(size, training or 0)


def _dry_run(of: Run | Study, asked: Asked, weights_alone: bool, reuse: bool) -> int:
    import torch

    from moe_lab.engine.dry_run import planned_peak
    from moe_lab.engine.footprint import meta_model
    from moe_lab.models.load import LoadedModel
    from moe_lab.models.memory import weight_bytes

    architecture, config = of.method.architecture(of.config), of.config
    dtype = str(architecture.dtype or "float32") if config.dtype == "auto" else config.dtype
    model = meta_model(architecture, getattr(torch, dtype.removeprefix("torch.")))
    if config.model.attn_implementation is not None:
        model.set_attn_implementation(config.model.attn_implementation)
    loaded = LoadedModel(model, None, of.facts, model.device, 0.0)
    sequences = config.batch_size if isinstance(config.batch_size, int) else config.max_batch_size
    if weights_alone:
        return weight_bytes(model)
    try:
        return planned_peak(model, lambda: of.method.rehearse(loaded, asked, sequences, reuse))
    except NotImplementedError:
        return weight_bytes(model)


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
        total, dtype = _architecture(of)
        if of.facts.path is not None and of.method.reads_weights:
            self.weights[of.facts.path] = total * _bytes(dtype)
        method: Any = of.method
        for name in method.training_left(of.config, of.facts) if trains else ():
            adapter = method.adapter_parameters(of.config)
            written = total if adapter is None else adapter
            self.trained[name] = written * _bytes(of.facts.dtype if adapter is None else "float32")
            self.checkpoint = max(self.checkpoint, CHECKPOINTS * CHECKPOINT_BYTES * written)

    def lines(self) -> list[str]:
        """The lines below a plan on the required disk space."""
        found = []
        if self.weights:
            each = ", ".join(f"{name} {_gigabytes(size)}" for name, size in sorted(self.weights.items()))
            total = _gigabytes(sum(self.weights.values()))
            found.append(
                f"Weights, {total}: {each}. They are needed on disk, and in memory while the model runs."
            )
        if self.trained:
            written, most = _gigabytes(sum(self.trained.values())), _gigabytes(self.checkpoint)
            found.append(
                f"Trained models to write: {len(self.trained)}, {written}. While one is trained, its checkpoints take "
                f"at most {most} ({CHECKPOINTS} of {CHECKPOINT_BYTES} bytes for each parameter; less with other "
                "optimizers than AdamW in float32)."
            )
        return found


def trial_tokens(study: Study, trials: int) -> float:
    """An upper bound on the forward tokens of some trials: it ignores that trials share cached activations."""
    return trials * study.method.forward_tokens(study_workload(study))


def study_workload(study: Study) -> Workload:
    """The workload of a trial."""
    tasks = study.tasks["tasks"]
    documents = {name: list(range(len(task.task_docs))) for name, task in tasks.items()}
    return workload_of_tasks(tasks, documents, study.config)


def _architecture(of: Run | Study | Training) -> tuple[int, str]:
    """The parameters and the dtype of the model that answers. Runs of a grid that share a model read them once."""
    own = type(of.method).architecture is not Method.architecture
    design = of.config.method if own else None

    def read() -> tuple[int, str]:
        config = of.method.architecture(of.config)
        if of.facts.path is None and not own:  # transformers' modeling code takes seconds to import
            from safetensors import safe_open

            from moe_lab.models.source import model_folder

            with safe_open(model_folder(of.config.model, offline=True) / "model.safetensors", "np") as stored:
                total = sum(prod(stored.get_slice(name).get_shape()) for name in stored.offset_keys())
        else:
            total = parameters_of(config)
        return total, str(config.dtype or "float32")

    return once(f"architecture {of.config.model} {of.config.offline} {design}", read)


def parameters_of(config: Any) -> int:
    """The number of parameters of a model of this configuration, counted on a model without weights."""
    return _counted(config.__class__, config.to_json_string(use_diff=False))


@lru_cache(maxsize=64)
def _counted(kind: Any, text: str) -> int:
    from moe_lab.methods.finetune_freeze.parameter_groups import empty_model

    return sum(own.numel() for own in empty_model(kind.from_dict(json.loads(text))).parameters())


def hours_text(hours: float) -> str:
    """`1,234`, `12.3`, `0.0045`; a dash for none."""
    if not hours:
        return "-"
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}" if hours >= 1e-4 else "<0.0001"


def _bytes(dtype: str) -> int:
    import torch

    return int(getattr(torch, dtype.removeprefix("torch.")).itemsize)


def _gigabytes(size: float) -> str:
    return f"{size / GIGABYTE:,.3g} GB" if size < 100 * GIGABYTE else f"{size / GIGABYTE:,.0f} GB"


def model_name(of: Run | Study | Training) -> str:
    """The hub id, folder or name of the model whose parameters are counted. A pre-training design has its own name."""
    if not of.method.reads_weights:
        return f"{of.method.config.name} {of.method.config.label}"
    return of.facts.path or of.facts.name
