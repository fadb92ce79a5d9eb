"""Models and adapters that are trained once and shared by runs
(outputs/models/<model>-<method>-<id8>/).

Checkpoints are the folders `checkpoints/checkpoint-<step>`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_message
from moe_lab.errors import ConfigError, TrainingError
from moe_lab.models.distributed import num_processes, sharded
from moe_lab.results.artifact import Artifact
from moe_lab.results.atomic import obey_umask, write_json, writing
from moe_lab.results.identity import run_id
from moe_lab.results.names import folder_name
from moe_lab.results.stored_files import read_mapping, whole_mapping

COMPLETE = "complete"
"""An empty file that is written into a checkpoint last."""


def last_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint in a folder, or None.

    A kill may leave an incomplete one, from which the Trainer would continue with a new optimizer.
    """
    complete = [path.parent for path in folder.glob(f"checkpoint-*/{COMPLETE}")]
    return max(complete, key=step_of, default=None)


def step_of(checkpoint: Path | None) -> int:
    """The optimizer step of a checkpoint; 0 for None."""
    if checkpoint is None:
        return 0
    return int(checkpoint.name.rpartition("-")[2])


@dataclass(frozen=True, kw_only=True)
class Trained(Artifact):
    """A trained model or adapter, with the record training.json."""

    made: str
    """The subfolder of the trained weights; if it is missing, they are trained again."""
    content: dict[str, Any]
    """All that determines the weights."""

    @classmethod
    def of(cls, config: Config, content: dict[str, Any], made: str) -> Trained:
        """The model or adapter that `content` determines."""
        digest = run_id(content)
        name = folder_name(config.model.name, config.method.name, digest=digest)
        folder = Path(config.output_dir) / "models" / name
        return cls(
            folder=folder,
            id=digest,
            content=content,
            record="training.json",
            scratch="checkpoints",
            made=made,
        )

    def is_whole(self, content: dict[str, Any]) -> bool:
        return (self.folder / self.made).is_dir()

    def load_or_train(
        self, train: Callable[[Path], dict[str, Any]], free: Callable[[], None] | None = None
    ) -> dict[str, Any]:
        """The content of training.json. If another process trains, this one waits.

        Args:
            train: trains or continues in the folder, and returns the rest of the record.
            free: for a training on all processes, removes the model in memory before it.

        Raises ConfigError for checkpoints of a training with another number of processes.
        """

        def make() -> dict[str, Any]:
            if free is not None:
                free()
                self._begin()
            course = train(self.folder)
            gc.collect()  # a Trainer, with its model and optimizer, is in reference cycles
            print_message(f"Trained: {self.folder / self.made}")
            return course | self.content

        return self.load_or_make(make)

    def _begin(self) -> None:
        """Write identity.json. Raises ConfigError if the training began with other processes."""
        file = self.folder / "identity.json"
        processes = {"processes": num_processes(), "sharded": sharded()}
        if last_checkpoint(self.folder / "checkpoints") is not None:
            began_with = whole_mapping(file) or {}
            for key, value in processes.items():
                if began_with.get(key) != value:
                    raise ConfigError(
                        f"{self.folder} holds the checkpoints of a training with "
                        f"{key}={began_with.get(key)}, and now it is {value}. Continue as it "
                        "began, or remove its checkpoints/."
                    )
        write_json(file, {"id": self.id, **processes, **self.content})

    def left(self, steps: int, tokens: int, per_steps: int) -> dict[str, tuple[int, int]]:
        """(optimizer steps, tokens) that the training of `steps` steps still needs,
        by the folder's name.

        Empty if it is complete.

        Args:
            tokens: tokens of each `per_steps` steps.
        """
        if self.stored() is not None:
            return {}
        missing = max(0, steps - step_of(last_checkpoint(self.folder / "checkpoints")))
        return {self.folder.name: (missing, round(tokens * missing / per_steps))}


def save_model(model: Any, tokenizer: Any, folder: Path, dtype: str) -> None:
    """Save a model, or the adapter of a PeftModel in float32,
    with its tokenizer unless that is None.

    Parameters of a model get the precision of the evaluation, `dtype`. Buffers, such as the
    routers' selection biases, stay float32. Raises TrainingError if the last step diverged, which
    no later loss would show.
    """
    import torch

    from moe_lab.models.adapters import save_adapter
    from moe_lab.models.checks import not_finite
    from moe_lab.routing.passes import is_peft

    name = not_finite(model)
    if name:
        raise TrainingError(
            f"The training diverged: {name} is NaN or infinite after its last step. Lower "
            "method.learning_rate."
        )
    with writing(folder):
        if is_peft(model):
            save_adapter(model, folder)
        else:
            for parameter in model.parameters():
                parameter.data = parameter.data.to(getattr(torch, dtype))
            model.config.dtype = getattr(torch, dtype)
            model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        obey_umask(folder)


def training_folder(config: Config) -> Path:
    """The folder of the training whose model or adapter `config.model` names."""
    return Path(config.model.peft or config.model.path or "").parent


def record_of(config: Config) -> tuple[Path, dict[str, Any]]:
    """The folder of a trained model that `config.model` names, and its training.json."""
    folder = training_folder(config)
    record = read_mapping(folder / "training.json")
    assert record is not None, f"{folder} holds a trained model"
    return folder, record
