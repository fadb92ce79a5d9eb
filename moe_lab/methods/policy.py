"""`method=policy`: a function of a file decides at every routing decision.

    # my_idea.py
    def drop_weakest(router, routing, scale=0.0):
        weakest_T1 = routing.weights_TK.argmin(-1, keepdim=True)
        scaled_T1 = scale * routing.weights_TK.gather(-1, weakest_T1)
        return routing._replace(weights_TK=routing.weights_TK.scatter(-1, weakest_T1, scaled_T1))

    python -m moe_lab method=policy method.policy=my_idea.py:drop_weakest method.scale=0.5 \\
        task=arc_easy

The function is what `moe_lab.override` takes. Its arguments with defaults are keys of the method. A
third argument `tokens` without a default gets the tokens and their keyed noise
(`moe_lab.routing.tokens`); with `method.n=8` eight samples of such a function are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, make_dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from moe_lab.config.policy_arguments import takes_tokens
from moe_lab.config.schema import Config as RunConfig
from moe_lab.config.validators import PositiveInt, UserPath, did_you_mean
from moe_lab.errors import ConfigError
from moe_lab.methods.base import ensemble_lm
from moe_lab.methods.method import Context, Method
from moe_lab.methods.policy_file import defaults_of, load_function
from moe_lab.methods.tunable_method import GridMethod, Settings, default_of
from moe_lab.results.code_digest import imports_digest
from moe_lab.tasks.workload import Workload

if TYPE_CHECKING:
    from moe_lab.engine.forward.ensemble import Ensemble
    from moe_lab.engine.lm import EngineLM
    from moe_lab.models.facts import LoadedModel, ModelFacts


ENSEMBLE_KEYS = frozenset({"n", "cache"})
"""Keys of routing samples, unless they are arguments of the function."""
MOST_TRIALS = 10_000
"""Combinations of `space` that tuning=grid tries at most: each is a trial."""


class FunctionPolicy(GridMethod):
    """A function of a file."""

    tunings = ("grid", "tpe", "random")
    begins_with_base = False
    data_keys = ("policy", "space")
    expert_metrics: Literal["none", "counted", "all"] = "counted"

    @dataclass(kw_only=True)
    class Config(GridMethod.Config):
        """The keys of every function; `config_class` adds those of one."""

        name: str = "policy"
        policy: UserPath | None = None
        """`<file>.py:<function>`."""
        space: dict[str, list[int | float]] | None = None
        """Of the function's keys: the values that tuning=grid tries; with tuning=tpe, the ends of
        the range, which the function's default widens where it lies outside. Those of a list are
        for each of its entries."""
        n: PositiveInt | None = None
        """Routing samples of each token: sample 0 is the base model, the others are draws of the
        function; None: 1, one routing by the function."""
        cache: Literal["clean", "standard"] | None = None
        """With n > 1, the history that samples attend to: the clean one, or their own; None:
        clean."""
        ensemble_keys: ClassVar[frozenset[str]] = ENSEMBLE_KEYS
        """`n` and `cache`, if they are no arguments of the function."""
        takes_tokens: ClassVar[bool] = False
        """Whether the function does."""

        def __post_init__(self) -> None:
            for key in ENSEMBLE_KEYS - self.ensemble_keys:
                if getattr(self, key) is None:  # conf/ has no default of the function
                    setattr(self, key, default_of(type(self).__dataclass_fields__[key]))
            super().__post_init__()
            if self.samples > 1:
                self._check_samples()
            elif "cache" in self.ensemble_keys and self.cache is not None:
                raise ConfigError(
                    f"method.cache={self.cache} has no effect on one routing of each token. Leave "
                    "it out, or give routing samples: method.n=8."
                )

        def _check_samples(self) -> None:
            """Raise ConfigError for a function that gives no routing samples."""
            if not self.takes_tokens:
                raise ConfigError(
                    f"method.n={self.n}: all samples would be the same, since {self.policy} takes "
                    "no tokens, whose noise it could draw. Leave n out, or give it a third "
                    "argument `tokens`."
                )
            if "cache" not in self.ensemble_keys:
                raise ConfigError(
                    f"method.n={self.n}: samples attend to a `cache`, which is an argument of "
                    f"{self.policy}. Give that another name."
                )

        @property
        def samples(self) -> int:
            """Routing samples of each token."""
            return self.n or 1 if "n" in self.ensemble_keys else 1

        @property
        def unread(self) -> set[str]:
            """`n` and `cache` without routing samples."""
            return set() if self.samples > 1 else set(self.ensemble_keys)

        def __reduce__(self) -> tuple[Any, ...]:
            """Its class is made from the function, so pickles name the function in its place."""
            return _config_of, (vars(self),)

    def __init__(self, config: Any):
        super().__init__(config)
        loaded = load_function(self.config.policy)
        self.function = loaded.function
        self.digest = loaded.file_sha256
        self.arguments = {key: getattr(self.config, key) for key in defaults_of(self.function)}
        """The values of the function's keys."""
        self.open_ended = tuple(name for names in self._parameters.values() for name in names)
        self.random = takes_tokens(self.function)
        if self.config.samples > 1:
            self.expert_metrics = "none"
            self.counted = ("changed_fraction", "changed_decisions", "noisy_decisions")

    @staticmethod
    def config_class(keys: Mapping[str, Any]) -> type[Method.Config]:
        return _config_class(load_function(keys.get("policy")).function)

    @property
    def tuning_block(self) -> dict[str, Any]:
        """A function without keys has nothing to tune."""
        return super().tuning_block if self.profile or self.arguments else {}

    def resolved(self, facts: ModelFacts) -> dict[str, Any]:
        """{"function": its name, "file": the SHA-256 of its file, "imports": the digest of the
        files next to it that it imports}; without "imports" if it imports none."""
        file, _, _ = str(self.config.policy).rpartition(":")
        imports = imports_digest(Path(file))
        code = {"function": self.function.__name__, "file": self.digest}
        if imports is not None:
            code["imports"] = imports
        return code

    def reported(self, facts: ModelFacts) -> dict[str, Any]:
        reported = {"policy": self.config.policy} | self.arguments
        if self.config.samples > 1:
            ensemble = self.planned_ensemble()
            reported |= {"n": ensemble.n, "cache": ensemble.cache}
        return reported

    def grid(self, facts: ModelFacts) -> list[Settings]:
        """The function's defaults for the keys of `space`, then every other combination of its
        values.

        Raises ConfigError without a `space`, for a key that has no number, and for more than
        `MOST_TRIALS` combinations.
        """
        values_of = self._values_of_parameters()
        combinations = math.prod(len(values) for values in values_of.values())
        if combinations > MOST_TRIALS:
            raise ConfigError(
                f"method.space has {combinations:,} combinations, and tuning=grid tries at most "
                f"{MOST_TRIALS:,}. Give fewer values, or use tuning=tpe."
            )
        first = self._first_settings
        grid = [first]
        for values in product(*values_of.values()):
            settings = dict(zip(values_of, values, strict=True))
            if settings != first:
                grid.append(settings)
        return grid

    def corners(self, facts: ModelFacts) -> list[Settings]:
        """As `grid`. The entries of a list, whose combinations may be very many, get the values of
        `space` one after the other."""
        if not any(isinstance(self.arguments.get(key), list) for key in self.config.space or ()):
            return self.grid(facts)
        values_of = self._values_of_parameters()
        corners = [self._first_settings]
        for place in range(max(len(values) for values in values_of.values())):
            corners.append(
                {name: values[place % len(values)] for name, values in values_of.items()}
            )
        return corners

    def values(self, settings: Settings) -> dict[str, Any]:
        """The values of the function's keys, those of a list from its entries' parameters.

        Integers stay integers: a sampler draws other numbers between those of a list.
        """
        values: dict[str, Any] = dict(settings)
        for key, names in self._parameters.items():
            if not isinstance(self.arguments[key], list):
                continue
            entries = [values.pop(name) for name in names]
            if _are_integers([*self.arguments[key], *(self.config.space or {})[key]]):
                entries = [round(entry) for entry in entries]
            values[key] = entries
        return values

    @property
    def _parameters(self) -> dict[str, list[str]]:
        """The parameters of a study for each key of `space`: the key itself, or of a list `k` one
        for each entry: `k_0`, `k_1`, ..."""
        parameters = {}
        for key in self.config.space or ():
            value = self.arguments.get(key)
            if isinstance(value, list):
                parameters[key] = [f"{key}_{entry}" for entry in range(len(value))]
            else:
                parameters[key] = [key]
        return parameters

    @property
    def _first_settings(self) -> Settings:
        """The function's defaults for the keys of `space`; of a list, the given one."""
        defaults = defaults_of(self.function)
        settings: Settings = {}
        for key, names in self._parameters.items():
            if isinstance(self.arguments[key], list):
                settings |= dict(zip(names, self.arguments[key], strict=True))
            else:
                settings[key] = defaults[key]
        return settings

    def _values_of_parameters(self) -> dict[str, list[int | float]]:
        """The values of `space` for each parameter of a study.

        Raises ConfigError without a `space`, for a key that has no number, and for the parameter of
        a list's entry that has the name of another key.
        """
        space = self.config.space
        numbers = []
        for key, value in self.arguments.items():
            if type(value) in (int, float, list):
                numbers.append(key)
        if not space:
            example = next(iter(numbers), "key")
            raise ConfigError(
                f"tuning= needs the values to try: method.space={{{example}: [0.5, 1.0]}}."
            )
        values_of: dict[str, list[int | float]] = {}
        for key, values in space.items():
            if key not in numbers:
                raise ConfigError(
                    f"method.space.{key}: {self.config.policy} has no such key with a number."
                    f"{did_you_mean(key, numbers)}"
                )
            for name in self._parameters[key]:
                if name != key and name in self.arguments:
                    raise ConfigError(
                        f"method.space.{key}: its entry is searched as {name}, which is another "
                        f"argument of {self.config.policy}. Rename one."
                    )
                values_of[name] = values
        return values_of

    def planned_ensemble(self) -> Ensemble:
        """The ensemble without its policy; without routing samples, the base model."""
        from moe_lab.engine.forward.ensemble import Ensemble

        return Ensemble(n=self.config.samples, cache=self.config.cache or "clean")

    def forward_tokens(self, workload: Workload, config: RunConfig, facts: ModelFacts) -> float:
        decides_by_tokens = self.random and self.config.samples == 1
        return workload.tokens(self.planned_ensemble(), apart=decides_by_tokens)

    @staticmethod
    def footnotes(block: dict[str, Any]) -> list[str]:
        policy = block.get("policy", {})
        if "changed_fraction" not in policy:
            return []
        return [
            f"policy: {policy['n']} routing samples over a {policy['cache']} cache. Sample 0 is "
            "the base model, and the function routes the others."
        ]

    @contextmanager
    def open(self, model: LoadedModel, context: Context) -> Iterator[EngineLM]:
        """The base model's LM under the function, or that of an ensemble of its samples.

        Raises ConfigError for a function that decides differently in two equal passes.
        """
        from moe_lab.methods.repeatable import check_repeatable
        from moe_lab.routing.override import deciding_last
        from moe_lab.routing.sampled_policy import sampled

        policy = partial(self.function, **self.arguments)
        seed = context.config.seed
        check_repeatable(model.model, policy, seed, f"method.policy={self.config.policy}")
        ensemble = self.planned_ensemble()
        sampling_seed = seed if self.random else 0
        if ensemble.n == 1:
            with deciding_last(model.model, policy, seed):
                yield ensemble_lm(model, context, ensemble, sampling_seed)
            return
        with sampled(model.model, policy, seed) as routing:
            ensemble = replace(ensemble, routing=routing)
            yield ensemble_lm(model, context, ensemble, sampling_seed)


def _config_of(values: dict[str, Any]) -> FunctionPolicy.Config:
    """The configuration with these values of the keys."""
    config: FunctionPolicy.Config = FunctionPolicy.config_class(values)(**values)  # type: ignore[assignment]
    return config


def _is_value(default: Any) -> bool:
    """Whether the default of an argument may be that of a key."""
    if isinstance(default, list):
        return bool(default) and all(type(entry) in (int, float) for entry in default)
    return isinstance(default, bool | int | float | str)


def _are_integers(numbers: Sequence[int | float]) -> bool:
    return all(isinstance(number, int) for number in numbers)


@lru_cache(maxsize=64)
def _config_class(function: Callable[..., Any]) -> type[Method.Config]:
    """`FunctionPolicy.Config` with the function's keys.

    Raises ConfigError for a key of a name that the method has itself, and for a default that is no
    number, text, truth value or list of numbers.
    """
    base = FunctionPolicy.Config
    own_keys = defaults_of(function).keys()
    reserved = {field_of_base.name for field_of_base in fields(base)} - ENSEMBLE_KEYS
    new_fields: list[tuple[str, Any, Any]] = []
    for key, default in defaults_of(function).items():
        if key in reserved or not _is_value(default):
            raise ConfigError(
                f"{function.__name__}({key}={default!r}): the default must be a number, a text, "
                f"true or false, or a list of numbers, and the name none of "
                f"{', '.join(sorted(reserved))}, which method=policy has itself."
            )
        kind: Any = type(default)
        if kind is int:
            kind = int | float
        elif kind is list:
            kind = list[int | float]
        if key in ENSEMBLE_KEYS:
            kind = kind | None
        if isinstance(default, list):
            new_fields.append((key, kind, field(default_factory=default.copy)))
        else:
            new_fields.append((key, kind, field(default=default)))
    namespace = {
        "ensemble_keys": ENSEMBLE_KEYS - own_keys,
        "takes_tokens": takes_tokens(function),
    }
    return make_dataclass("Config", new_fields, bases=(base,), kw_only=True, namespace=namespace)
