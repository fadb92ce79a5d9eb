"""Models and adapters that are trained once and shared by runs: outputs/models/<model>-<method>-<id8>/."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe_lab.config.schema import Config
from moe_lab.results.artifact import Artifact
from moe_lab.results.identity import folder_name, run_id


@dataclass(frozen=True, kw_only=True)
class Trained(Artifact):
    """A trained model or adapter, with the record training.json."""

    made: str
    """The folder in it of what was trained; where that has gone, it is trained again."""

    @classmethod
    def of(cls, config: Config, content: dict[str, Any], made: str) -> Trained:
        """The model or adapter that `content` determines."""
        digest = run_id(content)
        name = folder_name(config.model.name, config.method.name, digest=digest)
        folder = Path(config.output_dir) / "models" / name
        return cls(folder=folder, id=digest, record="training.json", scratch="checkpoints", made=made)

    def is_whole(self, content: dict[str, Any]) -> bool:
        return (self.folder / self.made).is_dir()

    def load_or_train(
        self, content: dict[str, Any], train: Callable[[Path], dict[str, Any]]
    ) -> dict[str, Any]:
        """The record and its `folder`. `train(folder)` trains, or continues, and returns the record's content."""
        record = self.load_or_make(lambda: train(self.folder) | content)
        return record | {"folder": self.folder}
