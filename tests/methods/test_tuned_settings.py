"""The profiles of methods whose settings a grid finds.

Broken by: settings of another method, a key that a profile overrides in silence, a run whose id depends on the path of
its profile, examples that were tuned on and are tested, a comparison with calibration that is missing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from moe_lab.errors import ConfigError
from moe_lab.methods.profile import Profile
from moe_lab.methods.tuned_settings import Settings, TunedSettings
from tests.support.runs import facts


class Powered(TunedSettings):
    @dataclass(kw_only=True)
    class Config(TunedSettings.Config):
        name: str = "powered"
        power: float = 0.5
        rank: int = 1

    def grid(self, facts: Any) -> list[Settings]:
        return [{"power": 0.0}, {"power": 1.0}]

    def open(self, model: Any, context: Any) -> Any:
        raise NotImplementedError


def powered(**keys: Any) -> Powered:
    return Powered(Powered.Config(**keys))


PROFILE = Profile(
    model="m", task="t", study="s", tuning="grid", metric="accuracy", n=1, trials=2, trial=1, score=1.0,
    untuned_score=0.5, split="train", samples={"t": [1]}, documents=["a", "b"], temperature=[],
    settings={"power": 1.0, "rank": 2},
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "best.yaml").write_text(PROFILE.text())
    return str(tmp_path / "best.yaml")


def test_a_profile_gives_all_keys_and_its_examples_are_left_out(path: str) -> None:
    method = powered(profile=path)
    assert (method.config.power, method.config.rank) == (1.0, 2)
    assert method.tuned_on == {"a", "b"}
    assert method.tuning_block["tuning"]["settings"] == PROFILE.settings
    assert method.identity(facts()) == {"name": "powered", "power": 1.0, "rank": 2, "study": "s"}


def test_a_study_stores_all_keys() -> None:
    method = powered(rank=4)
    assert method.settings({"power": 0.25}) == {"rank": 4, "power": 0.25}
    assert method.at({"power": 0.25}).power == 0.25
    assert method.with_profile("best.yaml") == replace(method.config, profile="best.yaml")
    assert powered().tuning_block == {"untuned": True} and powered().tuned_on == frozenset()


def test_a_key_that_contradicts_the_profile_is_refused(path: str) -> None:
    assert powered(profile=path, rank=2).config.rank == 2
    with pytest.raises(ConfigError, match=r"method\.rank=3 contradicts method\.profile"):
        powered(profile=path, rank=3)


@pytest.mark.parametrize(
    ("settings", "has"), [(None, "temperatures"), ({"beta": 1.0}, "those of beta"), ({"power": 1.0}, "power")]
)
def test_a_profile_of_another_method_is_refused(settings: Any, has: str, tmp_path: Path) -> None:
    (tmp_path / "best.yaml").write_text(replace(PROFILE, settings=settings).text())
    with pytest.raises(ConfigError, match=has):
        powered(profile=str(tmp_path / "best.yaml"))
    with pytest.raises(
        ConfigError, match=r"method\.profile=nowhere\.yaml is no profile of a study: No such file"
    ):
        powered(profile="nowhere.yaml")


def test_it_is_compared_with_calibration_where_its_study_measured_it(tmp_path: Path, path: str) -> None:
    assert powered().comparisons() == powered(profile=path).comparisons() == {}
    (tmp_path / "best.yaml").write_text(replace(PROFILE, calibrated_scale=1.1).text())
    config, overrides = powered(profile=path).comparisons()["calibration"]
    assert config.logit_scale == path and overrides == ["method=calibration", f"method.logit_scale={path}"]
