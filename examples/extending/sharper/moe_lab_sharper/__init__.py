"""`method=sharper`: a token's experts keep their choice, and their weights are raised to a power.

T = tokens of a forward pass, K = experts per token.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moe_lab.config.validators import PositiveFloat
from moe_lab.methods.base import engine_options
from moe_lab.methods.method import Context, Method

if TYPE_CHECKING:
    from moe_lab.engine.lm import EngineLM
    from moe_lab.models.facts import LoadedModel
    from moe_lab.routing import Router
    from moe_lab.routing.rules import Routing


class Sharper(Method):
    """Gives more weight to the experts that have most of it."""

    @dataclass(kw_only=True)
    class Config(Method.Config):
        """Keys of conf/method/sharper.yaml beside this file."""

        name: str = "sharper"
        power: PositiveFloat = 2.0
        """1 is the untouched model."""

    @contextmanager
    def open(self, model: LoadedModel, context: Context) -> Iterator[EngineLM]:
        from moe_lab.engine.lm import EngineLM
        from moe_lab.routing import routed

        with routed(model.model, self.sharpen):
            yield EngineLM(model.model, model.tokenizer, **engine_options(context.config))

    def sharpen(self, router: Router, routing: Routing) -> Routing:
        """The policy: weights [T, K] to the power, scaled to their sum before. The experts stay."""
        weights_TK = routing.weights_TK.float()
        sharper_TK = weights_TK**self.config.power
        sharper_TK = (
            sharper_TK * weights_TK.sum(-1, keepdim=True) / sharper_TK.sum(-1, keepdim=True)
        )
        return routing._replace(weights_TK=sharper_TK.to(routing.weights_TK.dtype))
