"""What judges with a local model share. It is a folder or a repository of the hub, as `model.path`
is."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import PreTrainedConfig

from moe_lab.config.paths import user_path
from moe_lab.config.schema import Config, ModelConfig
from moe_lab.errors import ModelError, reading
from moe_lab.models.checks import check_complete, check_weights
from moe_lab.models.facts import resolve_device, resolve_dtype
from moe_lab.models.identity import source_identity
from moe_lab.models.memory import own_memory
from moe_lab.models.source import (
    NO_CODE,
    check_has_weights,
    model_commit,
    model_folder,
    model_source,
    read_config,
)
from moe_lab.models.tokenizer import load_tokenizer, rendered
from moe_lab.tasks.judges import Exchange, Judge


class LocalJudge(Judge):
    """A judge with a local model: a folder, or a hub id with or without `@revision`."""

    default: str
    """Hub id of the default model."""
    model_key: ClassVar[str]
    """The key of `task` that names the model."""

    def __init__(self, config: Config):
        super().__init__(config)
        self.source = str(getattr(config.task, self.model_key) or self.default)
        self.is_folder = user_path(self.source).is_dir()
        path = self.source
        revision = None
        if not self.is_folder and "@" in self.source:
            path, _, revision = self.source.partition("@")
        self.model = ModelConfig(name=self.name, path=path, revision=revision or None)
        self.device = resolve_device(config.device)
        self.batch_size = config.batch_size if isinstance(config.batch_size, int) else 8

    @cached_property
    def stored_config(self) -> PreTrainedConfig:
        """The configuration of the model. Raises ModelError if there is none."""
        return read_config(self.model, offline=self.config.offline)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of the model, with a padding token. Raises ModelError if there is none."""
        tokenizer = load_tokenizer(self.model, offline=self.config.offline)
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer

    @property
    def dtype(self) -> str:
        return resolve_dtype("auto", self.device, self.stored_config)

    def folder(self) -> Path:
        return model_folder(self.model, offline=self.config.offline, weights=True)

    def check(self) -> None:
        """Raises ConfigError or ModelError for a model that is not available."""
        super().check()
        check_has_weights(self.model, offline=self.config.offline)
        if self.config.offline or self.is_folder:
            self.folder()  # raises ModelError for missing files

    def _identity(self) -> dict[str, Any]:
        """The content of a folder, or hub id and commit; and the dtype."""
        commit = model_commit(self.model, offline=self.config.offline)
        return {"model": source_identity(model_source(self.model), commit), "dtype": self.dtype}

    @contextmanager
    def loaded(self, auto_class: Any) -> Iterator[Any]:
        """The model on its device, removed afterwards. Raises ModelError if weights are missing or
        do not fit."""
        name = f"{self.source}, the model of the judge {self.name},"
        with reading(name, raises=ModelError, says="could not be loaded"):
            model, report = auto_class.from_pretrained(
                self.folder(),
                dtype=getattr(torch, self.dtype),
                local_files_only=True,
                weights_only=True,  # nothing of a .bin file is executed
                output_loading_info=True,
                **NO_CODE,
            )
        check_complete(report, name, model.config)
        check_weights(model, name)
        try:
            yield model.to(self.device).eval()
        finally:
            del model
            gc.collect()
            device_module = own_memory(self.device)
            if device_module is not None:
                device_module.empty_cache()

    def in_template(self, exchange: Exchange, as_parts: bool = False, **options: Any) -> str:
        """The exchange in the tokenizer's chat template.

        Args:
            as_parts: whether the template takes a message as a list of parts instead of a text.
            options: of the template.
        """
        messages = []
        for role, text in (("user", exchange.prompt), ("assistant", exchange.answer)):
            content = [{"type": "text", "text": text}] if as_parts else text
            messages.append({"role": role, "content": content})
        template = self.tokenizer.apply_chat_template
        return rendered(self.tokenizer, lambda: template(messages, tokenize=False, **options))
