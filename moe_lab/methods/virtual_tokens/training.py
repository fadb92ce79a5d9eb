"""Training virtual tokens of the frozen base model, with the loss only on the right answers, and evaluating with them.

The steps of a training depend only on the seed, the questions and the recipe. A checkpoint is written every half
minute, so an interrupted training continues and ends with the same adapter.

In evaluation, every prompt begins with V placeholder tokens. The engine counts and caches them like other tokens, but
the model does not read them: their keys and values are those of the adapter.

outputs/models/<model>-<method>-<id8>/
  adapter/         peft's format
  checkpoints/     checkpoints of an unfinished training
  log.jsonl        loss and learning rate of every step
  training.json    all that determines the adapter, and the course of its training; written last

B = questions of a step, S = tokens of the longest, A = answer tokens of a step, V = vocabulary (in the loss) or virtual
tokens (in evaluation), H = hidden size.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from moe_lab.config.progress import Progress
from moe_lab.engine.engine import KVEngine
from moe_lab.engine.forward.batch import Tokens
from moe_lab.engine.forward.ensemble import Ensemble
from moe_lab.engine.forward.forward import EnsembleForward
from moe_lab.engine.forward.kv_cache import KVCache
from moe_lab.engine.hf import Encoder
from moe_lab.engine.lm import EngineLM, OnAnswer, Request
from moe_lab.errors import MoeLabError
from moe_lab.methods.base import engine_options
from moe_lab.methods.trained import check_trained, print_resumed
from moe_lab.methods.virtual_tokens.adapters import with_adapter
from moe_lab.metrics.teacher_forcing import padded
from moe_lab.results.atomic import obey_umask, write_atomically, writing
from moe_lab.results.identity import versions

if TYPE_CHECKING:
    from moe_lab.config.schema import Config
    from moe_lab.methods.references.documents import ReferenceDocuments
    from moe_lab.models.load import LoadedModel


SAVE_SECONDS = 30.0
"""The time between checkpoints. An interrupted training repeats at most this time."""
PLACEHOLDER = 0
"""Token id of the placeholders."""


@dataclass(frozen=True)
class Example:
    """A question and its right answer, as token ids."""

    prompt: Sequence[int]
    answer: Sequence[int]


@dataclass(frozen=True)
class Recipe:
    """torch's AdamW with a learning rate that decays linearly to 0, as in peft's examples."""

    learning_rate: float
    epochs: int
    batch_size: int
    seed: int

    def steps(self, count: int) -> int:
        return self.epochs * self._per_epoch(count)

    def batch(self, step: int, count: int) -> list[int]:
        """The numbers of a step's examples. Every epoch takes all examples once, in a new order."""
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

    Raises MoeLabError if a loss is NaN or infinite.
    """
    checkpoint = folder / "checkpoints" / "last.pt"
    adapter = wrapped.prompt_encoder
    optimizer = torch.optim.AdamW(adapter.parameters(), lr=recipe.learning_rate)
    losses: list[float] = _resume(checkpoint, adapter, optimizer) if checkpoint.exists() else []
    count, saved = len(examples), time.monotonic()
    print_resumed(folder, len(losses), recipe.steps(count))
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
    """float32: mean cross-entropy of the answers' tokens. Questions are padded after their last token."""
    device = wrapped.base_model.device
    ids = [[*example.prompt, *example.answer[:-1]] for example in batch]
    ids_BS = padded(ids, 0).to(device)
    real_BS = padded([[1] * len(row) for row in ids], 0).to(device)
    places = [
        (b, len(example.prompt) - 1 + i)
        for b, example in enumerate(batch)
        for i in range(len(example.answer))
    ]
    logits_AV = _logits_at(wrapped, ids_BS, real_BS, places)
    target_A = torch.tensor([token for example in batch for token in example.answer])
    return torch.nn.functional.cross_entropy(logits_AV.float(), target_A.to(logits_AV.device))


def _logits_at(wrapped: Any, ids_BS: Tensor, real_BS: Tensor, places: list[tuple[int, int]]) -> Tensor:
    """[A, V] at (question, token) places. The output head computes only these, which saves memory."""
    question_A, token_A = torch.tensor(places).T

    def select(head: Any, args: tuple) -> tuple:
        hidden = args[0]
        virtual = hidden.shape[1] - ids_BS.shape[1]  # with a soft prompt, virtual tokens come first
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


def _options(model: LoadedModel, config: Config, virtual_tokens: int) -> dict[str, Any]:
    """Options of an `EngineLM` with a maximum length that leaves room for virtual tokens."""
    room = (config.max_length or model.facts.max_length) - virtual_tokens
    return engine_options(config) | {"max_length": room}


class VirtualTokensLM(EngineLM):
    """Scores multiple-choice questions after virtual tokens.

    Args:
        prefix: keys and values of the virtual tokens, for one sequence.
    """

    def __init__(self, model: LoadedModel, config: Config, prefix: KVCache):
        def make_engine(lm: EngineLM) -> KVEngine:
            return KVEngine(VirtualTokensForward(model.model, prefix), lm.budget)

        options = _options(model, config, prefix.length)
        super().__init__(model.model, model.tokenizer, **options, make_engine=make_engine)
        self._encoder = _AfterPlaceholders(self, prefix.length)

    def answer(self, kind: str, requests: Sequence[Request], on_answer: OnAnswer) -> None:
        assert kind == "loglikelihood", "data_identity refuses other tasks"
        super().answer(kind, requests, on_answer)


class _AfterPlaceholders(Encoder):
    def __init__(self, lm: EngineLM, count: int):
        super().__init__(lm)
        self.placeholders = (PLACEHOLDER,) * count

    def pair(self, context: str, continuation: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        context_ids, ids = super().pair(context, continuation)
        return self.placeholders + context_ids, ids


class VirtualTokensForward(EnsembleForward):
    """Passes of the base model that replace the first V tokens of every sequence by the cached `prefix`."""

    def __init__(self, model: Any, prefix: KVCache):
        super().__init__(model, Ensemble())
        self.prefix = prefix

    def __call__(self, tokens: Tokens, cache: KVCache) -> Tensor:
        if cache.length:
            return super().__call__(tokens, cache)
        B, S = tokens.ids_BS.shape
        V = self.prefix.length
        for own, new in zip(self.prefix.layers, cache.layers, strict=True):
            new.update(own.keys.expand(B, -1, -1, -1), own.values.expand(B, -1, -1, -1))
        if S == V:
            return torch.empty(0, 1, self.model.config.get_text_config().vocab_size, device=self.device)
        return super().__call__(_without_placeholders(tokens, V), cache)


def _without_placeholders(tokens: Tokens, V: int) -> Tokens:
    """The tokens after the first V of each sequence. The first V have no logit positions."""
    B, S = tokens.ids_BS.shape
    return replace(
        tokens,
        ids_BS=tokens.ids_BS[:, V:],
        position_BS=tokens.position_BS[:, V:],
        visible_BSK=None if tokens.visible_BSK is None else tokens.visible_BSK[:, V:],
        logit_positions_M=tokens.logit_positions_M // S * (S - V) + tokens.logit_positions_M % S - V,
        count=tokens.count and tokens.count - B * V,
        real_BS=None if tokens.real_BS is None else tokens.real_BS[:, V:],
    )


def train_adapter(folder: Path, config: Config, settings: Any, model: LoadedModel) -> dict[str, Any]:
    """Train the run's adapter and write it. Returns the rest of training.json.

    Args:
        settings: `name`, `virtual_tokens`, `learning_rate`, `epochs`, `batch_size`, and the keys of the questions.
    """
    from moe_lab.methods.references.documents import reference_documents

    documents = reference_documents(config, settings)
    examples = _examples(config, settings, documents, model)
    recipe = Recipe(settings.learning_rate, settings.epochs, settings.batch_size, config.seed)
    start = time.perf_counter()
    with with_adapter(model.model, settings.name, settings.virtual_tokens, config.seed) as wrapped:
        losses = train(wrapped, examples, recipe, folder)
        check_trained(wrapped.prompt_encoder)
        with writing(folder / "adapter"):
            wrapped.save_pretrained(str(folder / "adapter"))
            obey_umask(folder / "adapter")
        trained = sum(parameter.numel() for parameter in wrapped.prompt_encoder.parameters())
    epoch = losses[-recipe.steps(len(examples)) // recipe.epochs :]
    return {
        "recipe": asdict(recipe),
        "questions": len(examples),
        "steps": len(losses),
        "parameters": trained,
        "loss_of_last_epoch": sum(epoch) / len(epoch),
        "last_session_seconds": time.perf_counter() - start,
        "reference": {"label": documents.label, "dropped": documents.dropped, "sources": documents.sources},
        "all_versions": versions(),
    }


def _examples(
    config: Config, settings: Any, documents: ReferenceDocuments, model: LoadedModel
) -> list[Example]:
    from moe_lab.methods.references.store import reference_questions

    lm = EngineLM(model.model, model.tokenizer, **_options(model, config, settings.virtual_tokens))
    questions = reference_questions(config, documents)
    return [Example(*lm.encode_pair(question.prompt, question.right_answer)) for question in questions]
