"""`method=finetune-freeze` against a plain Trainer at the same settings: tokens per second and
bytes per parameter.

    python -m benchmarks.finetune               # the bench model, steps of 4 rows of 128 tokens
    python -m benchmarks.finetune --full-size --optimizers adamw_torch_fused adamw_torch_8bit
                                                # OLMoE-1B-7B's shape on a GPU, steps of 4 passes of
                                                2,048 tokens

Weights and tokens are random. Each training runs for some steps, without checkpoints; the time is
the median of the steps after the second. The plain Trainer comes first, before moe_lab changes the
autocast of grouped products.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers import Trainer, TrainingArguments

from benchmarks.bench_model import make_model
from benchmarks.roe_gpu import OLMOE_1B_7B, random_model

FROZEN = {"none": "", "experts": ".experts.", "router": ".mlp.gate."}
"""Values of `method.schedule`, and what names the frozen parameters of OLMoE."""
EIGHT_BIT = "adamw_torch_8bit"
STEPS = 7


class Timed:
    """Seconds of an optimizer step, and the most bytes that were allocated after the second one
    (None on a CPU)."""

    def __init__(self, model: Any, passes: int):
        self.device = model.device
        self.passes = passes
        self.starts: list[float] = []
        model.register_forward_pre_hook(self._on_pass)

    def _on_pass(self, *args: Any) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            if len(self.starts) == 2 * self.passes:
                torch.cuda.reset_peak_memory_stats()
        self.starts.append(time.perf_counter())

    @property
    def seconds(self) -> float:
        return statistics.median(
            b - a for a, b in pairwise(self.starts[2 * self.passes :: self.passes])
        )

    @property
    def peak(self) -> int | None:
        return torch.cuda.max_memory_allocated() if self.device.type == "cuda" else None


def random_rows(vocab: int, size: int, length: int) -> list[dict[str, list[int]]]:
    ids = torch.randint(
        1, vocab, (STEPS * size, length), generator=torch.Generator().manual_seed(0)
    )
    return [{"input_ids": row, "labels": row} for row in ids.tolist()]


def by_trainer(
    model: Any, rows: Any, frozen: str, folder: Path, batch: int, passes: int, optimizer: str
) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not FROZEN[frozen] or FROZEN[frozen] not in name
    settings = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=passes,
        learning_rate=1e-6,
        optim=optimizer,
        optim_args="bf16_stochastic_round=True" if optimizer == EIGHT_BIT else None,
        bf16=model.device.type == "cuda",
        activation_checkpointing=model.device.type == "cuda",
        use_cpu=model.device.type == "cpu",
        save_strategy="no",
        disable_tqdm=True,
        report_to=[],
    )
    Trainer(model=model, args=settings, train_dataset=rows).train()


def by_method(
    model: Any, rows: Any, frozen: str, folder: Path, batch: int, passes: int, optimizer: str
) -> None:
    from moe_lab.config.compose import compose_cell
    from moe_lab.methods.finetune_freeze.trainer import FreezeTrainer
    from moe_lab.methods.finetune_freeze.training import FinetuningInputs, train_on_rank
    from moe_lab.methods.tokenized import Row
    from moe_lab.runs.config import to_config

    on_gpu = model.device.type == "cuda"
    config = to_config(
        compose_cell(
            [
                "method=finetune-freeze",
                f"method.schedule={frozen}",
                f"method.optimizer={optimizer}",
                f"device={model.device.type}",
                f"method.batch_size={batch}",
                f"method.gradient_accumulation={passes}",
                f"method.max_steps={STEPS}",
                "method.learning_rate=1e-6",
                f"method.activation_checkpointing={str(on_gpu).lower()}",
            ],
            [],
        )
    )
    training = FinetuningInputs(
        config=config,
        folder=folder,
        rows=[Row(row["input_ids"], row["labels"]) for row in rows],
        validation=[],
        pad_token=0,
        dtype="bfloat16" if on_gpu else "float32",
    )

    def folder_alone(self: Any, *args: Any) -> None:
        Path(self.args.output_dir, f"checkpoint-{self.state.global_step}").mkdir(parents=True)

    with patch.object(FreezeTrainer, "_save_checkpoint", folder_alone):
        train_on_rank(training, model)


def planned_bytes(model: Any, frozen: str, batch: int, length: int, optimizer: str) -> int:
    """What `mode=plan` plans for such a training."""
    from moe_lab.methods.finetune_freeze.parameter_groups import parameter_groups
    from moe_lab.methods.training_memory import peak_bytes

    on_gpu = model.device.type == "cuda"
    dtype = model.dtype
    with torch.device("meta"):
        shapes = type(model)._from_config(model.config, dtype=dtype)
    for parameter in parameter_groups(shapes).get(frozen, ()):
        parameter.requires_grad = False
    return peak_bytes(
        shapes,
        optimizer=optimizer,
        on_gpu=on_gpu,
        rows=batch,
        length=length,
        bf16=on_gpu,
        checkpointing=on_gpu,
    )


def measure(
    model: Any,
    train: Callable[..., None],
    frozen: str,
    batch: int,
    passes: int,
    length: int,
    optimizer: str,
) -> None:
    """Print a row of the table."""
    parameters = model.num_parameters()
    timed = Timed(model, passes)
    rows = random_rows(model.config.vocab_size, batch * passes, length)
    planned = "-"
    if train is by_method:
        planned = f"{planned_bytes(model, frozen, batch, length, optimizer) / parameters:.2f}"
    with tempfile.TemporaryDirectory() as folder:
        train(model, rows, frozen, Path(folder), batch, passes, optimizer)
    peak = "-" if timed.peak is None else f"{timed.peak / parameters:.2f}"
    name = "Trainer" if train is by_trainer else "finetune-freeze"
    speed = batch * passes * length / timed.seconds
    print(f"| {optimizer} | {frozen} | {name} | {speed:,.0f} | {planned} | {peak} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--full-size", action="store_true", help="needs a GPU with 60 GB; with float32, 130 GB"
    )
    parser.add_argument(
        "--optimizers", nargs="+", default=["adamw_torch"], help="values of method.optimizer"
    )
    parser.add_argument("--frozen", nargs="+", default=list(FROZEN), choices=FROZEN)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device("cuda" if options.full_size else "cpu")
    batch, passes, length = (1, 4, 2048) if options.full_size else (4, 1, 128)
    print("| optimizer | frozen | | tokens per second | planned bytes per parameter | measured |")
    print("|---|---|---|---:|---:|---:|")
    for train in (by_trainer, by_method):
        for optimizer in options.optimizers:
            for frozen in options.frozen:
                dtype = torch.bfloat16 if optimizer == EIGHT_BIT else torch.float32
                model = (
                    random_model(OLMOE_1B_7B, device, dtype)
                    if options.full_size
                    else make_model().to(dtype)
                )
                measure(model, train, frozen, batch, passes, length, optimizer)
                del model
                gc.collect()
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
