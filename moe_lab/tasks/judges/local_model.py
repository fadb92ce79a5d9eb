"""The model of a local judge: a folder or a repository of the hub, as `model.path`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from moe_lab.config.schema import Config, ModelConfig
from moe_lab.errors import ModelError
from moe_lab.tasks.judges.judge import Judge

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

BATCH = 8
"""Batch size with batch_size=auto."""


@dataclass(frozen=True)
class LocalModel:
    """The source and settings of a judge's model."""

    judge: str
    source: str
    """Folder, or hub id with or without `@revision`."""
    config: Config

    @property
    def is_folder(self) -> bool:
        return Path(self.source).expanduser().is_dir()

    @property
    def model(self) -> ModelConfig:
        """As the configuration of a run's model."""
        name, _, revision = (self.source, "", "") if self.is_folder else self.source.partition("@")
        return ModelConfig(name=self.judge, path=name, revision=revision or None)

    def stored_config(self) -> PreTrainedConfig:
        """The configuration of the model. Raises ModelError if there is none."""
        from moe_lab.models.source import read_config

        return read_config(self.model, offline=self.config.offline)

    def tokenizer(self) -> Any:
        """The tokenizer of the model. Raises ModelError if there is none."""
        from moe_lab.models.tokenizer import load_tokenizer

        return load_tokenizer(self.model, offline=self.config.offline)

    def folder(self) -> Path:
        """The folder with the weights, fetched if they are missing. Raises ModelError."""
        from moe_lab.models.source import model_folder
        from moe_lab.models.weight_files import known_weights

        folder = model_folder(self.model, offline=self.config.offline, weights=True)
        if not known_weights(folder):
            raise ModelError(f"{folder}, the model of the judge {self.judge}, has no weights.")
        return folder

    def identity(self) -> dict[str, Any]:
        """The content of a folder, or hub id and commit; and the dtype."""
        from moe_lab.models.identity import source_identity
        from moe_lab.models.source import model_commit, model_source

        commit = model_commit(self.model, offline=self.config.offline)
        return {"model": source_identity(model_source(self.model), commit), "dtype": self.dtype}

    @property
    def dtype(self) -> str:
        from moe_lab.models.facts import resolve_dtype

        return resolve_dtype("auto", self.device, self.stored_config())

    @property
    def device(self) -> torch.device:
        from moe_lab.models.facts import resolve_device

        return resolve_device(self.config.device)

    @property
    def batch_size(self) -> int:
        return self.config.batch_size if isinstance(self.config.batch_size, int) else BATCH

    @contextmanager
    def loaded(self, auto_class: Any) -> Iterator[Any]:
        """The model on its device, removed afterwards. Raises ModelError if weights are missing or do not fit."""
        import gc

        import torch

        from moe_lab.models.check_numbers import check_weights
        from moe_lab.models.check_weights import check_complete
        from moe_lab.models.foreign_code import NO_CODE, refuse_adapter

        folder = self.folder()
        refuse_adapter(Path(folder), f"{folder}, the model of the judge {self.judge},")
        try:
            model, report = auto_class.from_pretrained(
                folder,
                dtype=getattr(torch, self.dtype),
                local_files_only=True,
                output_loading_info=True,
                **NO_CODE,
            )
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise ModelError(f"The judge {self.judge} could not be loaded from {folder}: {reason}") from error
        check_complete(report, folder, f"{folder}, the model of the judge {self.judge},", model.config)
        check_weights(model, f"{folder}, the model of the judge {self.judge},")
        try:
            yield model.to(self.device).eval()
        finally:
            del model
            gc.collect()
            if self.device.type == "cuda":
                torch.cuda.empty_cache()


class LocalJudge(Judge):
    """A judge with a local model."""

    default: str
    """Hub id of the default model."""
    model_key: ClassVar[str]

    def __init__(self, config: Config):
        super().__init__(config)
        self.local = LocalModel(self.name, getattr(config.task, self.model_key) or self.default, config)

    def check(self) -> None:
        super().check()
        if self.config.offline or self.local.is_folder:
            self.local.folder()

    def folders(self) -> list[Path]:
        return [self.local.folder()]


def by_length(texts: Sequence[str], size: int) -> list[list[int]]:
    """Indices of texts in batches of similar length, with little padding."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    return [order[start : start + size] for start in range(0, len(order), size)]
