"""`method=base`: the base model (the unmodified checkpoint).

Every other method is compared with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moe_lab.config.schema import Config as RunConfig
from moe_lab.methods.method import Context, Method

if TYPE_CHECKING:
    from moe_lab.engine.forward.ensemble import Ensemble
    from moe_lab.engine.lm import EngineLM
    from moe_lab.models.facts import LoadedModel


class Base(Method):
    """Runs any causal language model as it is."""

    @dataclass(kw_only=True)
    class Config(Method.Config):
        """The name is the only key."""

        name: str = "base"

    required_routing = "none"
    expert_metrics = "all"

    @contextmanager
    def open(self, model: LoadedModel, context: Context) -> Iterator[EngineLM]:
        yield base_lm(model, context.config)


def base_lm(model: LoadedModel, config: RunConfig) -> EngineLM:
    """The LM of the base model."""
    from moe_lab.engine.lm import EngineLM

    return EngineLM(model.model, model.tokenizer, **engine_options(config))


def ensemble_lm(
    model: LoadedModel, context: Context, ensemble: Ensemble, seed: int = 0
) -> EngineLM:
    """The LM of a method's ensemble; in the trials of a study, that of the study's first ensemble.

    Args:
        seed: of sampling.
    """
    from moe_lab.engine.lm import EngineLM

    options = engine_options(context.config)
    if context.study is not None:
        ensemble = context.study.first
        options |= {"reuse": context.study.reuse, "progress": False}
    return EngineLM(model.model, model.tokenizer, ensemble=ensemble, seed=seed, **options)


def engine_options(config: RunConfig) -> dict:
    """Arguments of `EngineLM` that every method takes from the run's configuration."""
    return {
        "batch_size": config.batch_size,
        "max_batch_size": config.max_batch_size,
        "max_length": config.max_length,
        "add_bos_token": config.model.add_bos_token,
    }
