"""Designs that begin with large weights."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from moe_lab.methods.pretrain import training


@pytest.fixture
def wide(monkeypatch):
    """Weights at which routers and losses differ clearly, and load is uneven."""

    class Wide(AutoModelForCausalLM):
        @classmethod
        def from_config(cls, *args, **options):
            model = AutoModelForCausalLM.from_config(*args, **options)
            with torch.no_grad():
                for own in model.parameters():
                    if own.dim() > 1:
                        own *= 12
            return model

    monkeypatch.setattr(training, "AutoModelForCausalLM", Wide)
