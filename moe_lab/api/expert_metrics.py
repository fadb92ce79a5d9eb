"""`moe_lab.expert_metrics`: MoE-Bench's metrics of a model in memory."""

from collections.abc import Sequence
from typing import Any

from moe_lab.config.arguments import checked_ids, wrong
from moe_lab.errors import ConfigError


def expert_metrics(
    model: Any, texts: Sequence[str] | Sequence[Sequence[int]], tokenizer: Any = None
) -> dict[str, Any]:
    """Load Balance, Collaboration, Capacity and Specialization on texts (MoE-Bench, section 4.1).

        metrics = expert_metrics(model, ["two and two are four", ...], tokenizer)
        metrics["load_balance"]["value"]

    The model reads every text once, and again under each policy of Capacity and Specialization. It
    is measured as `metrics=expert` measures a model in training: accuracy is the share of tokens
    that the model predicts, given the true tokens before them.

    Args:
        texts: texts of which each fits the model's window, or lists of their token ids.
        tokenizer: for texts; its special tokens are part of them.

    Returns `accuracy`, `load_balance` and `collaboration` (bits), `capacity` (`least` and `most`:
    accuracy lost without the least and the most selected expert of each layer) and `specialization`
    (accuracy lost under random routing). Each has `value` and `ci95`, its 95% interval over texts;
    those in bits have `layers` and their largest value, too.

    Raises ConfigError for a text with less than two tokens or with more than the model reads, and
    ModelError for a model without routers whose tokens can be routed otherwise.
    """
    from moe_lab.api.language_model import loaded_model
    from moe_lab.metrics.training_metrics import measure
    from moe_lab.models.output_flags import expected_flags

    loaded = loaded_model(model, tokenizer, needs_tokenizer=tokenizer is not None)
    if not isinstance(texts, list | tuple) or not texts:
        raise wrong("texts", texts, "give a list of texts, or of lists of token ids")
    if tokenizer is None and any(isinstance(text, str) for text in texts):
        raise ConfigError("expert_metrics(model, texts, tokenizer) needs the tokenizer of texts.")
    vocabulary = loaded.model.get_input_embeddings().num_embeddings
    rows = []
    for text in texts:
        ids = tokenizer(text)["input_ids"] if isinstance(text, str) else text
        ids = checked_ids("texts", ids, vocabulary, loaded.facts.max_length, least=2)
        rows.append({"input_ids": ids, "labels": ids})
    with expected_flags(loaded.model.config):
        return measure(loaded.model, rows)
