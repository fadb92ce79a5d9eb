"""Training virtual tokens: the base frozen, the loss on the tokens of the right answers only.

The steps of a training depend on the seed, the questions and the recipe alone. A checkpoint is written every half
minute, so that a killed training continues and ends in the same adapter.

B = questions of a step, S = tokens of the longest, A = answer tokens of a step, V = vocabulary, H = hidden size.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from moe_lab.errors import MoeLabError
from moe_lab.progress import Progress
from moe_lab.results.atomic import write_atomically

SAVE_SECONDS = 30.0
"""What a killed training computes again at most."""


@dataclass(frozen=True)
class Example:
    """A question and its right answer, as token ids."""

    prompt: Sequence[int]
    answer: Sequence[int]


@dataclass(frozen=True)
class Recipe:
    """AdamW, as torch has it, with a learning rate that falls to 0 in a line, as in peft's own examples."""

    learning_rate: float
    epochs: int
    batch_size: int
    seed: int

    def steps(self, count: int) -> int:
        return self.epochs * self._per_epoch(count)

    def batch(self, step: int, count: int) -> list[int]:
        """Numbers of the examples of a step; every epoch takes all of them once, in an order of its own."""
        epoch, place = divmod(step, self._per_epoch(count))
        order = list(range(count))
        Random(f"{self.seed} {epoch}").shuffle(order)
        return order[place * self.batch_size : (place + 1) * self.batch_size]

    def rate(self, step: int, count: int) -> float:
        return self.learning_rate * (1 - step / self.steps(count))

    def _per_epoch(self, count: int) -> int:
        return -(-count // self.batch_size)


def train(wrapped: Any, examples: Sequence[Example], recipe: Recipe, folder: Path) -> list[float]:
    """Train the adapter of a PeftModel, from the folder's checkpoint if there is one. Returns the loss of every step.

    Raises MoeLabError where a loss is NaN or infinite.
    """
    checkpoint = folder / "checkpoints" / "last.pt"
    adapter = wrapped.prompt_encoder
    optimizer = torch.optim.AdamW(adapter.parameters(), lr=recipe.learning_rate)
    losses: list[float] = _resume(checkpoint, adapter, optimizer) if checkpoint.exists() else []
    count, saved = len(examples), time.monotonic()
    with Progress(recipe.steps(count), "training", "step", initial=len(losses)) as progress:
        while len(losses) < recipe.steps(count):
            step = len(losses)
            optimizer.param_groups[0]["lr"] = recipe.rate(step, count)
            losses.append(_step(wrapped, optimizer, [examples[i] for i in recipe.batch(step, count)], step))
            progress.at(len(losses), f"loss={losses[-1]:.3f}")
            if time.monotonic() - saved >= SAVE_SECONDS:
                _keep(checkpoint, adapter, optimizer, losses)
                saved = time.monotonic()
    lines = (
        {"step": i, "loss": loss, "learning_rate": recipe.rate(i, count)} for i, loss in enumerate(losses)
    )
    write_atomically(folder / "log.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    return losses


def _step(wrapped: Any, optimizer: Any, batch: list[Example], step: int) -> float:
    loss = answer_loss(wrapped, batch)
    if not loss.isfinite():
        raise MoeLabError(
            f"The loss of training step {step + 1} is {loss.item()}. Lower method.learning_rate, or compute in another "
            "dtype: dtype=float32 or dtype=bfloat16."
        )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def answer_loss(wrapped: Any, batch: Sequence[Example]) -> Tensor:
    """float32: mean cross-entropy of the answers' tokens. Questions are padded behind their last token."""
    device = wrapped.base_model.device
    ids = [[*example.prompt, *example.answer[:-1]] for example in batch]
    width = max(map(len, ids))
    ids_BS = torch.tensor([row + [0] * (width - len(row)) for row in ids], device=device)
    real_BS = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids], device=device)
    places = [
        (b, len(example.prompt) - 1 + i)
        for b, example in enumerate(batch)
        for i in range(len(example.answer))
    ]
    logits_AV = _logits_at(wrapped, ids_BS, real_BS, places)
    target_A = torch.tensor([token for example in batch for token in example.answer])
    return torch.nn.functional.cross_entropy(logits_AV.float(), target_A.to(logits_AV.device))


def _logits_at(wrapped: Any, ids_BS: Tensor, real_BS: Tensor, places: list[tuple[int, int]]) -> Tensor:
    """[A, V] at (question, token) places: the output head computes nothing else."""
    question_A, token_A = torch.tensor(places).T

    def select(head: Any, args: tuple) -> tuple:
        hidden = args[0]
        virtual = hidden.shape[1] - ids_BS.shape[1]  # a soft prompt's own tokens stand before the others
        return (hidden[question_A.to(hidden.device), token_A.to(hidden.device) + virtual][None], *args[1:])

    handle = wrapped.base_model.get_output_embeddings().register_forward_pre_hook(select)
    try:
        return wrapped(input_ids=ids_BS, attention_mask=real_BS).logits[0]
    finally:
        handle.remove()


def _keep(checkpoint: Path, adapter: Any, optimizer: Any, losses: list[float]) -> None:
    checkpoint.parent.mkdir(exist_ok=True)
    buffer = io.BytesIO()
    content = {"adapter": adapter.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
    torch.save(content, buffer)
    write_atomically(checkpoint, buffer.getvalue())


def _resume(checkpoint: Path, adapter: Any, optimizer: Any) -> list[float]:
    device = next(adapter.parameters()).device
    content = torch.load(checkpoint, map_location=device, weights_only=True)
    adapter.load_state_dict(content["adapter"])
    optimizer.load_state_dict(content["optimizer"])
    return content["losses"]
