"""The training of a model with a recipe, which is trained on first use."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from moe_lab.config.schema import Config, ModelConfig, TuningConfig
from moe_lab.config.validators import build
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.methods.method import TrainingMethod
from moe_lab.models.facts import ModelFacts
from moe_lab.runs.model_files import facts_of


class Training:
    """The training that makes the model of a configuration with a recipe.

    The recipe, `model.recipe`, has keys of method=pretrain.

    Each seed of a run has a model of its own, whose training has the run's seed: a mean over seeds
    is over trainings.
    """

    def __init__(self, config: Config):
        """Raises ConfigError for a recipe that method=pretrain does not take."""
        assert config.model.recipe is not None
        if issubclass(get_method(config.method.name), TrainingMethod):
            raise ConfigError(
                f"method={config.method.name} trains, and model={config.model.name} is trained on "
                "first use. Use another model, or give the recipe's keys to method=pretrain."
            )
        method = get_method("pretrain")
        keys: dict[str, Any] = {"name": "pretrain", **config.model.recipe}
        self.evaluated = config
        self.config = replace(
            config,
            method=build(method.Config, keys, prefix="model.recipe."),
            model=ModelConfig(name=config.model.name, tokenizer=config.model.tokenizer),
            tuning=TuningConfig(),
            metrics="none",
            baseline=False,
        )
        self.method: Any = method(self.config.method)

    @cached_property
    def facts(self) -> ModelFacts:
        """The facts of the trained model."""
        return self.method.trained_facts(self.config, facts_of(self.config))

    @property
    def folder(self) -> Path:
        """The trained model's folder."""
        return Path(self.method.trained(self.config, self.facts).folder)

    def left(self) -> dict[str, tuple[int, int]]:
        """(remaining optimizer steps, remaining tokens) by name of the model's folder.

        Empty if the model is trained.
        """
        return self.method.training_left(self.config, self.facts)

    def make(self, free: Callable[[], None] = lambda: None) -> Config:
        """Finish the training. Returns the configuration with the trained model.

        Raises RunHeldError if another process trains it. `free` removes other models from memory
        before the training.
        """
        trained = self.method.resolve_model(self.config, self.facts, free).model
        model = replace(self.evaluated.model, path=trained.path, tokenizer=None, recipe=None)
        return replace(self.evaluated, model=model)
