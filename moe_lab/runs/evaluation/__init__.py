"""The evaluation of one run. This module: what `metrics=` measures of a run in addition to its scores.

A kind is a `Measure` in the module of its name in this folder, and the `View` of its results in the module
of the same name in `moe_lab/reports/measures/`.
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

    of_baseline = True
    """Whether the runs that a run is compared with are measured, too."""
    while_answering = False
    """Whether an observer sees the answers. Such runs come before those that share their answers."""

    @abstractmethod
    def check(self, method: Method, config: Config, facts: ModelFacts, tasks: TaskDict) -> None:
        """Raise ConfigError if it is not defined for the run, ModelError for a model without experts."""

    @abstractmethod
    def evaluations(self, method: Method) -> int:
        """How often the run's examples are evaluated again."""

    def observer(self) -> Observer | None:
        """What sees the routing of all answers to come."""
        return None

    @abstractmethod
    def measure(self, run: Run, models: ModelPool, samples: Log, observer: Observer | None) -> None:
        """Measure the run and write its files; what is stored and current is left as it is.

        Args:
            samples: those of the run.
            observer: the one of `observer()`, after the run's answers. It has not seen answers that were stored.
        """


def measure_of(metrics: str) -> Measure | None:
    """The kind that `metrics=` names; None for none."""
    if metrics == "none":
        return None
    measure: Measure = import_module(f"moe_lab.runs.evaluation.{metrics}").MEASURE
    return measure
