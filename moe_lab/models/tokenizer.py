"""Tokenizers, loaded without weights to build prompts and count tokens, and their chat
templates."""

import hashlib
import json
import re
from collections.abc import Callable
from datetime import date
from functools import cached_property
from types import SimpleNamespace
from typing import Any, TypeVar

from transformers import AutoTokenizer

from moe_lab.config.schema import Config, ModelConfig
from moe_lab.errors import ConfigError, reading
from moe_lab.models.source import (
    NO_CODE,
    SMALL_FILES,
    model_folder,
    model_source,
    reading_files,
    small_folder,
)

Rendered = TypeVar("Rendered")

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""For tokenizers of base models, which have no chat template. Fine-tuning saves it with the
model."""


def load_tokenizer(model: ModelConfig, *, offline: bool) -> Any:
    """The tokenizer of a model. Raises ModelError if there is none.

    Raises ConfigError for `model.add_bos_token` with a tokenizer without that token.
    """
    source = model.tokenizer or model_source(model)
    if model.tokenizer:
        folder = small_folder(model.tokenizer, SMALL_FILES, "tokenizer", offline)
    else:
        folder = model_folder(model, offline=offline)
    with reading_files(f"The tokenizer of {source} (model.tokenizer)"):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, **NO_CODE)
        if not tokenizer.encode("a", add_special_tokens=False):
            # transformers returns an empty tokenizer for a folder without tokenizer files
            raise ValueError("it has no vocabulary")
    if model.add_bos_token and tokenizer.bos_token_id is None:
        raise ConfigError(
            f"model.add_bos_token=true: the tokenizer of {source} has no token for the beginning. "
            "Leave it out."
        )
    if model.add_bos_token and tokenizer.bos_token_id not in tokenizer.encode("a"):
        # transformers 5 ignores add_bos_token in tokenizer_config.json if there is a tokenizer.json
        tokenizer.add_bos_token = True
    return tokenizer


def with_template(tokenizer: Any) -> None:
    """Set the plain chat template on a tokenizer without one.

    Raises ConfigError for one that has no end token either.
    """
    if tokenizer.chat_template:
        return
    if tokenizer.eos_token is None:
        raise ConfigError(
            "The tokenizer has neither a chat template nor a token that ends an answer."
        )
    tokenizer.chat_template = PLAIN_TEMPLATE


def prompt_tokenizer(config: Config) -> Any:
    """The tokenizer for prompts, with the plain chat template if it has none and the task needs
    one."""
    tokenizer = load_tokenizer(config.model, offline=config.offline)
    if config.task.chat_template and config.apply_chat_template is True:
        with_template(tokenizer)
    return tokenizer


def template_block(config: Config) -> dict[str, Any]:
    """{"chat_template": {"sha256", "plain"}} of the template around prompts; empty without one."""
    if not config.apply_chat_template:
        return {}
    template = prompt_tokenizer(config).chat_template
    text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    plain = template == PLAIN_TEMPLATE
    return {"chat_template": {"sha256": hashlib.sha256(text.encode()).hexdigest(), "plain": plain}}


def rendered(tokenizer: Any, render: Callable[[], Rendered]) -> Rendered:
    """What `render` makes with a tokenizer's chat template. Raises ConfigError where the template
    fails."""
    template = f"The chat template of {tokenizer.name_or_path}"
    remedy = "Use another tokenizer (model.tokenizer), or leave apply_chat_template out."
    with reading(template, remedy, says="fails"):
        return render()


DATE = date(2025, 8, 5)
_NOW = re.compile(r"""strftime_now\((["'])(.*?)\1\)""")


def dated(template: str) -> str:
    """A template that states DATE as the current date, where it states one (GPT-OSS, Llama 3).

    Otherwise a run that goes on the next day would have other prompts.
    """
    return _NOW.sub(lambda now: repr(DATE.strftime(now[2])), template)


class Framing:
    """The part of lm-eval's model interface that applies a chat template. It needs no weights.

    Args:
        load_tokenizer: returns the tokenizer; called at its first use.
        chat_template: lm-eval's `apply_chat_template`: False, True, or the name of one of several
            templates.
    """

    def __init__(self, load_tokenizer: Callable[[], Any], chat_template: bool | str | None = False):
        self.chat_template_args: dict[str, Any] = {}
        self._load_tokenizer = load_tokenizer
        self._template_name = chat_template

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, with the template that is used as its only one."""
        tokenizer = self._load_tokenizer()
        if self._template_name:
            from lm_eval.api.model import TemplateLM

            template = TemplateLM.chat_template(
                SimpleNamespace(tokenizer=tokenizer), self._template_name
            )
            tokenizer.chat_template = dated(template)
        return tokenizer

    @property
    def tokenizer_name(self) -> str:
        return self.tokenizer.name_or_path.replace("/", "__")

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The text of a conversation. Raises ConfigError where the template fails."""
        from lm_eval.models.huggingface import HFLM

        hf: Any = HFLM  # its method reads the tokenizer and chat_template_args alone
        return rendered(
            self.tokenizer,
            lambda: hf.apply_chat_template(self, chat_history, add_generation_prompt),
        )
