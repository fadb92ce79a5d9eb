"""Models that are trained on first use: `model.recipe` has the keys of method=pretrain.

Each seed of a run has a model of its own, whose training has the run's seed: a mean over seeds is over trainings.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from moe_lab.config.schema import Config, ModelConfig, TuningConfig
from moe_lab.config.validators import build
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.methods.training_method import TrainingMethod

if TYPE_CHECKING:
    from moe_lab.models.facts import ModelFacts
    from moe_lab.models.pool import ModelPool

METHOD = "pretrain"


class Training:
    """The training that makes the model of a configuration with a recipe."""

    def __init__(self, config: Config):
        """Raises ConfigError for a recipe that method=pretrain does not take."""
        assert config.model.recipe is not None
        if issubclass(get_method(config.method.name), TrainingMethod):
            raise ConfigError(
                f"method={config.method.name} trains, and model={config.model.name} is trained on first use. Use "
                "another model, or give the recipe's keys to method=pretrain."
            )
        method = get_method(METHOD)
        keys: dict[str, Any] = {"name": METHOD, **config.model.recipe}
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
        from moe_lab.models.facts import model_facts

        one = self.config
        untrained = model_facts(one.model, dtype=one.dtype, device=one.device, offline=one.offline)
        return self.method.trained_facts(one, untrained)

    @cached_property
    def name(self) -> str:
        """The name of the trained model's folder."""
        return self.method.trained(self.config, self.facts).folder.name

    def left(self) -> dict[str, tuple[int, int]]:
        """By name of the model's folder: optimizer steps and tokens; empty where it is trained."""
        return self.method.training_left(self.config, self.facts)

    def made(self) -> Config | None:
        """The configuration with the trained model; None where the training is not finished."""
        return None if self.left() else self._resolved(lambda: None)

    def make(self, models: ModelPool) -> Config:
        """The configuration with the trained model, which is trained as far as it is missing.

        Raises RunHeldError if another process trains it.
        """
        return self._resolved(models.free)

    def _resolved(self, free: Any) -> Config:
        trained = self.method.resolve_model(self.config, self.facts, free).model
        model = replace(self.evaluated.model, path=trained.path, tokenizer=None, recipe=None)
        return replace(self.evaluated, model=model)
