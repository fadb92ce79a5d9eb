"""Models and adapters that are trained once and shared by runs: outputs/models/<model>-<method>-<id8>/."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError, TrainingError
from moe_lab.methods.checkpoints import last_checkpoint
from moe_lab.results.artifact import Artifact
from moe_lab.results.atomic import obey_umask, write_json
from moe_lab.results.identity import folder_name, run_id
from moe_lab.results.stored_files import read_mapping, whole_mapping


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


def claim(folder: Path, identity: dict[str, Any]) -> None:
    """Write identity.json: whose checkpoints the folder has.

    Raises ConfigError for a folder with checkpoints of another training or process count.
    """
    owner = whole_mapping(folder / "identity.json")
    begun = last_checkpoint(folder / "checkpoints") is not None
    others = begun if owner is None else owner.get("id") != identity["id"]
    if others:
        raise ConfigError(
            f"{folder} holds the checkpoints of another model, schedule or recipe. Move it away, or choose another "
            "output_dir=."
        )
    for key in ("processes", "sharded"):
        if begun and owner is not None and owner.get(key) != identity[key]:
            raise ConfigError(
                f"{folder} holds the checkpoints of a training with {key}={owner.get(key)}, and now it is "
                f"{identity[key]}. Continue as it began, or remove its checkpoints/."
            )
    write_json(folder / "identity.json", identity)


def steps_kept(checkpoints: Path) -> int:
    """The steps of the last checkpoint."""
    last = last_checkpoint(checkpoints)
    return 0 if last is None else int(last.name.rpartition("-")[2])


def save_model(model: Any, tokenizer: Any, folder: Path, dtype: str) -> None:
    """Save a model and its tokenizer. Raises TrainingError for weights that are no numbers.

    Parameters have the precision that the model is evaluated in; biases that are no parameters stay float32.
    """
    import torch

    check_trained(model)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))
    model.config.dtype = getattr(torch, dtype)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    obey_umask(folder)


def check_trained(module: Any) -> None:
    """Raise TrainingError if the last step of a training diverged, whose loss nobody computes."""
    from moe_lab.models.check_numbers import LARGEST, out_of_range

    if name := out_of_range(module):
        raise TrainingError(
            f"The training diverged: {name} is NaN, infinite or larger than {LARGEST:g} after its last step. "
            "Lower method.learning_rate."
        )


def record_of(config: Config) -> tuple[Path, dict[str, Any]]:
    """The folder of a trained model that `config.model` names, and its training.json."""
    folder = Path(config.model.path or "").parent
    record = read_mapping(folder / "training.json")
    assert record is not None, f"{folder} holds a trained model"
    return folder, record
