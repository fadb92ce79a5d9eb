"""Everything private in transformers that this package reads, calls or sets, in one place.

A new version of transformers may rename any of it. `tests/models/test_transformers_internals.py`
tries each and names what broke. Known to work with transformers from `FIRST` on and before
`BEFORE`.

Subclasses of transformers' models also set the class attributes that its own models set
(`models/designs`).
"""

import copy
import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

FIRST, BEFORE = "5.24", "5.25"
SEQUENTIAL = "HF_DEACTIVATE_ASYNC_LOAD"
"""transformers' environment variable that disables reading ahead."""


def generation_config(model: Any, given: Any = None, **options: Any) -> tuple[Any, dict[str, Any]]:
    """(generation settings, options that transformers does not know, by name).

    The settings are the model's own, overridden by `given` (a GenerationConfig or None) and by
    `options`, as `generate` merges them.
    """
    return model._prepare_generation_config(given, **options)


def prepare_special_tokens(model: Any, config: Any) -> None:
    """Set the special tokens of generation settings as tensors, as `generate` does."""
    model._prepare_special_tokens(config, device=model.device)


def logits_processors(model: Any, config: Any, prompt: Sequence[int]) -> Any:
    """The LogitsProcessorList that `generate` builds for these settings and a prompt (token ids)
    alone.

    The special tokens of `config` must be prepared. Its numbers of new tokens become lengths, as in
    `generate`.
    """
    import torch

    config_of_prompt = copy.copy(config)
    if config.max_new_tokens is not None:
        config_of_prompt.max_length = len(prompt) + config.max_new_tokens
    if config.min_new_tokens is not None:
        config_of_prompt.min_length = len(prompt) + config.min_new_tokens
    return model._get_logits_processor(
        config_of_prompt,
        input_ids_seq_length=len(prompt),
        encoder_input_ids=torch.tensor([list(prompt)], device=model.device),
        device=str(model.device),
    )


def pad_token(config: Any) -> int | None:
    """The padding token of generation settings that `generate` has prepared; None without one."""
    return None if config._pad_token_tensor is None else int(config._pad_token_tensor)


def drops_cache(model: Any, length: int) -> bool:
    """Whether `generate` drops its cache when a text has `length` tokens, and reads the whole text
    again.

    Phi's models do so at the length at which their rotary embeddings change.
    """
    import torch
    from transformers.generation.utils import ALL_CACHE_NAMES

    parameters = inspect.signature(type(model).prepare_inputs_for_generation).parameters
    cache = {name: _CacheOfLength(length - 1) for name in ALL_CACHE_NAMES if name in parameters}
    ids = torch.zeros(1, length, dtype=torch.long)
    prepared = model.prepare_inputs_for_generation(ids, next_sequence_length=1, **cache)
    return prepared["input_ids"].shape[1] > 1


class MarkedConversation(NamedTuple):
    """A conversation in a chat template."""

    text: str
    blocks: list[tuple[int, int]]
    """Of each `{% generation %}` block of the template: its first character, and the one after its
    last."""


def generation_blocks(tokenizer: Any, conversation: Sequence[Any]) -> MarkedConversation:
    """The text of a conversation, and where the template marks answers in it.

    `apply_chat_template` returns the tokens of all blocks together.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    [text], [blocks] = render_jinja_template(
        [list(conversation)],
        chat_template=tokenizer.get_chat_template(),
        return_assistant_tokens_mask=True,
        **tokenizer.special_tokens_map,
    )
    return MarkedConversation(text, blocks)


class _CacheOfLength:
    """What `prepare_inputs_for_generation` asks of a cache."""

    def __init__(self, length: int):
        self.length = length

    def get_seq_length(self) -> int:
        return self.length


def attention_of(config: Any) -> str | None:
    """The name of the attention function of a configuration: sdpa, eager, or a registered one."""
    return config._attn_implementation


def experts_of(config: Any) -> str | None:
    """The name of the experts implementation of a configuration: grouped_mm, eager, ...; None for
    families with one."""
    return getattr(config, "_experts_implementation", None)


@contextmanager
def replaced_attention(model: Any, usual: str, name: str) -> Iterator[None]:
    """Inside the context the layers of this model whose attention is `usual` call the registered
    function `name`.

    `set_attn_implementation` would read each model file's source to find out whether it may.
    """
    changed: list[Any] = []
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is None or any(config is known for known in changed):
            continue
        if attention_of(config) == usual:
            changed.append(config)
    for config in changed:
        config._attn_implementation_internal = name
    try:
        yield
    finally:
        for config in changed:
            config._attn_implementation_internal = usual


def keeps_states(model: Any) -> bool:
    """Whether a model says that its cache keeps recurrent states, which cannot be rolled back."""
    return bool(getattr(model, "_is_stateful", False))


def class_of(auto_class: Any, config: Any) -> Any:
    """The model class that an Auto class has for this configuration."""
    return auto_class._model_mapping[type(config)]


def can_set_experts(model_class: Any) -> bool:
    """Whether models of this class have several experts implementations."""
    return model_class._can_set_experts_implementation()


@contextmanager
def reading_once() -> Iterator[None]:
    """Inside the context, `from_pretrained` reads tensors one after the other and maps no files.

    transformers maps safetensors files and reads ahead in threads. On a CPU that keeps up to two
    copies in memory: pages of the files, and the tensors made from them (fused experts have to be
    copied). Here memory holds the model and the parts of one fused parameter.
    """
    from transformers import modeling_utils

    before = os.environ.get(SEQUENTIAL)
    mapped = modeling_utils.safe_open
    os.environ[SEQUENTIAL] = "1"
    modeling_utils.safe_open = _open_unmapped
    try:
        yield
    finally:
        modeling_utils.safe_open = mapped
        os.environ.pop(SEQUENTIAL)
        if before is not None:
            os.environ[SEQUENTIAL] = before


def _open_unmapped(file: str, **options: Any) -> Any:
    from safetensors import safe_open

    return safe_open(file, **(options | {"backend": "pread"}))
