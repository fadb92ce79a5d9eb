"""`method=soft-prompt`: prompt tuning (arXiv 2104.08691), a baseline of C3PO's Table 1."""

from __future__ import annotations

from dataclasses import dataclass

from moe_lab.methods.virtual_tokens.method import VirtualTokens, VirtualTokensConfig


class SoftPrompt(VirtualTokens):
    """Learned input embeddings before the prompt's."""

    @dataclass(kw_only=True)
    class Config(VirtualTokensConfig):
        """The learning rate of peft's own example of prompt tuning."""

        name: str = "soft-prompt"
        learning_rate: float = 3e-2
