"""What a study searches: the parameters of its trials, and how a trial opens the model.

Its classes are in `temperatures.py`, `logit_scale.py` and `method_settings.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

from moe_lab.config.schema import Config
from moe_lab.engine.forward.ensemble import at_bound
from moe_lab.models.facts import LoadedModel
from moe_lab.runs.tuning.optuna_objects import code_of

if TYPE_CHECKING:
    from moe_lab.engine.lm import EngineLM


class TrialPoint(Protocol):
    """What a search reads of Optuna's `Trial` and `FrozenTrial`."""

    @property
    def number(self) -> int: ...

    @property
    def params(self) -> dict[str, Any]: ...


OpenTrial = Callable[[TrialPoint], AbstractContextManager["EngineLM"]]
"""Opens the LM of a trial.

Its `ensemble.sweep` finds the trial's best logit scale, if that is wanted.
"""

STEP = 0.05
"""Step between the temperatures of tuning=uniform (appendix B of the paper)."""
NEAR = 0.98
"""A parameter counts as at its upper bound from this share of the bound on."""

ABSENT = {
    "max_temperature": 0.0,
    "skip_layers": 0,
    "step": STEP,
    "given": None,
    "grid": None,
}
"""Settings that only some searches have, and their values for the other searches.

Identities and study.json have all of them.
"""
NOT_HASHED = ("method", "n_trials", "num_samples", "class_folders")


@dataclass(frozen=True, kw_only=True)
class Search(ABC):
    """A search with all settings."""

    method: Any
    """The method that is tuned."""
    tuning: str
    """The option of `tuning=`."""
    metric: str
    """perplexity or accuracy, of the tuning documents."""
    n_trials: int
    num_samples: int
    moe_layers: int
    logit_scale: bool = False
    """Whether a trial's value is its perplexity at the best logit scale."""
    lower_is_better: bool = False
    """Whether the task's headline, which `metric: accuracy` means, is an error."""
    sampler: dict[str, Any] = field(default_factory=dict)
    """A sampler of Optuna (`optuna_objects.py`); empty: that of `tuning`."""
    pruner: dict[str, Any] = field(default_factory=dict)
    """A pruner of Optuna; empty: trials that are certain to be the worst are pruned."""
    class_folders: list[str] = field(default_factory=list)
    """The folder of `--config-dir`, whose classes may be sampler and pruner."""

    @property
    def all_settings(self) -> dict[str, Any]:
        """The values of all settings that a search may have, by name."""
        return ABSENT | {item.name: getattr(self, item.name) for item in fields(self)}

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that determine the trials, without their number."""
        identity = {}
        for name, value in self.all_settings.items():
            if name not in NOT_HASHED:
                identity[name] = value
        if not self.lower_is_better:
            del identity["lower_is_better"]  # studies from before it existed keep their ids
        for name in ("sampler", "pruner"):
            if not identity[name]:
                del identity[name]
        code = code_of([self.sampler, self.pruner], self.class_folders)
        if code:
            identity["code"] = code
        return identity

    @property
    def label(self) -> str:
        """The option of `tuning=`, or the class of a given sampler."""
        if self.sampler:
            return str(self.sampler["_target_"]).rpartition(".")[2]
        return self.tuning

    @property
    def direction(self) -> str:
        """Optuna's direction: perplexities and errors are minimized, other headlines maximized."""
        if self.metric == "perplexity" or self.lower_is_better:
            return "minimize"
        return "maximize"

    @property
    def calibrates(self) -> bool:
        """Whether trial 0 finds the best logit scale of the base model.

        It is the control for a gain in perplexity.
        """
        return self.metric == "perplexity" and self.begins_with_base

    @property
    @abstractmethod
    def begins_with_base(self) -> bool:
        """Whether trial 0 is the base model."""

    @property
    @abstractmethod
    def bounds(self) -> dict[str, tuple[float, float]]:
        """The smallest and the largest value of each parameter of a trial, by name."""

    @abstractmethod
    def fixed(self, number: int) -> dict[str, float] | None:
        """The parameters of a trial; None if the sampler draws them."""

    @abstractmethod
    def prunes(self, number: int) -> bool:
        """Whether a trial may be pruned."""

    @abstractmethod
    def open(self, loaded: LoadedModel, config: Config) -> AbstractContextManager[OpenTrial]:
        """Inside the context, the function opens the trials on a model in memory."""

    @abstractmethod
    def temperatures(self, trial: TrialPoint) -> list[float]:
        """The temperatures of a trial, one per MoE layer.

        Empty in a search of other settings.
        """

    def method_settings(self, trial: TrialPoint) -> dict[str, Any] | None:
        """`Profile.settings` of a trial; None in a search of temperatures or the logit scale."""
        return None

    def at_bound(self, params: dict[str, float], logit_scale: float) -> list[str]:
        """The parameters at their upper bound, and "logit_scale" if it is at any of its bounds."""
        names = []
        for name, (_, largest) in self.bounds.items():
            if params[name] >= NEAR * largest:
                names.append(name)
        if at_bound(logit_scale):
            names.append("logit_scale")
        return names
