"""Tokenizers, loaded without weights to build prompts and count tokens."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from transformers import AutoTokenizer

from moe_lab.config.schema import Config, ModelConfig
from moe_lab.errors import ConfigError, ModelError
from moe_lab.models.check_files import check_mappings, first_line
from moe_lab.models.foreign_code import NO_CODE, refuse_code
from moe_lab.models.source import model_source, tokenizer_folder

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}"
    "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""For tokenizers of base models, which have no chat template. Fine-tuning saves it with the model."""


def load_tokenizer(model: ModelConfig, *, offline: bool) -> Any:
    """The tokenizer of a model. Raises ModelError if there is none.

    Raises ConfigError for `model.add_bos_token` with a tokenizer without that token.
    """
    source = model.tokenizer or model_source(model)
    folder = tokenizer_folder(model, offline=offline)
    check_mappings(folder, f"The tokenizer of {source}")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, **NO_CODE)
        empty = not tokenizer.encode("a", add_special_tokens=False)
    except Exception as error:  # tokenizers raises Exception itself, transformers whatever a value leads to
        refuse_code(error, f"The tokenizer of {source}", folder / "tokenizer_config.json")
        raise ModelError(_no_tokenizer(source, first_line(error))) from error
    if empty:
        # transformers returns an empty tokenizer for a folder without tokenizer files
        raise ModelError(_no_tokenizer(source, "it has no vocabulary"))
    if model.add_bos_token and tokenizer.bos_token_id is None:
        raise ConfigError(
            f"model.add_bos_token=true: the tokenizer of {source} has no token for the beginning. Leave it out."
        )
    if model.add_bos_token and tokenizer.bos_token_id not in tokenizer.encode("a"):
        # transformers 5 ignores add_bos_token in tokenizer_config.json beside a tokenizer.json
        tokenizer.add_bos_token = True
    return tokenizer


def with_template(tokenizer: Any) -> bool:
    """Set the plain chat template on a tokenizer without one. Returns whether it was set."""
    if tokenizer.chat_template:
        return False
    if tokenizer.eos_token is None:
        raise ConfigError("The tokenizer has neither a chat template nor a token for the end of an answer.")
    tokenizer.chat_template = PLAIN_TEMPLATE
    return True


def prompt_tokenizer(config: Config) -> Any:
    """The tokenizer for prompts, with the plain chat template if it has none and the task needs one."""
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


def _no_tokenizer(source: str, reason: str) -> str:
    return (
        f"The tokenizer of {source} could not be loaded: {reason}.\n"
        "model.tokenizer names another folder or hub id."
    )
