"""Functions on a model of one's own: `freeze` (parameters), `expert_metrics` (MoE-Bench); `tiny`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from moe_lab.config.arguments import checked_ids, wrong
from moe_lab.errors import ConfigError
from moe_lab.routing.hook import require_routers

# Freezing


@contextmanager
def freeze(model: nn.Module, *groups: str) -> Iterator[int]:
    """Freeze groups of parameters inside the context; yields the number of frozen parameters.

        with freeze(model, "router"):
            model(**batch).loss.backward()
            optimizer.step()

    Frozen parameters have no gradient, so that the optimizers of torch skip them: no step, no momentum, no weight
    decay. Afterwards they are trained again, except those that the model did not train before.

    Args:
        groups: "router", "experts" (the routed ones), "shared_experts" or "other". An adapter of PEFT belongs to the
            group of what it adapts.

    Raises ConfigError for an unknown group and for one without parameters that are trained, and ModelError for a model
    without routers.
    """
    from moe_lab.methods.finetune_freeze.parameter_groups import parameter_groups, trainable

    require_routers(model)
    trained = trainable(parameter_groups(model))
    frozen = []
    for name in groups or (None,):
        if not isinstance(name, str) or name not in trained:
            raise ConfigError(
                f"freeze(model, {name!r}): name groups one by one, among {', '.join(trained)}."
            )
        if not trained[name]:
            raise ConfigError(
                f"freeze(model, {name!r}): {type(model).__name__} trains no such parameters."
            )
        frozen.extend(trained[name])
    for parameter in frozen:
        parameter.requires_grad = False
        parameter.grad = None
    try:
        yield sum(parameter.numel() for parameter in frozen)
    finally:
        for parameter in frozen:
            parameter.requires_grad = True


# MoE-Bench's metrics


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
    Each has `value` and `ci95`, its 95% interval over texts; those in bits have `layers` and their largest value, too.

    Raises ConfigError for a text with less than two tokens or with more than the model reads, and ModelError for a
    model without routers whose tokens can be routed otherwise.
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


def tiny(noisy: bool = False) -> tuple[Any, Any]:
    """The embedded model and its tokenizer, as `model=tiny` of the command loads them; nothing is downloaded.

        model, tokenizer = moe_lab.tiny()
        model.generate(**tokenizer("ben has 3 apples .", return_tensors="pt"), max_new_tokens=8)

    The model is an OLMoE of transformers in evaluation mode: 8 MoE layers, 16 experts, 4 per token, 4 million
    parameters, trained on a toy world of small numbers and facts. It is in float32 on a CPU, else on the GPU in the
    dtype of the checkpoint. The tokenizer pads on the left.

    Args:
        noisy: the other embedded model, `model=tiny-noisy`, on which RoE has an effect: 3 MoE layers, 8 experts, 2 per
            token, trained with routing noise on few texts.

    Every call loads a model of its own, in about a second.
    """
    from moe_lab.config.progress import bars_of_libraries_hidden
    from moe_lab.config.schema import ModelConfig
    from moe_lab.models.load import load_model

    config = ModelConfig(name="tiny-noisy" if noisy else "tiny")
    with bars_of_libraries_hidden():
        loaded = load_model(config, dtype="auto", device="auto", offline=True)
    loaded.tokenizer.padding_side = "left"  # as generation needs it
    return loaded.model, loaded.tokenizer
