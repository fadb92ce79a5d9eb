"""The keys of `method=c3po`, their valid values and combinations."""

from dataclasses import dataclass, field
from typing import Literal

from moe_lab.config.validators import NonNegativeInt, PositiveFloat, PositiveInt, Share, UserPath
from moe_lab.engine.token_span import named_tokens
from moe_lab.errors import ConfigError
from moe_lab.methods.method import Method

ALPHAS = tuple(step / 10 for step in range(11))
"""Values of alpha that `optimizer=kernel_regression` tries if `alpha` is null."""
KEPT = 0.5
"""The share of the pathway that a shift of `optimizer=mode_finding` keeps if `alpha` is null."""
OF_DESCENT = {"steps", "parameters", "update", "learning_rate", "schedule", "relax"}
"""Keys of gradient descent alone."""
OF_REFERENCES = {
    "k",
    "epsilon",
    "kernel",
    "bandwidth",
    "reference",
    "reference_size",
    "embeddings",
    "most_similar",
}
"""Keys that the oracle does not read."""


@dataclass(kw_only=True)
class C3POConfig(Method.Config):
    """Keys of `conf/method/c3po.yaml`."""

    name: str = "c3po"
    optimizer: Literal["ngd", "kernel_regression", "mode_finding", "oracle"] = "ngd"
    layers: str | list[int] = "last5"
    core_experts: PositiveInt | None = 20
    tokens: str = "last1"
    k: PositiveInt = 3
    epsilon: PositiveFloat | None = None
    kernel: Literal["gaussian", "matern", "polynomial", "linear"] = "gaussian"
    bandwidth: PositiveFloat | None = None
    steps: NonNegativeInt = 10
    parameters: Literal["weights", "logits"] = "logits"
    """weights: the routing probabilities themselves (equation 1);
    logits: those of a softmax over the core experts."""
    update: Literal["adam", "gd"] = "adam"
    """adam, or gd: plain gradient descent. Equation 1 is gd with `parameters="weights"`."""
    learning_rate: list[float] = field(default_factory=lambda: [0.1, 1e-4])
    """First and last: the paper's "10e-2 to 10e-5" as it is written. [0.01, 0.00001] reads it as
    powers of ten."""
    schedule: Literal["cosine", "step", "fixed"] = "cosine"
    """cosine or step: from the first learning rate to the last; fixed: always the first."""
    relax: Literal["core", "topk"] = "core"
    """The experts that contribute in the descent: all core experts, or the router's topk."""
    loss: Literal["cross_entropy", "l2"] = "cross_entropy"
    alpha: Share | None = None
    shifts: NonNegativeInt = 10
    """Shifts of mode finding. Each keeps the share `alpha` of the pathway; null: `KEPT`."""
    reference: str | list[str] | None = None
    reference_size: PositiveInt | None = None
    embeddings: UserPath | None = None
    most_similar: float = 0.95
    persistence: Literal["prompt_last", "all_new", "decay"] = "prompt_last"
    trace: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        named_tokens(self.tokens)  # raises ConfigError for an unknown name
        if len(self.learning_rate) != 2 or min(self.learning_rate) <= 0:
            raise ConfigError(
                f"method.learning_rate={self.learning_rate}: give the first and the last, both "
                "above 0, e.g. [0.1,0.0001]."
            )
        if self.bandwidth is not None and self.kernel in ("linear", "polynomial"):
            raise ConfigError(
                f"method.bandwidth={self.bandwidth}: the {self.kernel} kernel has none. Leave it "
                "out, or use method.kernel=gaussian or matern."
            )
        radius = 1 - self.most_similar
        is_cosine = self.optimizer in ("ngd", "kernel_regression")
        if is_cosine and self.epsilon is not None and self.epsilon <= radius:
            raise ConfigError(
                f"method.epsilon={self.epsilon} finds no neighbour: it is a cosine distance (1 - "
                f"cos), and references nearer than {radius:.4g} are dropped as near duplicates "
                f"(method.most_similar={self.most_similar}).\nGive a larger radius, e.g. the "
                "paper's 0.5."
            )

    @property
    def unread(self) -> set[str]:
        """The keys that the optimizer does not read."""
        if self.optimizer == "oracle":
            return OF_REFERENCES | {"alpha", "shifts"}
        if self.optimizer == "mode_finding":
            return set(OF_DESCENT)
        unread = {"shifts"}
        if self.optimizer == "ngd":
            unread.add("alpha")
        else:
            unread |= OF_DESCENT
        if self.epsilon:
            unread.add("k")
        return unread

    @property
    def passes(self) -> int:
        """The number of passes of a question's neighbours through the later layers."""
        if self.optimizer == "kernel_regression":
            tried = len(ALPHAS) if self.alpha is None else 0
            return 2 + tried
        steps = self.shifts if self.optimizer == "mode_finding" else self.steps
        return steps + 1
