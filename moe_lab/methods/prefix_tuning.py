"""`method=prefix-tuning` (arXiv 2101.00190), a baseline of C3PO's Table 1."""

from __future__ import annotations

from dataclasses import dataclass

from moe_lab.methods.virtual_tokens.method import VirtualTokens, VirtualTokensConfig


class PrefixTuning(VirtualTokens):
    """Learned keys and values before the prompt's, in every layer."""

    @dataclass(kw_only=True)
    class Config(VirtualTokensConfig):
        """The learning rate of peft's own example of prefix tuning."""

        name: str = "prefix-tuning"
        learning_rate: float = 1e-2
