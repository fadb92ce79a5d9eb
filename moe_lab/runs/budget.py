"""The estimated cost of runs before they start: tokens, operations, GPU hours, disk space."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil, prod
from typing import TYPE_CHECKING, Any

from moe_lab.engine.planned import Asked
from moe_lab.methods.method import Method, TrainingMethod
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
        prompt_settings = (config.fewshot_seed, config.system_instruction, config.offline)
        key = (id(run.tasks), str(run.samples), repr(config.model), *prompt_settings)
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
    asked = Asked()
    for _, each in workload.asked:
        asked.add(each)
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
    loaded = LoadedModel(model, None, of.facts, model.device, 0.0)
    sequences = config.batch_size if isinstance(config.batch_size, int) else config.max_batch_size
    if weights_alone:
        return weight_bytes(model)
    try:
        return planned_peak(model, lambda: of.method.rehearse(loaded, asked, sequences, reuse))
    except NotImplementedError:
        return weight_bytes(model)


# The GPU hours and the disk space of a plan, estimated from the sizes of its models without loading weights

RATE = 1e14
"""Operations per second: a tenth of an H100's peak for dense bfloat16 products."""
READING, TRAINING = 2, 6
"""Operations per token and active parameter: a forward pass, and a forward and backward pass."""
CHECKPOINT_BYTES = 12
"""Bytes per parameter in a checkpoint: its weight and AdamW's two moments, each in float32."""
CHECKPOINTS = 2
"""Number of checkpoints that a training keeps until it is finished."""


@dataclass(frozen=True)
class Size:
    """Parameters of a model: the total, and the active ones per token (without the input embedding)."""

    total: int
    active: int


@dataclass
class Budget:
    """The work and the disk space of a plan, summed up run by run."""

    weights: dict[str, float] = field(default_factory=dict)
    """Bytes of the weights to download, by hub id."""
    active: dict[str, int] = field(default_factory=dict)
    """Active parameters by hub id, or by name for models without a hub id."""
    trained: dict[str, float] = field(default_factory=dict)
    """Bytes of the trained models to write, by folder."""
    checkpoint: float = 0
    """Bytes of the checkpoints of the largest training."""
    hours: float = 0
    """GPU hours."""

    def run(self, run: Run, tokens: float, missing: bool) -> float:
        """GPU hours of a run with this many forward tokens, and of its training if no earlier run has the same one."""
        hours = self._add(READING * self._size(run).active * tokens)
        return hours + (self.train(run) if missing and isinstance(run.method, TrainingMethod) else 0)

    def train(self, run: Run | Training) -> float:
        """GPU hours of the training of a run, or of the model of one, that no earlier run needs."""
        method: Any = run.method
        size, operations = self._size(run), 0.0
        for name, (_, read) in method.training_left(run.config, run.facts).items():
            if name not in self.trained:
                operations += TRAINING * size.active * read
                adapter = method.adapter_parameters(run.config)
                written = size.total if adapter is None else adapter
                self.trained[name] = written * _bytes(run.facts.dtype if adapter is None else "float32")
                self.checkpoint = max(self.checkpoint, CHECKPOINTS * CHECKPOINT_BYTES * written)
        return self._add(operations)

    def study(self, study: Study, tokens: float) -> float:
        """GPU hours of a study whose remaining trials take this many forward tokens."""
        return self._add(READING * self._size(study).active * tokens)

    def _add(self, operations: float) -> float:
        hours = operations / RATE / 3600
        self.hours += hours
        return hours

    def _size(self, of: Run | Study | Training) -> Size:
        size, dtype = _architecture(of)
        path = of.facts.path
        self.active[model_name(of)] = size.active
        if path is not None and of.method.reads_weights:
            self.weights[path] = size.total * _bytes(dtype)
        return size

    def lines(self) -> list[str]:
        """The lines below a plan: how the hours were estimated, and the required disk space."""
        sizes = ", ".join(f"{name} {count / 1e9:.3g}e9" for name, count in sorted(self.active.items()))
        found = [
            f"GPU hours: {hours_text(self.hours)}. An hour is {RATE:.0e} x 3,600 operations, a tenth of an H100's "
            "peak in bfloat16; text that is generated in small batches takes longer. A token takes "
            f"{READING} operations for each active parameter, {TRAINING} in training. "
            f"Active parameters, without the input embedding: {sizes}."
        ]
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
                f"at most {most} ({CHECKPOINTS} of {CHECKPOINT_BYTES} bytes for each parameter)."
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


def _architecture(of: Run | Study | Training) -> tuple[Size, str]:
    """The size and the dtype of the model that answers. Runs of a grid that share a model read them once."""
    own = type(of.method).architecture is not Method.architecture
    design = of.config.method if own else None

    def read() -> tuple[Size, str]:
        config = of.method.architecture(of.config)
        return embedded_size(of, config) or size_of(config), str(config.dtype or "float32")

    return once(f"architecture {of.config.model} {of.config.offline} {design}", read)


def size_of(config: Any) -> Size:
    """The size of a model of this configuration, counted on a model without weights."""
    return _counted(config.__class__, config.to_json_string(use_diff=False))


def embedded_size(of: Run | Study | Training, config: Any) -> Size | None:
    """`size_of` for an embedded model; None for other models.

    Reads the weight file's header, because importing transformers' modeling code takes seconds.
    """
    from moe_lab.models.files import read_header
    from moe_lab.models.source import model_folder

    if of.facts.path is not None or type(of.method).architecture is not Method.architecture:
        return None
    weights = read_header(model_folder(of.config.model, offline=True) / "model.safetensors")
    counts = {name: prod(weight["shape"]) for name, weight in weights.items()}
    experts = sum(count for name, count in counts.items() if ".mlp.experts." in name)
    total, embedding = sum(counts.values()), counts["model.embed_tokens.weight"]
    unread = 0 if config.tie_word_embeddings else embedding
    return Size(total, round(total - unread - experts * (1 - _share(config))))


@lru_cache(maxsize=64)
def _counted(kind: Any, text: str) -> Size:
    from moe_lab.methods.finetune_freeze.parameter_groups import empty_model, is_experts

    config = kind.from_dict(json.loads(text))
    model = empty_model(config)
    total = sum(own.numel() for own in model.parameters())
    experts = sum(own.numel() for each in model.modules() if is_experts(each) for own in each.parameters())
    ends = model.get_input_embeddings(), model.get_output_embeddings()
    tied = ends[1] is not None and ends[0].weight is ends[1].weight
    embedding = 0 if tied else ends[0].weight.numel()
    return Size(total, round(total - embedding - experts * (1 - _share(config) if experts else 0)))


def _share(config: Any) -> float:
    """The number of experts per token, divided by the number of all experts."""
    from moe_lab.models.facts import routing_facts

    facts = routing_facts(config)
    return facts["top_k"] / facts["experts"]


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
