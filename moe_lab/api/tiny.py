"""The embedded model, to try the Python interface without a download."""

from __future__ import annotations

from typing import Any

from moe_lab.config.schema import ModelConfig
from moe_lab.models.load import load_model
from moe_lab.progress import bars_of_libraries_hidden


def tiny() -> tuple[Any, Any]:
    """The embedded model and its tokenizer, as `model=tiny` of the command loads them; nothing is downloaded.

        model, tokenizer = moe_lab.tiny()
        model.generate(**tokenizer("ben has 3 apples .", return_tensors="pt"), max_new_tokens=8)

    The model is an OLMoE of transformers in evaluation mode: 8 MoE layers, 16 experts, 4 per token, 4 million
    parameters, trained on a toy world of small numbers and facts. It is in float32 on a CPU, else on the GPU in the
    dtype of the checkpoint. The tokenizer pads on the left.

    Every call loads a model of its own, in about a second.
    """
    with bars_of_libraries_hidden():
        loaded = load_model(ModelConfig(name="tiny"), dtype="auto", device="auto", offline=True)
    loaded.tokenizer.padding_side = "left"  # as generation needs it
    return loaded.model, loaded.tokenizer
