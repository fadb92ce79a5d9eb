"""The base class of methods whose settings `tuning=grid` chooses on held-out examples."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from moe_lab.config.validators import build
from moe_lab.errors import ConfigError
from moe_lab.methods.calibration import calibrated_control
from moe_lab.methods.method import Method
from moe_lab.methods.profile import Profile, read_profile

if TYPE_CHECKING:
    from moe_lab.models.facts import ModelFacts

Settings = dict[str, float]
"""Values of the keys of a method that are tuned."""


class TunedSettings(Method):
    """A method with a grid of settings. `method.profile` takes the best ones of a study."""

    tunings = ("grid",)
    open_ended: ClassVar[tuple[str, ...]] = ()
    """Keys that allow larger values than the grid's. The largest one of the grid is marked as at the bound."""

    @dataclass(kw_only=True)
    class Config(Method.Config):
        """The key of all these methods."""

        profile: str | None = None
        """The path of a profile, whose settings take the place of all other keys."""

    def __init__(self, config: Any):
        super().__init__(config)
        if config.profile is not None:
            self.profile = read_profile(config.profile, "method.profile")
            self.config = _settled(config, self.profile)

    @abstractmethod
    def grid(self, facts: ModelFacts) -> list[Settings]:
        """The settings of each trial, all with the same keys. The first are those of the base model."""

    def at(self, settings: Settings) -> Any:
        """The configuration with these settings."""
        return replace(self.config, **settings)

    def settings(self, tuned: Settings) -> dict[str, Any]:
        """`Profile.settings`: the values of all keys, with the best values for those of the grid."""
        keys = (field.name for field in fields(self.config) if field.name not in ("name", "profile"))
        return {key: getattr(self.config, key) for key in keys} | tuned

    def with_profile(self, path: str) -> Any:
        """The configuration with the settings of the profile at `path`."""
        return replace(self.config, profile=path)

    def comparisons(self) -> dict[str, tuple[Any, list[str]]]:
        """The base model at its best logit scale, which a study of perplexity finds."""
        return calibrated_control(self.profile, self.config.profile)

    def identity(self, facts: ModelFacts) -> dict[str, Any]:
        """The settings themselves instead of the profile's path."""
        content = super().identity(facts) | {"study": self.profile.study if self.profile else None}
        return {key: value for key, value in content.items() if key != "profile"}


def _settled(config: Any, profile: Profile) -> Any:
    """The configuration with the profile's settings.

    Raises ConfigError if the profile has other keys, or if a key of the command has another value.
    """
    defaults = {
        field.name: field.default for field in fields(config) if field.name not in ("name", "profile")
    }
    settings = profile.settings or {}
    if settings.keys() != defaults.keys():
        has = f"those of {', '.join(settings)}" if settings else "temperatures"
        raise ConfigError(
            f"method.profile={config.profile} has {has}, and method={config.name} takes {', '.join(defaults)}.\n"
            f"Use a profile of method={config.name} tuning=grid."
        )
    for key, value in settings.items():
        if getattr(config, key) not in (defaults[key], value):
            raise ConfigError(
                f"method.{key}={getattr(config, key)} contradicts method.profile={config.profile}, which has {value}. "
                "Leave one of them out."
            )
    return build(type(config), settings | {"name": config.name, "profile": config.profile}, "method.")
