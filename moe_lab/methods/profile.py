"""Profiles: the result of a study, as a YAML file.

`method.temperature=`, `method.logit_scale=` and `method.profile=` take it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from moe_lab.config.paths import user_path
from moe_lab.config.validators import build
from moe_lab.errors import ConfigError, reading


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One temperature per MoE layer and a logit scale, or a method's settings, and the study that
    found them."""

    model: str
    task: str
    study: str
    """Name of the study's folder in `outputs/studies/`."""
    tuning: str
    """tpe, random, uniform, scale or grid."""
    metric: str
    """perplexity or accuracy, of the tuning documents."""
    n: int
    trials: int
    """Finished trials."""
    trial: int
    """Number of the best trial; 0 is the untuned model."""
    score: float
    """The metric of the best trial."""
    untuned_score: float
    """The metric of trial 0: temperature 0 everywhere."""
    split: str
    """The split of the tuning documents."""
    samples: dict[str, list[int]]
    """Their row numbers in that split, per task."""
    documents: list[str]
    """Their `document_hashes`: a run with this profile does not evaluate them."""
    temperature: list[float]
    """One per MoE layer; none with tuning=grid."""
    noise: str = "gumbel"
    """Of `RoE.Config`."""
    logit_scale: float = 1.0
    calibrated_score: float | None = None
    """The metric of temperature 0 at its own best logit scale, if scales were searched."""
    calibrated_scale: float | None = None
    """The best logit scale of temperature 0."""
    at_bound: list[str] = field(default_factory=list)
    """Values at the bound of their search, such as "layer_3": a better value may be outside it."""
    answers: str | None = None
    """The scored answers: "data", others' worked answers. None if accuracy was tuned."""
    settings: dict[str, Any] | None = None
    """The method's keys with the best values that tuning=grid found; None with another tuning."""

    @property
    def block(self) -> dict[str, object]:
        """The `tuning` block of results.json."""
        left_out = {"task", "documents", "temperature"}
        if self.settings is None:
            left_out.add("settings")
        return {key: value for key, value in asdict(self).items() if key not in left_out}

    def text(self) -> str:
        """The YAML file's content: the best values first, the tuning documents last."""
        first = ("settings", "temperature", "logit_scale", "n", "noise")
        last = ("split", "samples", "documents")
        content = {name: getattr(self, name) for name in first} | asdict(self)
        for name in last:
            content[name] = content.pop(name)
        if self.settings is None:
            del content["settings"]
        return yaml.safe_dump(content, sort_keys=False, width=110, default_flow_style=None)


_expected: dict[Path, Profile] = {}
"""What `read_profile` returns for these paths (`expecting`)."""


@contextmanager
def expecting(path: Path, profile: Profile) -> Iterator[None]:
    """Inside the context `read_profile` returns this profile for a path: a plan knows what a study
    writes before it has found the values."""
    _expected[path] = profile
    try:
        yield
    finally:
        del _expected[path]


def read_profile(path: str | Path, key: str = "method.temperature") -> Profile:
    """Read a profile.

    Raises ConfigError, which names `key`, if the file is missing or is no profile.
    """
    file = user_path(path)
    if file in _expected:
        return _expected[file]
    remedy = "Give a number, a list, or the best.yaml of a study (tuning=tpe writes one)."
    with reading(f"{key}={path}", remedy, says="is no profile of a study"):
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        profile: Profile = build(Profile, values, "")
    if not profile.documents:
        raise ConfigError(
            f"{key}={path} has no `documents` to leave out of the test. Tune again (tuning=tpe)."
        )
    return profile
