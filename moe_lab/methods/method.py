"""What a method is: a small class with its own `Config`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from moe_lab.errors import ConfigError
from moe_lab.methods.source import source_digest

if TYPE_CHECKING:
    from moe_lab.config.schema import Config as RunConfig
    from moe_lab.engine.lm import EngineLM
    from moe_lab.models.facts import ModelFacts
    from moe_lab.models.load import LoadedModel
    from moe_lab.tasks.estimate import Asked


class Method(ABC):
    """One way to run a model over a task.

    A method that evaluates (`trains = False`) opens an LM; one that trains (`trains = True`) overrides `train`.
    """

    @dataclass(kw_only=True)
    class Config:
        """The keys of `conf/method/<name>.yaml`; `__post_init__` raises ConfigError for an impossible value."""

        name: str

    numerics: ClassVar[int] = 1
    """Raised whenever the method's numbers may change: part of `version`."""
    random: bool = False
    """Whether `seed` changes its numbers (only then is the seed part of the identity)."""
    needs_router: ClassVar[bool] = True
    """Whether a model without a router is refused."""
    trains: ClassVar[bool] = False
    own_routing: ClassVar[bool] = False
    """Whether one router's choice answers each token of the text that is asked: what `metrics=expert` is about."""
    interventions: ClassVar[bool] = True
    """Whether `metrics=expert` can mask experts and draw them at random under it (Capacity and Specialization)."""
    several_processes: ClassVar[bool] = False
    """Whether all processes of torchrun work on one run of it (`moe_lab.runs.distributed`)."""
    tunable: ClassVar[bool] = False
    """Whether `tuning=` can search its temperatures."""
    answer: ClassVar[str | None] = None
    """`task.answer` of multiple-choice tasks where it is not given."""

    def __init__(self, config: Any):
        self.config = config
        self.opened: dict[str, Any] = {}
        """What `report` needs to know of `open`, as plain values: kept with the answers."""

    @staticmethod
    def unread(config: Any) -> set[str]:
        """Keys of a `Config` that make no difference beside its others: a dash stands for them in tables."""
        return set()

    @property
    def version(self) -> int | str:
        """`numerics`, and of a method of another package the hash of that package's source: part of every identity."""
        package = type(self).__module__.partition(".")[0]
        if package == "moe_lab":
            return self.numerics
        return f"{self.numerics}-{source_digest(package)}"

    @property
    def tuned_on(self) -> frozenset[str]:
        """`document_hashes` of the documents that its settings were tuned on: they are not evaluated."""
        return frozenset()

    def check(self, facts: ModelFacts) -> None:
        """Raise ConfigError where the configuration cannot work on this model. Called before weights load."""

    def reads(self, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        """What else determines its numbers, as plain values: documents of other tasks, say. Needs no weights."""
        return {}

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        """The configuration as it enters the run id: one form for all spellings of the same computation."""
        return asdict(self.config)

    def compared_with(self) -> dict[str, tuple[Any, list[str]]]:
        """What its scores are compared with beside the untouched model: by name, a method's `Config` and the overrides
        that make it of this one's."""
        return {}

    def keep_files_in(self, folder: Path) -> None:
        """Called before `open` with the run's folder; for methods that keep more there than answers."""

    def loads(self, config: RunConfig, facts: ModelFacts, free: Callable[[], None]) -> RunConfig:
        """The configuration whose model is loaded for `open`; a method that evaluates a model of its own names that.

        Args:
            free: lets the model in memory go.
        """
        return config

    def forward_tokens(self, asked: Asked) -> float:
        """Tokens that it puts through the model for what a run asks: every answer once per row."""
        return asked.prompts + asked.answers * getattr(self.config, "n", 1)

    def references_left(self, config: RunConfig, facts: ModelFacts) -> dict[str, float]:
        """Reference sets to be made first, by name: tokens read. Called after `reads`; loads no weights."""
        return {}

    def training_left(self, config: RunConfig, facts: ModelFacts) -> dict[str, tuple[int, int]]:
        """Trainings to be made first, by name: optimizer steps, tokens read. Called after `reads`; loads no weights."""
        return {}

    def training_memory(self, config: RunConfig, facts: ModelFacts) -> int | None:
        """Bytes of the model's weights, their gradients and the optimizer's state at the most, activations left out.

        None where the method does not train them, or has done so. Called after `reads`; loads no weights.
        """
        return None

    @abstractmethod
    def open(self, model: LoadedModel, config: RunConfig) -> AbstractContextManager[EngineLM]:
        """Install the method on the model and yield the LM that lm-eval drives; leaving restores the model."""

    def train(self, config: RunConfig) -> Path:
        """Train, or continue, or return the finished folder at once. Only for methods with `trains = True`."""
        raise ConfigError(f"method={self.config.name} trains no model.")

    def report(self, facts: ModelFacts, counters: Mapping[str, int]) -> dict[str, Any]:
        """Blocks for the `moe_lab` part of results.json, e.g. {"roe": {...}}.

        Args:
            counters: `EngineLM.cost` of the whole run, interruptions included.
        """
        return {}
