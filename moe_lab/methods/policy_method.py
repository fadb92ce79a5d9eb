"""The base class of routing methods: a method is an ensemble of routing samples, or one policy on the model.

A subclass gives a `Config`, `ensemble_for` or `policy`, and where `tuning=grid` searches its settings, `grid`. Opening,
identity, profile, and the block of results.json are written here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from moe_lab.config.schema import Config as RunConfig
from moe_lab.config.validators import UserPath, build
from moe_lab.errors import ConfigError
from moe_lab.methods.base import ensemble_lm
from moe_lab.methods.method import Context, Counters, Method, SessionInfo, share
from moe_lab.methods.profile import Profile, read_profile

if TYPE_CHECKING:
    from moe_lab.engine.forward.ensemble import Ensemble
    from moe_lab.engine.lm import EngineLM
    from moe_lab.models.facts import LoadedModel, ModelFacts
    from moe_lab.routing import PolicyFunction

Settings = dict[str, float]
"""Values of the keys of a method that are tuned."""
NOT_SETTINGS = ("name", "profile", "space", "policy")
"""Keys that are not in a profile."""


class PolicyMethod(Method):
    """An ensemble of routing samples, or one policy that is installed on the model."""

    tunings: ClassVar[tuple[str, ...]] = ("grid",)
    begins_with_base: ClassVar[bool] = True
    """Whether the first settings of the grid are those of the base model, whose best logit scale is then a control."""
    profile_key: ClassVar[str | None] = "profile"
    """The key that takes the path of a study's profile. `profile`: the settings of the profile replace all others."""
    open_ended: tuple[str, ...] = ()
    """Keys that allow larger values than the grid's. The largest one of the grid is marked as at the bound."""
    data_keys: ClassVar[tuple[str, ...]] = ()
    """Keys that choose data. They are not part of the identity: `data_identity` has the content."""
    counted: ClassVar[tuple[str, str, str] | None] = None
    """(key of its block, two counters of `EngineLM.cost`): the block has the ratio of the counters."""

    @dataclass(kw_only=True)
    class Config(Method.Config):
        """The key of methods with a grid."""

        profile: UserPath | None = None
        """The path of a profile, whose settings take the place of all other keys."""

    def __init__(self, config: Any):
        super().__init__(config)
        path = getattr(config, self.profile_key) if self.profile_key else None
        if isinstance(path, str):
            self.profile = read_profile(path, f"method.{self.profile_key}")
            if self.profile_key == "profile":
                self.config = _settled(config, self.profile)

    def ensemble_for(self, facts: ModelFacts, seed: int) -> Ensemble | None:
        """The ensemble on a model with these facts; None if the method is a policy."""
        return None

    def policy(
        self, model: LoadedModel, config: RunConfig
    ) -> tuple[PolicyFunction, dict[str, Any]]:
        """(the policy on this model, `EngineLM.session_info`) of a method without an ensemble."""
        raise NotImplementedError

    def grid(self, facts: ModelFacts) -> list[Settings]:
        """The settings of each trial, all with the same keys."""
        raise NotImplementedError

    def resolved(self, facts: ModelFacts) -> dict[str, Any]:
        """Values that replace or extend the configuration in the identity, for example a default of this model."""
        return {}

    def reported(self, facts: ModelFacts) -> dict[str, Any]:
        """The configuration as its block of results.json has it: the keys that have an effect."""
        own = {
            key: value
            for key, value in super().identity(facts).items()
            if key not in ("name", "profile")
        }
        return own | self.resolved(facts)

    @contextmanager
    def open(self, model: LoadedModel, context: Context) -> Iterator[EngineLM]:
        from moe_lab.methods.policy_lm import with_policy

        seed = context.config.seed if self.random else 0
        ensemble = self.ensemble_for(model.facts, seed)
        if ensemble is not None:
            yield ensemble_lm(model, context, ensemble, seed)
            return
        policy, session_info = self.policy(model, context.config)
        with with_policy(model, policy, context.config) as lm:
            lm.session_info = session_info
            yield lm

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        """The keys that have an effect, with the study instead of its profile's path."""
        left_out = {"profile", *self.data_keys}
        own = {key: value for key, value in super().identity(facts).items() if key not in left_out}
        study = {"study": self.profile.study if self.profile else None} if self.profile_key else {}
        return own | study | self.resolved(facts)

    def report(
        self, facts: ModelFacts, counters: Counters, session_info: SessionInfo
    ) -> dict[str, Any]:
        """`reported`, the ratio of the `counted` decisions (None without a decision), and the session's information."""
        block = self.reported(facts)
        if self.counted is not None:
            key, some, every = self.counted
            block[key] = share(counters, some, every)
        tuned = self.tuning_block if self.tunings else {}
        return tuned | {self.config.name.replace("-", "_"): block | dict(session_info)}

    def at(self, settings: Settings) -> Any:
        """The configuration with these settings."""
        return replace(self.config, **settings)

    def settings(self, tuned: Settings) -> dict[str, Any]:
        """`Profile.settings`: the values of all keys, with the best values for those of the grid."""
        keys = (field.name for field in fields(self.config) if field.name not in NOT_SETTINGS)
        return {key: getattr(self.config, key) for key in keys} | tuned

    def with_profile(self, path: str) -> Any:
        """The configuration with the settings of the profile at `path`."""
        return replace(self.config, **{str(self.profile_key): path})

    def comparisons(self, greedy: bool) -> dict[str, tuple[Any, list[str]]]:
        """The base model at its best logit scale, which a study of perplexity finds: the control for a gain.

        Its greedy answers are those of the base model.
        """
        if greedy or self.profile is None or self.profile.calibrated_scale is None:
            return {}
        from moe_lab.methods import get_method

        calibration: Any = get_method("calibration")

        path = getattr(self.config, str(self.profile_key))
        overrides = ["method=calibration", f"method.logit_scale={path}"]
        return {"calibration": (calibration.Config(logit_scale=path), overrides)}


def _settled(config: Any, profile: Profile) -> Any:
    """The configuration with the profile's settings.

    Raises ConfigError if the profile has other keys, or the command another value: its rows would be labelled by that.
    """
    defaults = {
        field.name: field.default for field in fields(config) if field.name not in NOT_SETTINGS
    }
    settings = profile.settings or {}
    if settings.keys() != defaults.keys():
        has = f"those of {', '.join(settings)}" if settings else "temperatures"
        raise ConfigError(
            f"method.profile={config.profile} has {has}, and method={config.name} takes {', '.join(defaults)}.\n"
            f"Use a profile of method={config.name} tuning=grid."
        )
    for key, value in settings.items():
        if (typed := getattr(config, key)) not in (defaults[key], value):
            raise ConfigError(
                f"method.{key}={typed} contradicts method.profile, which has {value}. Leave one out."
            )
    return build(type(config), vars(config) | settings, "method.")
