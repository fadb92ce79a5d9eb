"""Routing methods with settings that a study can choose (`tuning=`), and whose profile a later run
reads.

`GridMethod`: numbers on a grid that the method gives. `TemperatureMethod`: the temperatures of an
ensemble.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from moe_lab.config.validators import UserPath, build
from moe_lab.errors import ConfigError
from moe_lab.methods.method import Counters, Method, SessionInfo
from moe_lab.methods.policy_method import PolicyMethod
from moe_lab.methods.profile import Profile, read_profile

if TYPE_CHECKING:
    from moe_lab.engine.forward.ensemble import Ensemble
    from moe_lab.models.facts import ModelFacts

Settings = dict[str, float]
"""Values of the keys of a method that are tuned."""
NOT_SETTINGS = ("name", "profile", "space", "policy")
"""Keys that are not in a profile."""


class TunableMethod(PolicyMethod):
    """A routing method whose settings a study can choose."""

    tunings: ClassVar[tuple[str, ...]]
    """The options of `tuning=` that can search its settings."""
    profile_key: ClassVar[str]
    """The key that takes the path of a study's profile."""
    profile: Profile | None = None
    """The result of the study that chose its settings; None: they were not tuned."""

    def __init__(self, config: Any):
        super().__init__(config)
        path = getattr(config, self.profile_key)
        if isinstance(path, str):
            self.profile = read_profile(path, f"method.{self.profile_key}")

    @property
    def tuned_on(self) -> frozenset[str]:
        """`document_hashes` of the examples that its settings were tuned on, which are not
        evaluated; empty without a profile."""
        return frozenset(self.profile.documents if self.profile else ())

    @property
    def tuning_block(self) -> dict[str, Any]:
        """The part of `report` that says how the settings were found."""
        return {"tuning": self.profile.block} if self.profile else {"untuned": True}

    def with_profile(self, path: str) -> Any:
        """The configuration with the settings of the profile at `path`."""
        return replace(self.config, **{self.profile_key: path})

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        """The keys that have an effect, with the study instead of its profile's path."""
        study = self.profile.study if self.profile else None
        return super().identity(facts) | {"study": study}

    def comparisons(self, greedy: bool) -> dict[str, tuple[Any, list[str]]]:
        """{"calibration": (configuration, overrides)}: the base model at its best logit scale,
        which a study of perplexity finds. It is the control for a gain.

        Empty for greedy answers, which are those of the base model, and without such a scale.
        """
        if greedy or self.profile is None or self.profile.calibrated_scale is None:
            return {}
        from moe_lab.methods import get_method

        calibration: Any = get_method("calibration")
        path = getattr(self.config, self.profile_key)
        overrides = ["method=calibration", f"method.logit_scale={path}"]
        return {"calibration": (calibration.Config(logit_scale=path), overrides)}

    def report(
        self, facts: ModelFacts, counters: Counters, session_info: SessionInfo
    ) -> dict[str, Any]:
        return self.tuning_block | super().report(facts, counters, session_info)


class TemperatureMethod(TunableMethod):
    """An ensemble at temperatures of the MoE layers, which a study searches, or its logit scale.

    `Config` has the keys `skip_layers` and `temperature` for tpe, random and uniform, and
    `logit_scale` for scale.
    """

    @abstractmethod
    def temperatures(self, moe_layers: int) -> list[float]:
        """One temperature per MoE layer.

        Raises ConfigError if the configuration does not fit their number.
        """

    @abstractmethod
    def first_noisy(self, moe_layers: int) -> int:
        """The MoE layer from which on samples differ."""

    @abstractmethod
    def ensemble(self, temperatures: Sequence[float], first_noisy: int, seed: int) -> Ensemble:
        """The ensemble at these temperatures, one per MoE layer."""

    def ensemble_for(self, facts: ModelFacts, seed: int) -> Ensemble:
        L = facts.moe_layers
        return self.ensemble(self.temperatures(L), self.first_noisy(L), seed)


class GridMethod(TunableMethod):
    """A routing method with a grid of settings. The settings of its profile replace all others."""

    tunings: ClassVar[tuple[str, ...]] = ("grid",)
    profile_key = "profile"
    begins_with_base: ClassVar[bool] = True
    """Whether the first settings of the grid are those of the base model, whose best logit scale is
    then a control."""
    open_ended: tuple[str, ...] = ()
    """Keys that allow larger values than the grid's. A study that finds the largest one of the grid
    reports it as at the bound."""

    @dataclass(kw_only=True)
    class Config(Method.Config):
        """The key of methods with a grid."""

        profile: UserPath | None = None
        """The path of a profile, whose settings take the place of all other keys."""
        ensemble_keys: ClassVar[frozenset[str]] = frozenset()
        """Keys of an ensemble's shape, which no profile has."""

    def __init__(self, config: Any):
        super().__init__(config)
        if self.profile is not None:
            self.config = _settled(config, self.profile)

    @abstractmethod
    def grid(self, facts: ModelFacts) -> list[Settings]:
        """The settings of each trial, all with the same keys."""

    def corners(self, facts: ModelFacts) -> list[Settings]:
        """Settings of which the first are those of trial 0, and whose smallest and largest values
        are the ranges that a sampler draws from."""
        return self.grid(facts)

    def values(self, settings: Settings) -> dict[str, Any]:
        """The values of the method's keys at these settings."""
        return dict(settings)

    def at(self, settings: Settings) -> Any:
        """The configuration with these settings."""
        return replace(self.config, **self.values(settings))

    def settings(self, tuned: Settings) -> dict[str, Any]:
        """`Profile.settings`: the values of all keys, with the best values `tuned` for those of the
        grid."""
        keys = {field.name: getattr(self.config, field.name) for field in _settings_of(self.config)}
        return keys | self.values(tuned)

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        identity = super().identity(facts)
        identity.pop("profile", None)
        return identity

    def reported(self, facts: ModelFacts) -> dict[str, Any]:
        reported = super().reported(facts)
        reported.pop("profile", None)
        return reported


def _settings_of(config: Any) -> list[Field[Any]]:
    """The keys of a configuration that a profile has."""
    left_out = {*NOT_SETTINGS, *config.ensemble_keys}
    return [field for field in fields(config) if field.name not in left_out]


def default_of(field: Field[Any]) -> Any:
    """The default of a key; a new list for a key with a list."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def _settled(config: Any, profile: Profile) -> Any:
    """The configuration with the profile's settings.

    Raises ConfigError if the profile has other keys, or if the command gives another value for one
    of them: its results would be labelled by that value.
    """
    defaults = {field.name: default_of(field) for field in _settings_of(config)}
    settings = profile.settings or {}
    if settings.keys() != defaults.keys():
        has = f"those of {', '.join(settings)}" if settings else "temperatures"
        raise ConfigError(
            f"method.profile={config.profile} has {has}, and method={config.name} takes "
            f"{', '.join(defaults)}.\n"
            f"Use a profile of method={config.name} tuning=grid."
        )
    for key, value in settings.items():
        given = getattr(config, key)
        if given not in (defaults[key], value):
            raise ConfigError(
                f"method.{key}={given} contradicts method.profile, which has {value}. Leave one "
                "out."
            )
    return build(type(config), vars(config) | settings, "method.")
