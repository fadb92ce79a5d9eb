"""A small GPT-OSS with its special tokens and chat template; the replies are given."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.families import COMMON, ZOO
from tests.support.fixed_replies import reply_with_tokens
from tests.support.hub.published import GPT_OSS_TEMPLATE, GPT_OSS_TOKENS
from tests.support.models import build, make_tokenizer

FINAL = "<|channel|>final<|message|>"
OPEN = "<|start|>assistant"
"""The end of a prompt: the model itself chooses the channel."""


def thought(reasoning: str) -> str:
    """The message of the analysis channel."""
    return f"<|channel|>analysis<|message|>{reasoning}<|end|>"


def reply(reasoning: str, answer: str) -> str:
    """What the model writes after OPEN."""
    return f"{thought(reasoning)}{OPEN}{FINAL}{answer}<|return|>"


def harmony_tokenizer() -> Any:
    tokenizer = make_tokenizer()
    names = {
        "bos_token": "<|startoftext|>",
        "eos_token": "<|return|>",
        "pad_token": "<|endoftext|>",
    }
    tokenizer.add_special_tokens(names | {"extra_special_tokens": list(GPT_OSS_TOKENS)})
    tokenizer.chat_template = GPT_OSS_TEMPLATE
    return tokenizer


def harmony_model(family: str = "gpt_oss") -> Any:
    end = harmony_tokenizer().eos_token_id
    return build(
        family, COMMON | ZOO[family] | {"eos_token_id": end, "max_position_embeddings": 4096}
    )


def save_harmony(folder: Path) -> Path:
    """The folder with both."""
    harmony_model().save_pretrained(folder)
    harmony_tokenizer().save_pretrained(folder)
    return folder


def answer_with(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let the model's greedy reply to every prompt be this text."""
    tokens = harmony_tokenizer().encode(text, add_special_tokens=False)
    reply_with_tokens(monkeypatch, tokens)
