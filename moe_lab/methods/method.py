"""The interface of a method: a small class with its own `Config`.

For each run the hooks are called in this order, which `tests/methods/test_method.py` asserts:

    trained_facts     of a `TrainingMethod`, before weights load: the facts of the trained model
    check             before weights load: whether the configuration fits the model
    data_identity     before weights load: the data that it depends on
    identity          before weights load: the configuration as it enters the run id
    resolve_model     of a `TrainingMethod`, where an answer is missing: the model that is loaded, trained if need be
    open              where an answer is missing: the LM that answers
    report            at the end, also where all answers were stored

`architecture`, `references_left` and the training hooks of `TrainingMethod` serve mode=plan and mode=doctor. No hook
relies on what an earlier one left behind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from moe_lab.methods.source import source_digest

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from moe_lab.config.schema import Config as RunConfig
    from moe_lab.engine.lm import EngineLM
    from moe_lab.models.facts import ModelFacts
    from moe_lab.models.load import LoadedModel
    from moe_lab.tasks.estimate import Workload


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a method is opened for."""

    config: RunConfig
    """Of the run; its `model` is the one that was loaded."""
    folder: Path | None = None
    """Of the run, for files beside the answers; None where no answer is kept, and in processes that do not write."""


class Method(ABC):
    """One way to run a model over a task: it opens an LM, which lm-eval drives."""

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
    reads_weights: ClassVar[bool] = True
    """Whether it reads the weights of `model=`, and not its tokenizer alone."""
    per_token: ClassVar[bool] = True
    """Whether, of a model with routers, it reads or changes the routing of single tokens, which some do not allow."""
    own_routing: ClassVar[bool] = False
    """Whether one router's choice answers each token of the text that is asked: what `metrics=expert` is about."""
    interventions: bool = True
    """Whether `metrics=expert` can mask experts and draw them at random under it (Capacity and Specialization)."""
    compared_with_base: ClassVar[bool] = True
    """Whether its scores are compared with those of the untouched model."""
    tells_choices: ClassVar[bool] = False
    """Whether `EngineLM.choices` of its LM tells the experts that answer: prompts are read as they are asked."""
    tunings: ClassVar[tuple[str, ...]] = ()
    """The options of `tuning=` that can search its settings. Such a method has `ensemble`, `temperatures`,
    `first_noisy` and `with_profile`, as RoE has."""
    answer: ClassVar[str | None] = None
    """`task.answer` of multiple-choice tasks where it is not given."""
    reports_flips: ClassVar[bool] = False
    """Whether its block of results.json counts the documents that became right and wrong."""

    def __init__(self, config: Any):
        self.config = config

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
        """Raise ConfigError where the configuration cannot work on this model."""

    def data_identity(self, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        """What else determines its numbers, as plain values: documents of other tasks, say. Needs no weights.

        Raises ConfigError or TaskError where the data cannot be had.
        """
        return {}

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        """The configuration as it enters the run id: one form for all spellings of the same computation."""
        return asdict(self.config)

    def comparisons(self) -> dict[str, tuple[Any, list[str]]]:
        """Other methods that its scores are compared with, beside the untouched model.

        By name the `Config` of the other method, and the overrides that make it of this one's.
        """
        return {}

    def forward_tokens(self, workload: Workload) -> float:
        """Tokens that it puts through the model for what a run asks: every answer once per routing sample."""
        return workload.prompts + workload.answers * getattr(self.config, "n", 1)

    def architecture(self, config: RunConfig) -> PreTrainedConfig:
        """The configuration of the model that answers. Needs no weights."""
        from moe_lab.models.source import load_config

        return load_config(config.model, offline=config.offline)

    def references_left(self, config: RunConfig, facts: ModelFacts) -> dict[str, float]:
        """Reference sets to be made first, by name: tokens read. Needs no weights."""
        return {}

    @abstractmethod
    def open(self, model: LoadedModel, context: Context) -> AbstractContextManager[EngineLM]:
        """Install the method on the model and yield the LM that lm-eval drives; leaving restores the model.

        `EngineLM.session_info` of that LM is kept with the answers and handed to `report`.
        """

    def report(
        self, facts: ModelFacts, counters: Mapping[str, int], session_info: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Blocks for the `moe_lab` part of results.json, e.g. {"roe": {...}}.

        Args:
            counters: `EngineLM.cost` of the whole run, interruptions included.
            session_info: `EngineLM.session_info` of the latest session.
        """
        return {}

    @staticmethod
    def footnotes(block: dict[str, Any]) -> list[str]:
        """Lines below the table of a run's results; `block` is the `moe_lab` part of its results.json.

        A method whose own block has `changed_fraction` fills the table's column `changed`: its footnote says of what.
        """
        return []
