"""The search of a study: presets (RoE, Table 1), and the space of temperatures, logit scales and other settings."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from moe_lab.config.schema import Config
from moe_lab.engine.forward.ensemble import at_bound
from moe_lab.errors import ConfigError
from moe_lab.methods.method import refuse
from moe_lab.methods.policy_method import PolicyMethod
from moe_lab.models.facts import ModelFacts

# Table 1 and section 3.1 of the RoE paper: the settings of tuning by task category and model


@dataclass(frozen=True)
class Preset:
    """One cell group of Table 1."""

    n: int
    """N: routing samples per token."""
    max_temperature: float
    """T: upper bound of the search."""
    skip_layers: int
    """L: MoE layers without noise at either end."""
    cache: str
    """clean or standard (section 3.1)."""
    metric: str
    """perplexity if the table's PPL is ticked, else accuracy."""
    num_samples: int
    n_trials: int


BUDGETS: dict[str, tuple[str, int, int]] = {
    "math": ("perplexity", 100, 50),
    "commonsense": ("accuracy", 300, 100),
    "code": ("accuracy", 50, 50),
}
"""Metric, tuning documents and trials by task category."""

SEARCHES: dict[str, dict[str, tuple[int, float, int]]] = {
    "olmoe": {"math": (32, 0.5, 1), "commonsense": (32, 0.5, 3), "code": (32, 0.5, 1)},
    "mixtral": {"math": (64, 0.25, 5), "commonsense": (64, 0.3, 3), "code": (64, 0.25, 5)},
    "gpt-oss": {"math": (64, 0.2, 5), "commonsense": (64, 0.2, 5), "code": (64, 0.2, 5)},
}
"""N, T and L by model and task category."""

CACHES = {"olmoe": "clean", "mixtral": "standard", "gpt-oss": "standard"}
"""Section 3.1: the clean cache for OLMoE, the standard cache for the other models."""

OTHER_MODELS = (32, 0.5, 1)
"""N, T and L of models that are not in the table: its values for OLMoE, with the smallest L."""

_SHAPES = {("olmoe", 16): "olmoe", ("mixtral", 32): "mixtral", ("gpt_oss", 24): "gpt-oss"}
"""(family, MoE layers) of the paper's models."""


def preset(category: str | None, model_name: str | None) -> Preset:
    """The defaults of tuning. Tasks without a category use the defaults of math."""
    category, name = category or "math", model_name or ""
    n, max_temperature, skip_layers = SEARCHES.get(name, {}).get(category, OTHER_MODELS)
    metric, num_samples, n_trials = BUDGETS[category]
    cache = CACHES.get(name, "clean")
    return Preset(n, max_temperature, skip_layers, cache, metric, num_samples, n_trials)


def paper_model(facts: ModelFacts) -> str | None:
    """The paper's model with the same family and number of MoE layers; None if there is none."""
    return _SHAPES.get((facts.family, facts.moe_layers))


# The search space of a study: the temperatures of a trial, and whether its logit scale is searched too

STEP = 0.05
"""Step between the temperatures of tuning=uniform (appendix B of the paper)."""
NEAR = 0.98
"""A temperature counts as at its upper bound from this share of the bound on."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search with all settings, by default those of Table 1."""

    tuning: str
    """tpe, random: one temperature per MoE layer; uniform: one for all, in steps; scale: the temperatures are
    given; grid: settings of a method, each point in one trial."""
    metric: str
    n_trials: int
    num_samples: int
    moe_layers: int
    max_temperature: float = 0.0
    skip_layers: int = 0
    """L: the first and the last L MoE layers keep temperature 0."""
    step: float = STEP
    """The step of tuning=uniform."""
    logit_scale: bool = False
    """Whether a trial's value is its perplexity at the best logit scale."""
    given: list[float] | None = None
    """The temperatures of tuning=scale, one per MoE layer."""
    grid: list[dict[str, float]] | None = None
    """The settings of each trial of tuning=grid; with another tuning of settings, the corners of their ranges."""
    open_ended: tuple[str, ...] = ()
    """Keys of the grid that allow values beyond the largest one."""
    lower_is_better: bool = False
    """Whether the task's headline, which `metric: accuracy` means, is an error."""

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that determine the trials, without their number."""
        left_out = {"n_trials", "num_samples", "open_ended"}
        if not self.lower_is_better:
            left_out.add("lower_is_better")  # ids of before it existed stay
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    @property
    def direction(self) -> str:
        """Optuna's direction: perplexities and errors are minimized, other headlines maximized."""
        return "minimize" if self.metric == "perplexity" or self.lower_is_better else "maximize"

    @property
    def layers(self) -> range:
        """The MoE layers that may be noisy."""
        return range(self.skip_layers, self.moe_layers - self.skip_layers)

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """The least and the largest value of each parameter.

        Parameters are a temperature per searched layer, one for all, or keys of the grid; tuning=scale has none.
        """
        if self.grid is not None:
            values = {name: [point[name] for point in self.grid] for name in self.grid[0]}
            return {name: (min(own), max(own)) for name, own in values.items()}
        names = (
            ["temperature"]
            if self.tuning == "uniform"
            else [f"layer_{layer}" for layer in self.layers]
        )
        return dict.fromkeys([] if self.given is not None else names, (0.0, self.max_temperature))

    def fixed(self, number: int) -> dict[str, float] | None:
        """The parameters of a trial that are not sampled; None if they are. Trial 0 is the untuned model."""
        if self.grid is not None:
            return self.grid[number] if self.tuning == "grid" or number == 0 else None
        if self.tuning == "uniform":
            return {"temperature": round(number * self.step, 10)}
        return dict.fromkeys(self.bounds, 0.0) if number == 0 else None

    def temperatures(self, params: dict[str, float]) -> list[float]:
        """The temperatures of a trial, one per MoE layer of the model; 0 in layers that are not searched.

        Empty in a search of settings.
        """
        if self.grid is not None:
            return []
        if self.given is not None:
            return self.given
        name = "temperature" if self.tuning == "uniform" else "layer_{}"
        layers = range(self.moe_layers)
        return [params[name.format(layer)] if layer in self.layers else 0.0 for layer in layers]

    def at_bound(self, params: dict[str, float], logit_scale: float) -> list[str]:
        """The parameters whose value is at the upper bound of the search, and "logit_scale" at either of its own."""
        near = [name for name, (_, most) in self.bounds.items() if params[name] >= NEAR * most]
        named = [name for name in near if self.grid is None or name in self.open_ended]
        return named + (["logit_scale"] if at_bound(logit_scale) else [])


def resolve(config: Config, facts: ModelFacts) -> tuple[Config, Search]:
    """The configuration with n and cache of the preset, and the search with all settings.

    Raises ConfigError for settings that contradict a search.
    """
    typed = {override.partition("=")[0].lstrip("+") for override in config.overrides}
    default, given = type(config.method)(), config.tuning
    usual, uniform = preset(config.task.category, paper_model(facts)), given.name == "uniform"
    skip = config.method.skip_layers
    if skip is None:
        skip = 0 if uniform else usual.skip_layers
    refuse(
        {
            f"tuning={given.name} searches the temperatures: leave method.temperature out, or tuning.": (
                "method.temperature" in typed or config.method.temperature != default.temperature
            ),
            f"method.skip_layers={skip} leaves none of the {facts.moe_layers} MoE layers to tune. Choose a smaller "
            "one.": 2 * skip >= facts.moe_layers,
            "tuning.logit_scale=true is searched by perplexity: add tuning.metric=perplexity.": (
                given.logit_scale and (given.metric or usual.metric) != "perplexity"
            ),
            f"tuning=uniform tries every step of {given.step} up to tuning.max_temperature: leave tuning.n_trials "
            "out.": uniform and given.n_trials is not None,
        }
    )
    last = given.max_temperature or (1.0 if uniform else usual.max_temperature)
    search = Search(
        tuning=given.name,
        metric=given.metric or usual.metric,
        n_trials=int(last / given.step + 1e-6) + 1 if uniform else given.n_trials or usual.n_trials,
        num_samples=given.num_samples or usual.num_samples,
        max_temperature=last,
        skip_layers=skip,
        moe_layers=facts.moe_layers,
        step=given.step,
        logit_scale=given.logit_scale,
    )

    def chosen(key: str) -> Any:
        """The value of a method's key if it was given, else the preset's."""
        own = getattr(config.method, key)
        return (
            own if f"method.{key}" in typed or own != getattr(default, key) else getattr(usual, key)
        )

    n = chosen("n")
    if n == 1:
        raise ConfigError(
            "method.n=1 has no noisy routing sample, so there is nothing to tune. Raise it."
        )
    method: Any = replace(
        config.method, n=n, cache=chosen("cache"), temperature=0.0, skip_layers=skip
    )
    return replace(config, method=method), search


def resolve_scale(config: Config, facts: ModelFacts, method: Any) -> Search:
    """The search of a logit scale alone: one trial, at the method's own temperatures.

    Raises ConfigError for settings that contradict it.
    """
    given = config.tuning
    if method.config.logit_scale not in (None, 1):
        raise ConfigError(
            f"method.logit_scale={method.config.logit_scale}: tuning=scale searches it. Leave one out."
        )
    return Search(
        tuning="scale",
        metric="perplexity",
        n_trials=1,
        num_samples=given.num_samples
        or preset(config.task.category, paper_model(facts)).num_samples,
        skip_layers=method.first_noisy(facts.moe_layers),
        moe_layers=facts.moe_layers,
        logit_scale=True,
        given=method.temperatures(facts.moe_layers),
    )


def resolve_grid(config: Config, facts: ModelFacts, method: PolicyMethod) -> Search:
    """The search of a method's settings. Raises ConfigError for settings that contradict it."""
    given = config.tuning
    grid = method.grid(facts)
    default = type(config.method)()
    for key in ("profile", *grid[0]):
        value = getattr(config.method, key)
        if value != getattr(default, key) and any(point.get(key) != value for point in grid[1:]):
            raise ConfigError(
                f"method.{key}={value}: tuning={given.name} searches it. Leave one out."
            )
    usual = preset(config.task.category, paper_model(facts))
    return Search(
        tuning=given.name,
        metric=given.metric or usual.metric,
        n_trials=len(grid) if given.name == "grid" else given.n_trials or usual.n_trials,
        num_samples=given.num_samples or usual.num_samples,
        moe_layers=facts.moe_layers,
        grid=grid,
        open_ended=method.open_ended,
    )
