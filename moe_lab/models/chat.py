"""Chat templates, applied to prompts by a tokenizer alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from lm_eval.api.model import TemplateLM


class Framing:
    """The part of lm-eval's model interface that applies a chat template. It needs no weights.

    Args:
        load_tokenizer: returns the tokenizer; called at its first use.
        chat_template: lm-eval's `apply_chat_template`: False, True, or the name of one of several templates.
    """

    def __init__(self, load_tokenizer: Callable[[], Any], chat_template: bool | str | None = False):
        self.chat_template_args: dict[str, Any] = {}
        self._load_tokenizer = load_tokenizer
        self._template_name = chat_template

    @cached_property
    def tokenizer(self) -> Any:
        tokenizer = self._load_tokenizer()
        if self._template_name:
            tokenizer.chat_template = TemplateLM.chat_template(
                _TokenizerHolder(tokenizer), self._template_name
            )
        return tokenizer

    @property
    def tokenizer_name(self) -> str:
        return self.tokenizer.name_or_path.replace("/", "__")

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        from lm_eval.models.huggingface import HFLM

        hf: Any = HFLM  # its method reads the tokenizer and chat_template_args alone
        return hf.apply_chat_template(self, chat_history, add_generation_prompt)


class _TokenizerHolder:
    """The attribute of a model that `TemplateLM.chat_template` reads."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
