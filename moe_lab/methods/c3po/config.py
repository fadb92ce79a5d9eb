"""The keys of `method=c3po`, their valid values and combinations."""

from __future__ import annotations

from dataclasses import dataclass, field

from moe_lab.config.validators import above_zero, at_least, one_of
from moe_lab.engine.token_span import named_tokens
from moe_lab.errors import ConfigError
from moe_lab.methods.method import Method

CHOICES = {
    "optimizer": ("ngd", "kernel_regression", "mode_finding", "oracle"),
    "kernel": ("gaussian", "matern", "polynomial", "linear"),
    "parameters": ("weights", "logits"),
    "update": ("adam", "gd"),
    "schedule": ("cosine", "step", "fixed"),
    "relax": ("core", "topk"),
    "loss": ("cross_entropy", "l2"),
    "persistence": ("prompt_last", "all_new", "decay"),
}
AT_LEAST = {
    **dict.fromkeys(("core_experts", "k", "reference_size"), 1),
    **dict.fromkeys(("steps", "shifts"), 0),
}
ABOVE_0 = ("epsilon", "bandwidth")
ALPHAS = tuple(step / 10 for step in range(11))
"""Values of alpha that `optimizer=kernel_regression` tries if `alpha` is null."""
KEPT = 0.5
"""The share of the pathway that a shift of `optimizer=mode_finding` keeps if `alpha` is null."""
OF_DESCENT = {"steps", "parameters", "update", "learning_rate", "schedule", "relax"}
"""Keys of gradient descent alone."""
OF_REFERENCES = {
    *("k", "epsilon", "kernel", "bandwidth", "reference", "reference_size", "embeddings", "most_similar")
}
"""Keys that the oracle does not read."""


@dataclass(kw_only=True)
class C3POConfig(Method.Config):
    """Keys of `conf/method/c3po.yaml`."""

    name: str = "c3po"
    optimizer: str = "ngd"
    layers: str | list[int] = "last5"
    core_experts: int | None = 20
    tokens: str = "last1"
    k: int = 3
    epsilon: float | None = None
    kernel: str = "gaussian"
    bandwidth: float | None = None
    steps: int = 10
    parameters: str = "logits"
    """weights: the routing probabilities themselves (equation 1); logits: those of a softmax over the core experts."""
    update: str = "adam"
    """adam, or gd: plain gradient descent. Equation 1 is gd with `parameters="weights"`."""
    learning_rate: list[float] = field(default_factory=lambda: [0.1, 1e-4])
    """First and last: the paper's "10e-2 to 10e-5" as it is written. [0.01, 0.00001] reads it as powers of ten."""
    schedule: str = "cosine"
    """cosine or step: from the first learning rate to the last; fixed: always the first."""
    relax: str = "core"
    """The experts that contribute in the descent: all core experts, or the router's topk."""
    loss: str = "cross_entropy"
    alpha: float | None = None
    shifts: int = 10
    """Shifts of mode finding. Each keeps the share `alpha` of the pathway; null: `KEPT`."""
    reference: str | list[str] | None = None
    reference_size: int | None = None
    embeddings: str | None = None
    most_similar: float = 0.95
    persistence: str = "prompt_last"
    trace: bool = False

    def __post_init__(self) -> None:
        named_tokens(self.tokens)
        for key, choices in CHOICES.items():
            one_of(f"method.{key}", getattr(self, key), choices)
        for key, least in AT_LEAST.items():
            at_least(f"method.{key}", getattr(self, key), least)
        for key in ABOVE_0:
            above_zero(f"method.{key}", getattr(self, key))
        if self.alpha is not None and not 0 <= self.alpha <= 1:
            raise ConfigError(f"method.alpha={self.alpha}: must be between 0 and 1.")
        if len(self.learning_rate) != 2 or min(self.learning_rate) <= 0:
            raise ConfigError(
                f"method.learning_rate={self.learning_rate}: give the first and the last, both above 0, e.g. "
                "[0.1,0.0001]."
            )
        if self.bandwidth is not None and self.kernel in ("linear", "polynomial"):
            raise ConfigError(
                f"method.bandwidth={self.bandwidth}: the {self.kernel} kernel has none. Leave it out, or use "
                "method.kernel=gaussian or matern."
            )
        by_embeddings = self.optimizer in ("ngd", "kernel_regression")
        if by_embeddings and self.epsilon is not None and self.epsilon <= 1 - self.most_similar:
            raise ConfigError(
                f"method.epsilon={self.epsilon} finds no neighbour: it is a cosine distance (1 - cos), and references "
                f"nearer than {1 - self.most_similar:.4g} are dropped as near duplicates "
                f"(method.most_similar={self.most_similar}).\nGive a larger radius, e.g. the paper's 0.5."
            )

    @property
    def unread(self) -> set[str]:
        if self.optimizer == "oracle":
            return OF_REFERENCES | {"alpha", "shifts"}
        if self.optimizer == "ngd":
            unread = {"alpha", "shifts"}
        else:
            unread = OF_DESCENT | ({"shifts"} if self.optimizer == "kernel_regression" else set())
        return unread | ({"k"} if self.epsilon and self.optimizer != "mode_finding" else set())

    @property
    def passes(self) -> int:
        """The number of passes of a question's neighbours through the later layers."""
        if self.optimizer == "kernel_regression":
            return 2 if self.alpha is not None else 2 + len(ALPHAS)
        steps = self.shifts if self.optimizer == "mode_finding" else self.steps
        return steps + 1
