"""MoE-Bench's metrics of what experts do, on texts of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moe_lab.api.loaded import loaded_model
from moe_lab.errors import ConfigError
from moe_lab.metrics.training_metrics import measure


def expert_metrics(
    model: Any, texts: Sequence[str] | Sequence[Sequence[int]], tokenizer: Any = None
) -> dict[str, Any]:
    """Load Balance, Collaboration, Capacity and Specialization on texts (MoE-Bench, section 4.1).

        found = expert_metrics(model, ["two and two are four", ...], tokenizer)
        found["load_balance"]["value"]

    The model reads every text once, and again under each policy of Capacity and Specialization. It is measured as
    `metrics=expert` measures a model in training: accuracy is the share of tokens that the model predicts, given the
    true tokens before them.

    Args:
        texts: texts of which each fits the model's window, or lists of their token ids.
        tokenizer: for texts; its special tokens are part of them.

    Returns `accuracy`, `load_balance` and `collaboration` (bits), `capacity` (`least` and `most`: accuracy lost without
    the least and the most selected expert of each layer) and `specialization` (accuracy lost under random routing).
    Each is {"value", "ci95"} with a 95% interval over texts; those in bits have `layers` and their largest value, too.

    Raises ConfigError for a text with less than two tokens or with more than the model reads, and ModelError for a
    model without routers whose tokens can be routed otherwise.
    """
    facts = loaded_model(model, tokenizer).facts
    rows = [_row(text, tokenizer) for text in texts]
    if not rows:
        raise ConfigError("expert_metrics was given no text.")
    for text, row in zip(texts, rows, strict=True):
        count = len(row["input_ids"])
        if not 2 <= count <= facts.max_length:
            raise ConfigError(
                f"The text {str(text)!r:.60} has {count} tokens; it must have between 2 and {facts.max_length}."
            )
    return measure(model, rows)


def _row(text: str | Sequence[int], tokenizer: Any) -> dict[str, list[int]]:
    """A text as `input_ids` and `labels`."""
    if isinstance(text, str):
        if tokenizer is None:
            raise ConfigError("expert_metrics(model, texts, tokenizer) needs the tokenizer of texts.")
        text = tokenizer(text)["input_ids"]
    ids = [int(token) for token in text]
    return {"input_ids": ids, "labels": ids}
