"""MoE-Bench's metrics of what experts do, on texts of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moe_lab.api.loaded import loaded_model
from moe_lab.config.arguments import checked_ids, wrong
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
    loaded = loaded_model(model, tokenizer, needs_tokenizer=tokenizer is not None)
    if not isinstance(texts, list | tuple):
        raise wrong("texts", texts, "give a list of texts, or of lists of token ids")
    if not texts:
        raise ConfigError("expert_metrics was given no text.")
    vocabulary = loaded.model.get_input_embeddings().num_embeddings
    rows = [_row(text, tokenizer, vocabulary, loaded.facts.max_length) for text in texts]
    return measure(loaded.model, rows)


def _row(text: Any, tokenizer: Any, vocabulary: int, most: int) -> dict[str, list[int]]:
    """A text as `input_ids` and `labels`."""
    ids = text
    if isinstance(text, str):
        if tokenizer is None:
            raise ConfigError("expert_metrics(model, texts, tokenizer) needs the tokenizer of texts.")
        ids = tokenizer(text)["input_ids"]
        if not 2 <= len(ids) <= most:
            raise ConfigError(
                f"The text {text!r:.60} has {len(ids)} tokens; it must have between 2 and {most}."
            )
    ids = checked_ids("texts", ids, vocabulary, most)
    if len(ids) < 2:
        raise wrong("texts", text, "one token id; a text must have at least 2")
    return {"input_ids": ids, "labels": ids}
