"""The model in memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moe_lab.config.schema import Config
    from moe_lab.models.load import LoadedModel


class ModelPool:
    """Keeps the last loaded model, so that runs of one model load it once. Another model replaces it."""

    def __init__(self) -> None:
        self._key: tuple[Any, ...] | None = None
        self._loaded: LoadedModel | None = None

    def get(self, config: Config) -> LoadedModel:
        """The model of a run, loaded unless it is in memory. Raises ModelError."""
        from moe_lab.models.load import load_model

        key = (repr(asdict(config.model)), config.dtype, config.device)
        if self._loaded is None or key != self._key:
            self.free()
            self._loaded = load_model(
                config.model, dtype=config.dtype, device=config.device, offline=config.offline
            )
            self._key = key
        return self._loaded

    def free(self) -> None:
        """Remove the model from memory, and what a training left in reference cycles."""
        import gc

        device = None if self._loaded is None else self._loaded.device
        self._loaded = self._key = None
        gc.collect()
        if device is not None and device.type == "cuda":
            import torch

            torch.cuda.empty_cache()
