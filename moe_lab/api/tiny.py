"""`moe_lab.tiny`: the embedded model."""

from typing import Any


def tiny(noisy: bool = False) -> tuple[Any, Any]:
    """The embedded model and its tokenizer, as `model=tiny` of the command loads them; nothing is
    downloaded.

        model, tokenizer = moe_lab.tiny()
        model.generate(**tokenizer("ben has 3 apples .", return_tensors="pt"), max_new_tokens=8)

    The model is an OLMoE of transformers in evaluation mode: 8 MoE layers, 16 experts, 4 per token,
    4 million parameters, trained on a toy world of small numbers and facts. It is in float32 on a
    CPU, else on the GPU in the dtype of the checkpoint. The tokenizer pads on the left.

    Args:
        noisy: the other embedded model, `model=tiny-noisy`, on which RoE has an effect: 3 MoE
            layers, 8 experts, 2 per token, trained with routing noise on few texts.

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
