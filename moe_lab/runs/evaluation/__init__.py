"""The evaluation of one run. This module has the interface of `metrics=`, which measures more than the scores.

Each kind of metrics is a `Measure` in the module of its name in this folder. The module of the same name in
`moe_lab/reports/measures/` has the `View` of its results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lm_eval.tasks.manager import TaskDict

    from moe_lab.config.schema import Config
    from moe_lab.engine.forward.observer import Observer
    from moe_lab.methods.method import Method
    from moe_lab.models.facts import ModelFacts
    from moe_lab.models.memory import ModelPool
    from moe_lab.results.samples import Log
    from moe_lab.runs.run import Run


class Measure(ABC):
    """One kind of `metrics=`."""

    @abstractmethod
    def check(self, method: Method, config: Config, facts: ModelFacts, tasks: TaskDict) -> None:
        """Raise ConfigError if the metrics are not defined for the run, ModelError for a model without experts."""

    @abstractmethod
    def evaluations(self, method: Method) -> int:
        """The number of times that the run's examples are evaluated again."""

    def observer(self) -> Observer | None:
        """A new observer of the routing of all coming answers; None if the metrics need none."""
        return None

    @abstractmethod
    def measure(self, run: Run, models: ModelPool, samples: Log, observer: Observer | None) -> None:
        """Measure the run and write its files. Current files are kept.

        Args:
            samples: the samples of the run.
            observer: the result of `observer()`. It has seen the run's answers, but not those stored before.
        """


def measure_of(metrics: str) -> Measure | None:
    """The measure that `metrics=` names; None for `none`."""
    if metrics == "none":
        return None
    measure: Measure = import_module(f"moe_lab.runs.evaluation.{metrics}").MEASURE
    return measure
