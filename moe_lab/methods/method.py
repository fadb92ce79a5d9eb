"""The interface of a method: a small class with its own `Config`.

What a method can do beyond answering is the role that it derives from:

    TrainingMethod       trains a model first, and evaluates that
    DesignMethod         a `TrainingMethod` that begins with random weights of its own architecture
    ModelMaker           trains a model and does not evaluate it
    PolicyMethod         installs a routing policy or an ensemble (`policy_method.py`)
    TunableMethod        has settings that a study can choose (`tunable_method.py`):
    GridMethod             settings on a grid
    TemperatureMethod      the temperatures and the logit scale of an ensemble
    ReferenceMethod      reads answered reference questions (`references/reference_method.py`)

For each run the hooks are called in this order, which `tests/methods/test_method.py` asserts:

    trained_facts     of a `TrainingMethod`, before weights load: the facts of the trained model
    check             before weights load: whether the configuration fits the model
    data_identity     before weights load: the data that it depends on
    identity          before weights load: the configuration as it enters the run id
    resolve_model     of a `TrainingMethod`, if an answer is missing: trains the model,
                      and says which one to load
    open              if an answer is missing: the LM that answers
    report            at the end, also if all answers were stored

`forward_tokens`, `planned_ensemble` and `held` serve mode=plan, and so do hooks of roles that say
so. No hook may rely on state that an earlier hook left, because stored answers skip some of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from moe_lab.config.schema import Config as RunConfig
from moe_lab.config.schema import ModelConfig
from moe_lab.config.terminal import print_message
from moe_lab.config.validators import check_limits
from moe_lab.errors import ConfigError
from moe_lab.results.code_digest import source_digest
from moe_lab.tasks.workload import Workload

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from moe_lab.engine.forward.ensemble import Ensemble
    from moe_lab.engine.lm import EngineLM
    from moe_lab.methods.trained import Trained
    from moe_lab.models.facts import LoadedModel, ModelFacts


Counters = Mapping[str, int]
"""`EngineLM.cost` of a whole run, interruptions included."""
SessionInfo = Mapping[str, Any]
"""`EngineLM.session_info` of the latest session."""


@dataclass(frozen=True, kw_only=True)
class StudyStart:
    """Options of an LM whose ensemble changes from trial to trial of a study
    (`EngineLM.set_ensemble`)."""

    first: Ensemble
    """The ensemble to open with, in place of the method's own."""
    reuse: bool
    """Whether the LM keeps activations that do not depend on temperatures for the next trials."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """The run that a method is opened for."""

    config: RunConfig
    """The run's configuration; its `model` is the one that was loaded."""
    folder: Path | None = None
    """The run's folder, for files next to the answers; None if none is kept,
    and in processes that do not write."""
    study: StudyStart | None = None
    """How the trials of a study begin; None for a run."""


class Method(ABC):
    """One way to run a model over a task: it opens an LM, which lm-eval drives."""

    @dataclass(kw_only=True)
    class Config:
        """The keys of `conf/method/<name>.yaml`;
        `__post_init__` raises ConfigError for an impossible value.

        Annotations limit values: `Literal[...]`, or one of `moe_lab.config.validators.LIMITS`, such
        as `PositiveInt`.
        """

        name: str

        __post_init__ = check_limits  # type: ignore[misc]

        @property
        def unread(self) -> set[str]:
            """Keys that have no effect with the other values: tables show a dash,
            and they are not in the identity."""
            return set()

    numerics: ClassVar[int] = 1
    """Raised whenever the method's numbers may change: part of `version`."""
    random: bool = False
    """Whether `seed` changes its numbers (only then is the seed part of the identity)."""
    required_routing: Literal["tokens", "layers", "none"] = "tokens"
    """What a model must have. tokens: MoE layers whose routing of single tokens can be read and
    changed; layers: MoE layers; none: nothing, any causal language model will do."""
    expert_metrics: Literal["none", "counted", "all"] = "none"
    """The metrics that `metrics=expert` has under it. A method that answers each token with the
    choice of one router has those that are counted. Capacity and Specialization also mask experts
    and draw them at random."""
    answer: ClassVar[str | None] = None
    """The default of `task.answer` for multiple-choice tasks."""
    reports_changed_answers: ClassVar[bool] = False
    """Whether its block of results.json counts the examples that became right and wrong."""

    figures: ClassVar[tuple[str, ...]] = ()
    """Kinds of `moe_lab/reports/papers/figure_kinds.py` that are drawn from the traces of each of
    its runs."""
    config_class: ClassVar[Any] = None
    """A function of the given keys that returns the class of the configuration,
    if it depends on them; else None."""

    def __init__(self, config: Any):
        self.config = config

    @property
    def version(self) -> int | str:
        """`numerics`, for a plug-in with the hash of its package's source:
        part of every identity."""
        package = type(self).__module__.partition(".")[0]
        if package == "moe_lab":
            return self.numerics
        return f"{self.numerics}-{source_digest(package)}"

    def check(self, facts: ModelFacts) -> None:
        """Raise ConfigError if the configuration cannot work on this model."""

    def data_identity(self, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        """The data that determines its numbers, as plain values,
        for example the examples of other tasks.

        Needs no weights. Raises ConfigError or TaskError if the data is missing.
        """
        return {}

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        """The configuration as it enters the run id.

        It is the same for two configurations of one computation.
        """
        unread = self.config.unread
        return {key: value for key, value in asdict(self.config).items() if key not in unread}

    def comparisons(self, greedy: bool) -> dict[str, tuple[Any, list[str]]]:
        """Other methods that its scores are compared with, in addition to the base model.

        By name: the `Config` of the other method, and the overrides that turn this run's command
        into its.

        Args:
            greedy: whether all answers are generated greedily.
        """
        return {}

    def forward_tokens(self, workload: Workload, config: RunConfig, facts: ModelFacts) -> float:
        """Tokens that it puts through the model in a run.

        For ensembles the number is exact if answers have the planned lengths.
        """
        return workload.tokens(self.planned_ensemble())

    def planned_ensemble(self) -> Ensemble:
        """The shape of its ensemble, by default one sample of each token: plans need no routing."""
        from moe_lab.engine.forward.ensemble import Ensemble

        return Ensemble()

    def held(self, workload: Workload, facts: ModelFacts) -> tuple[float, float]:
        """(cached slots, rows of logits) that it needs at once, for the planned memory."""
        ensemble = self.planned_ensemble()
        longest = workload.longest
        if ensemble.own_history:
            slots = ensemble.n * longest
        else:
            slots = longest + ensemble.n
        return slots, ensemble.n

    @abstractmethod
    def open(self, model: LoadedModel, context: Context) -> AbstractContextManager[EngineLM]:
        """Install the method on the model and yield the LM that lm-eval drives;
        on exit the model is restored.

        `EngineLM.session_info` of that LM is stored with the answers and passed to `report`.
        """

    def report(
        self, facts: ModelFacts, counters: Counters, session_info: SessionInfo
    ) -> dict[str, Any]:
        """Blocks for the `moe_lab` part of results.json, e.g. {"roe": {...}}.

        Every view of the run reads these keys of a block: `upper_bound` and `test_profile`, each
        true for a note next to its scores; `changed_fraction` and `experts_per_token`, columns of
        the costs; `temperatures`, numbers by MoE layer.
        """
        return {}

    @staticmethod
    def footnotes(block: dict[str, Any]) -> list[str]:
        """Lines below the table of a run's results;
        `block` is the `moe_lab` part of its results.json.

        The table's column `re-routed` has the `changed_fraction` of the method's block. A footnote
        of such a method says which decisions that is a share of.
        """
        return []


def share(counters: Counters, some: str, every: str) -> float | None:
    """The ratio of two counters of `EngineLM.cost`; None if nothing was counted."""
    if not counters.get(every):
        return None
    return counters.get(some, 0) / counters[every]


def check_first_gpu(config: RunConfig) -> None:
    """Raise ConfigError for another GPU than that on which transformers' Trainer trains."""
    if config.device.partition(":")[2] not in ("", "0"):
        raise ConfigError(
            f"device={config.device}: use device=cuda, and choose with CUDA_VISIBLE_DEVICES."
        )


class TrainingMethod(Method):
    """Evaluates a model that it trains first. All processes of torchrun work on one training.

    `one_device`, `training_notes`, `training_size`, `training_left`, `adapter_parameters` and
    `planned_memory` serve mode=plan.
    """

    @property
    def one_device(self) -> str | None:
        """Why its training has to fit on one device, for plans;
        None if several processes can share the model."""
        return None

    def check_training(self, config: RunConfig, facts: ModelFacts) -> None:
        """Raise ConfigError for a dtype or a placement of the model with which no training
        works."""
        check_first_gpu(config)
        if facts.dtype == "float16":
            raise ConfigError(
                "dtype=float16 overflows in training. Use dtype=bfloat16 or dtype=float32."
            )
        if config.model.device_map:
            raise ConfigError(
                f"method={self.config.name} trains whole layers on one device: leave "
                "model.device_map out. Several processes can share the work (torchrun)."
            )

    def trained_facts(self, config: RunConfig, facts: ModelFacts) -> ModelFacts:
        """The facts of the trained model; by default those of the untrained one.

        Needs no weights.
        """
        return facts

    def trained(self, config: RunConfig, facts: ModelFacts) -> Trained:
        """The folder and id of the trained model; it need not exist yet."""
        raise NotImplementedError

    def train(self, folder: Path, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        """Train or continue in the folder of `trained`. Returns the rest of training.json."""
        raise NotImplementedError

    def training_notes(self, config: RunConfig, facts: ModelFacts) -> list[str]:
        """What a plan says about the training, a sentence each. Loads no weights."""
        return []

    def training_size(self, config: RunConfig, facts: ModelFacts) -> tuple[int, int, int]:
        """(optimizer steps of the training, tokens, the number of steps that take these tokens)."""
        raise NotImplementedError

    def adapter_parameters(self, config: RunConfig) -> int | None:
        """The number of parameters that it writes; None: those of the whole model."""
        return None

    def planned_memory(self, config: RunConfig, facts: ModelFacts) -> int:
        """The planned peak bytes on one device. Loads no weights.

        Weights, and of the phase that takes most: gradients, optimizer state, and the larger of a
        pass's activations with logits and loss, and the optimizer's step. Without what a device
        adds (context, workspaces, fragmentation).
        """
        raise NotImplementedError

    def resolve_model(
        self, config: RunConfig, facts: ModelFacts, free: Callable[[], None]
    ) -> RunConfig:
        """Train what is missing and return the configuration with the trained model.

        The caller draws figures from `<folder>/log.jsonl` and `expert_metrics.jsonl`.

        Args:
            free: removes the model in memory.
        """
        trained = self.trained(config, facts)
        uploads = getattr(self.config, "trainer", {}).get("push_to_hub")
        if uploads and trained.stored() is not None:
            place = trained.folder / trained.made
            print_message(
                "Trained already, so that push_to_hub uploads nothing. "
                f"hf upload <id> {place} does."
            )
        trained.load_or_train(lambda folder: self.train(folder, config, facts), free)
        model = self.trained_model(config, str(trained.folder / trained.made))
        return replace(config, model=model, dtype=facts.dtype)

    def trained_model(self, config: RunConfig, place: str) -> ModelConfig:
        """The model that the run evaluates, by default the one in the folder `place`."""
        return replace(config.model, path=place, revision=None, peft=None)

    def training_left(self, config: RunConfig, facts: ModelFacts) -> dict[str, tuple[int, int]]:
        """(optimizer steps, tokens) of the training by its name, if it is missing.

        Loads no weights.
        """
        return self.trained(config, facts).left(*self.training_size(config, facts))


class DesignMethod(TrainingMethod):
    """Trains a model of its own architecture from random weights.

    The weights of `model=` are not read, so there is no base model to compare it with.
    """

    @abstractmethod
    def architecture(self, config: RunConfig) -> PreTrainedConfig:
        """The configuration of the model that is trained and answers."""

    def trained_facts(self, config: RunConfig, facts: ModelFacts) -> ModelFacts:
        """The facts of the architecture, with the name of `model=`."""
        from moe_lab.models.facts import routing_facts

        return replace(facts, **routing_facts(self.architecture(config)))


class ModelMaker(Method):
    """Trains a model and does not evaluate it."""

    @abstractmethod
    def train(self, config: RunConfig) -> Path:
        """Train or continue; returns the folder, at once if the training is complete."""

    def open(self, model: LoadedModel, context: Context) -> AbstractContextManager[EngineLM]:
        name = self.config.name
        raise ConfigError(
            f"method={name} trains a model and does not evaluate it. Evaluate it with method=base "
            "model.path=<it>."
        )
