"""`method=c3po`: Critical-layer, Core-expert, Collaborative Pathway Optimization (arXiv 2504.07964).

For every question its pathway, the routing weights of one or some of the prompt's tokens, is re-mixed in a few layers,
guided by the nearest reference questions that the untouched model answered correctly. Answers are scored with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from moe_lab.errors import ConfigError
from moe_lab.methods.base import engine_options
from moe_lab.methods.c3po.layers import named_layers
from moe_lab.methods.c3po.tokens import named_tokens
from moe_lab.methods.method import Method

if TYPE_CHECKING:
    from moe_lab.config import Config as RunConfig
    from moe_lab.methods.c3po.lm import C3POLM, GoldOf
    from moe_lab.models.facts import ModelFacts
    from moe_lab.models.load import LoadedModel

_CHOICES = {
    "optimizer": ("ngd", "kernel_regression", "mode_finding", "oracle"),
    "kernel": ("gaussian", "matern", "polynomial", "linear"),
    "update": ("adam", "gd"),
    "schedule": ("cosine", "step", "fixed"),
    "relax": ("core", "topk"),
    "loss": ("cross_entropy", "l2"),
}


class C3PO(Method):
    """Pathways of test questions, optimized on their neighbours."""

    answer: ClassVar[str | None] = "letters"
    numerics: ClassVar[int] = 2

    @dataclass(kw_only=True)
    class Config:
        """Keys of `conf/method/c3po.yaml`."""

        name: str = "c3po"
        optimizer: str = "ngd"
        layers: Any = "last5"
        core_experts: int | None = 20
        tokens: str = "last1"
        k: int = 3
        epsilon: float | None = None
        kernel: str = "gaussian"
        bandwidth: float | None = None
        steps: int = 10
        update: str = "adam"
        learning_rate: list[float] = field(default_factory=lambda: [1e-2, 1e-5])
        """First and last; the paper's "10e-2 to 10e-5", read literally, is [0.1, 0.0001]."""
        schedule: str = "cosine"
        relax: str = "core"
        loss: str = "cross_entropy"
        alpha: float | None = None
        shifts: int = 10
        reference: Any = None
        reference_size: int | None = None
        embeddings: str | None = None
        most_similar: float = 0.95
        abstain: float | None = None
        trace: bool = False

        def __post_init__(self) -> None:
            named_tokens(self.tokens)
            for key, choices in _CHOICES.items():
                if (value := getattr(self, key)) not in choices:
                    raise ConfigError(f"method.{key}={value}: choose one of {', '.join(choices)}.")
            for key, least in {
                "core_experts": 1,
                "k": 1,
                "steps": 0,
                "shifts": 0,
                "reference_size": 1,
            }.items():
                value = getattr(self, key)
                if value is not None and value < least:
                    raise ConfigError(f"method.{key}={value}: must be at least {least}.")
            for key in ("epsilon", "bandwidth", "abstain"):
                value = getattr(self, key)
                if value is not None and not value > 0:
                    raise ConfigError(f"method.{key}={value}: must be above 0.")
            if self.alpha is not None and not 0 <= self.alpha <= 1:
                raise ConfigError(f"method.alpha={self.alpha}: must be between 0 and 1.")
            if len(self.learning_rate) != 2 or min(self.learning_rate) <= 0:
                raise ConfigError(
                    f"method.learning_rate={self.learning_rate}: give the first and the last, both above 0, e.g. "
                    "[0.01,0.00001]."
                )
            if self.bandwidth is not None and self.kernel in ("linear", "polynomial"):
                raise ConfigError(
                    f"method.bandwidth={self.bandwidth}: the {self.kernel} kernel has none. Leave it out, or use "
                    "method.kernel=gaussian or matern."
                )

    def __init__(self, config: Any):
        super().__init__(config)
        self._references: dict[str, Any] | None = None
        """What the reference set holds; None where all answers were stored."""
        self._folder: Path | None = None

    def check(self, facts: ModelFacts) -> None:
        """Raises ConfigError for layers that the model lacks, and for routers that choose by other than logits."""
        from moe_lab.routing import family_of_type
        from moe_lab.routing.rules import LOGITS

        named_layers(self.config.layers, facts.moe_layers)
        family = family_of_type(facts.family)
        assert family is not None
        if family.rule.noise != LOGITS:
            raise ConfigError(
                f"method=c3po re-mixes routing probabilities, but routers of {family.name} choose by a "
                f"{family.rule.noise}: it does not run on this family."
            )
        core = self.config.core_experts
        if core is not None and core < facts.top_k:
            raise ConfigError(
                f"method.core_experts={core}: a token of this model takes {facts.top_k} experts; re-mix at least these."
            )

    def reads(self, config: RunConfig, facts: ModelFacts) -> dict[str, Any]:
        """The reference documents. Raises ConfigError or TaskError where they cannot be had."""
        from moe_lab.methods.c3po.embeddings import embedding_identity
        from moe_lab.methods.c3po.reference_tasks import reference_documents
        from moe_lab.methods.c3po.references import reference_content

        if config.model.tp_plan:
            raise ConfigError(
                "method=c3po runs in one process: leave model.tp_plan out (model.device_map=auto)."
            )
        _check_tasks(config)
        documents = reference_documents(config, self.config)
        return reference_content(config, self.config, documents, facts) | embedding_identity(
            self.config.embeddings
        )

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        """`layers` as the numbers that they resolve to."""
        return asdict(self.config) | {"layers": named_layers(self.config.layers, facts.moe_layers)}

    def keep_files_in(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def open(self, model: LoadedModel, config: RunConfig) -> Iterator[C3POLM]:
        from moe_lab.engine.lm import EngineLM
        from moe_lab.methods.c3po.lm import C3POLM
        from moe_lab.methods.c3po.references import load_or_build
        from moe_lab.methods.c3po.trace import Trace

        base = EngineLM(model.model, model.tokenizer, **engine_options(config))
        references = load_or_build(config, self.config, model, base)
        layers = named_layers(self.config.layers, model.facts.moe_layers)
        gold_of = right_answers(config) if self.config.optimizer == "oracle" else None
        self._references = references.counts
        trace = Trace(self._folder) if self.config.trace and self._folder else None
        yield C3POLM(model, config, self.config, layers, references, gold_of, trace)

    def report(self, facts: ModelFacts, counters: Mapping[str, int]) -> dict[str, Any]:
        settings = self.config
        block = {
            "optimizer": settings.optimizer,
            "upper_bound": settings.optimizer == "oracle",
            "k": settings.k,
            "epsilon": settings.epsilon,
            "kernel": settings.kernel,
            "steps": settings.steps,
            "layers": named_layers(settings.layers, facts.moe_layers),
            "core_experts": settings.core_experts,
            "tokens": settings.tokens,
            "loss": settings.loss,
            "abstain": settings.abstain,
            "reference": {
                "too_similar": counters.get("reference_dropped", 0),
                "too_far": counters.get("reference_far", 0),
                "questions_without": counters.get("reference_none", 0),
                "set": self._references,
            },
        }
        return {"c3po": block}


def _check_tasks(config: RunConfig) -> None:
    """Raise ConfigError for a task that asks for anything but one of several choices."""
    from moe_lab.tasks import load_tasks

    for name, task in load_tasks(config)["tasks"].items():
        if task.get_config("output_type") != "multiple_choice":
            raise ConfigError(
                f"method=c3po answers multiple-choice questions, and {name} asks for texts or their likelihood.\n"
                "method=base and method=roe run it."
            )


def right_answers(config: RunConfig) -> GoldOf:
    """The right answer of each prompt that lm-eval has built for this run: test labels, for the oracle alone."""
    from moe_lab.tasks import load_tasks
    from moe_lab.tasks.documents import gold_choice

    golds: dict[str, str] = {}
    for task in load_tasks(config)["tasks"].values():
        for instance in task.instances:
            if instance.idx == gold_choice(task, instance.doc):
                golds[instance.args[0]] = instance.args[1]
    return golds.__getitem__
