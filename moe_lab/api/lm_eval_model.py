"""The model `moe_lab` of lm-eval's own command, by the entry point `lm_eval.models`.

    lm_eval run --model moe_lab --model_args pretrained=<path>,method=roe,n=8 --tasks gsm8k

lm-eval finds it from its first release with plug-ins on (EleutherAI/lm-evaluation-harness#4013).
"""

from __future__ import annotations

from typing import Any

from moe_lab.api.lm import MethodLM, lm
from moe_lab.config.schema import ModelConfig
from moe_lab.models.load import load_model


class LmEvalModel(MethodLM):
    """A model under a method, loaded as the command loads it.

    Args:
        pretrained: hub id or folder; None: the embedded model.
        method: as in `moe_lab.lm`, and `keys` are the method's.
        revision, tokenizer: as `model.revision` and `model.tokenizer` of the command.
        dtype: as `dtype` of the command.
        device: as `device` of the command; None: auto.
        seed, batch_size, max_batch_size, max_length: as in `moe_lab.lm`.

    Raises what `moe_lab.lm` raises, and ModelError for a model that cannot be loaded.
    """

    def __init__(
        self,
        pretrained: str | None = None,
        method: str = "base",
        *,
        revision: str | None = None,
        tokenizer: str | None = None,
        dtype: str = "auto",
        device: str | None = None,
        seed: int = 0,
        batch_size: int | str = "auto",
        max_batch_size: int | None = None,
        max_length: int | None = None,
        **keys: Any,
    ):
        model = ModelConfig(path=pretrained, revision=revision, tokenizer=tokenizer)
        loaded = load_model(model, dtype=dtype, device=device or "auto", offline=False)
        under_method = lm(
            loaded.model,
            loaded.tokenizer,
            method,
            seed=seed,
            batch_size=_number(batch_size),
            max_batch_size=max_batch_size,
            max_length=max_length,
            **keys,
        )
        super().__init__(under_method.open, loaded.tokenizer)


def _number(batch_size: int | str) -> int | str:
    """The batch size as a number; lm-eval's command passes a text."""
    if isinstance(batch_size, str) and batch_size.isdigit():
        return int(batch_size)
    return batch_size
