"""Training a causal language model with transformers' Trainer: packed rows, log, checkpoints, exact resume."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ProgressCallback

from moe_lab.errors import ResultsError
from moe_lab.methods.checkpoints import last_checkpoint, mark_complete
from moe_lab.models.foreign_code import NO_CODE
from moe_lab.progress import Progress
from moe_lab.results.atomic import write_atomically, writing
from moe_lab.results.lock import check_lease
from moe_lab.tasks.toy.corpus import documents

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

LearningRate = Callable[[int], float]
"""Its factor at an optimizer step."""
LOSS = "validation_loss"
"""The name in the log of the loss on held-out rows; the Trainer's own for the best one is `eval_loss`."""


class PackedRows(Dataset[dict[str, torch.Tensor]]):
    """Rows of `length` tokens of the toy corpus: documents joined by the end token, the last one cut off.

    Row i depends on (seed, i) alone, so that a resumed training sees the rows that an uninterrupted one sees.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, seed: int, rows: int, length: int):
        self.tokenizer, self.seed, self.rows, self.length = tokenizer, seed, rows, length

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids: list[int] = []
        group = index * 1000
        while len(ids) < self.length:
            for text in documents(self.seed, group, 8):
                ids += [*self.tokenizer(text).input_ids, self.tokenizer.eos_token_id]
            group += 1
        row = torch.tensor(ids[: self.length])
        return {"input_ids": row, "labels": row}


class Log(TrainerCallback):
    """Writes the Trainer's log to `log.jsonl`, and marks checkpoints that are whole.

    The log is written anew from the Trainer's state, which a resume restores: no line stands twice. Of several
    processes the first one writes, and marks a checkpoint when all have written their part.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A line's mean ends at every checkpoint, so that a resumed training writes the same lines."""
        control.should_log |= control.should_save

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        lines = [entry for entry in state.log_history if entry.keys() & {"loss", LOSS}]
        write_atomically(
            self.folder / "log.jsonl", "".join(json.dumps(entry, sort_keys=True) + "\n" for entry in lines)
        )

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._wait(args)
        if state.is_world_process_zero:
            mark_complete(Path(args.output_dir) / f"checkpoint-{state.global_step}")
        self._wait(args)

    def _wait(self, args: Any) -> None:
        if args.world_size > 1:
            torch.distributed.barrier()


class Steps(TrainerCallback):
    """Progress by steps, with the last loss; the Trainer's own prints every line of the log as well."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        shown = state.is_world_process_zero
        self._progress = Progress(state.max_steps, "training", "step", initial=state.global_step, shown=shown)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._progress is not None:
            self._progress.at(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        told = [f"{key}={logs[key]:.3f}" for key in ("loss", LOSS) if key in (logs or {})]
        if self._progress is not None and told:
            self._progress.at(state.global_step, " ".join(told))

    def close(self) -> None:
        """Close the bar. Called at the end and after an error."""
        if self._progress is not None:
            self._progress.close()


def training_arguments(folder: Path, *, device: str, dtype: str, **own: Any) -> TrainingArguments:
    """Settings of a training in `folder`. Weights are float32; dtype="bfloat16" is autocast. `own` are further ones."""
    settings = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        max_grad_norm=1.0,
        bf16=dtype == "bfloat16",
        logging_nan_inf_filter=False,
        save_total_limit=2,
        remove_unused_columns=False,
        dataloader_pin_memory=device != "cpu",
        use_cpu=device == "cpu",
        disable_tqdm=False,
        report_to=[],
        **own,
    )
    assert settings.device is not None  # found out now, as it sets the number below
    settings._n_gpu = min(settings._n_gpu, 1)  # one process, one GPU: no torch.nn.DataParallel
    return settings


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate as a share of its highest value: linear warmup, a cosine to zero at `decay_steps`, and a
    linear decay to zero over the last `cooldown_steps` before `steps`, where the training ends."""

    steps: int
    warmup_steps: int
    decay_steps: int
    cooldown_steps: int

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return step / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, self.decay_steps - self.warmup_steps)
        cooldown = min(1.0, (self.steps - step) / max(1, self.cooldown_steps))
        return max(0.0, 0.5 * (1 + math.cos(math.pi * progress))) * max(0.0, cooldown)


class MoeTrainer(Trainer):
    """A Trainer whose resume restores experts as well; the learning rate, or each group's, is a function of the step.

    Checkpoints hold every expert as its own tensor, models hold them fused; the Trainer of transformers 5.23 loads
    one into the other without converting, warns, and goes on with random experts.
    """

    def __init__(self, *, schedule: LearningRate | list[LearningRate], **options: Any):
        super().__init__(**options)
        self.schedule = schedule
        self._steps = Steps()
        self.remove_callback(ProgressCallback)
        self.add_callback(self._steps)

    def train(self, *args: Any, **options: Any) -> Any:
        try:
            return super().train(*args, **options)
        finally:
            self._steps.close()

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LambdaLR:
        self.lr_scheduler = LambdaLR(optimizer or self.optimizer, self.schedule)
        return self.lr_scheduler

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        torn = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        try:
            with writing(torn):
                super()._save_checkpoint(model, trial)
        except ResultsError as error:
            check_lease(torn)
            shutil.rmtree(torn, ignore_errors=True)
            raise ResultsError(
                f"{error}\nThe same command continues from the last whole checkpoint."
            ) from error

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        sharded = self.is_distributed_loading_by_transformers
        options = {"distributed_config": self.model.config.distributed_config} if sharded else {}
        saved = own_checkpoint(resume_from_checkpoint, **options)
        (model or self.model).load_state_dict(saved.state_dict())


def own_checkpoint(folder: Path | str, **options: Any) -> PreTrainedModel:
    """The float32 model of a training's checkpoint."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **NO_CODE, **options)


def train_causal_lm(
    model: PreTrainedModel,
    rows: PackedRows,
    folder: Path,
    *,
    batch_size: int,
    schedule: Schedule,
    device: str,
    arguments: dict[str, Any],
) -> dict[str, float]:
    """Train on the rows in order, one pass; continue from the folder's last whole checkpoint if there is one.

    `arguments` are further TrainingArguments of transformers. Returns the Trainer's own metrics (seconds, loss).
    """
    settings = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        per_device_train_batch_size=batch_size,
        max_steps=schedule.steps,
        train_sampling_strategy="sequential",
        dataloader_pin_memory=device != "cpu",
        use_cpu=device == "cpu",
        disable_tqdm=False,
        report_to=[],
        save_total_limit=2,
        **arguments,
    )
    trainer = MoeTrainer(
        schedule=schedule, model=model, args=settings, train_dataset=rows, callbacks=[Log(folder)]
    )
    checkpoint = last_checkpoint(folder / "checkpoints")
    return trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None).metrics
