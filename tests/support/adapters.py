"""Adapters in peft's format with random values."""

from pathlib import Path
from typing import Any

import peft
import torch


def make_adapter(model: Any, kind: peft.PeftConfig, folder: Path, seed: int = 3) -> Any:
    """Wrap a model in an adapter, whose values are changed, and store it.

    Returns the wrapped model.
    """
    torch.manual_seed(seed)
    wrapped = peft.get_peft_model(model, kind)
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn_like(parameter))
    wrapped.save_pretrained(folder)
    return wrapped.eval()
