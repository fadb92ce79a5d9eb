"""The interfaces of methods that train: a model before its evaluation, or a model alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.errors import ConfigError
from moe_lab.methods.method import Context, Method

if TYPE_CHECKING:
    from moe_lab.config.schema import Config as RunConfig
    from moe_lab.engine.lm import EngineLM
    from moe_lab.models.facts import ModelFacts
    from moe_lab.models.load import LoadedModel


class TrainingMethod(Method):
    """Evaluates a model that it trains first. All processes of torchrun work on one training."""

    def trained_facts(self, config: RunConfig, facts: ModelFacts) -> ModelFacts:
        """The facts of the trained model; by default those of the untrained one. Needs no weights."""
        return facts

    @abstractmethod
    def resolve_model(self, config: RunConfig, facts: ModelFacts, free: Callable[[], None]) -> RunConfig:
        """The configuration of the trained model, which is trained as far as it is missing.

        Args:
            free: removes the model in memory.
        """

    @abstractmethod
    def training_left(self, config: RunConfig, facts: ModelFacts) -> dict[str, tuple[int, int]]:
        """Trainings to be made first, by name: optimizer steps, tokens read. Loads no weights."""

    @abstractmethod
    def training_memory(self, config: RunConfig, facts: ModelFacts) -> int | None:
        """Bytes of the model's weights, their gradients and the optimizer's state at the most, without activations.

        None where nothing is left to train. Loads no weights.
        """


class ModelMaker(Method):
    """Makes a model and evaluates none."""

    @abstractmethod
    def train(self, config: RunConfig) -> Path:
        """Train, or continue, or return the finished folder at once."""

    def open(self, model: LoadedModel, context: Context) -> AbstractContextManager[EngineLM]:
        name = self.config.name
        raise ConfigError(
            f"method={name} makes a model and evaluates none. Evaluate it with method=base model.path=<it>."
        )
