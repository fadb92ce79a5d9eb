"""Temperature profiles. Broken by: a file that is taken though it is no profile, a value lost on the way to disk."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.methods.profile import read_profile
from tests.support.profiles import PROFILE


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "best profile.yaml"
    path.write_text(PROFILE.text())
    return path


def roe(**keys):
    method = get_method("roe")
    return method(method.Config(**keys))


def test_reading_gives_what_was_written(file):
    assert read_profile(file) == PROFILE


def test_roe_takes_its_temperatures_documents_and_study(file):
    method = roe(temperature=str(file))
    assert method.temperatures(4) == PROFILE.temperature
    assert method.tuned_on == frozenset(PROFILE.documents)
    assert method.first_noisy(4) == 1
    report = method.report(_facts(4), {}, {})
    assert "untuned" not in report and report["tuning"]["study"] == PROFILE.study
    assert report["tuning"]["samples"] == {"toy_math": [1, 5]}


def _facts(moe_layers):
    from tests.support.runs import facts

    return facts(moe_layers=moe_layers)


def test_a_profile_is_part_of_the_identity_wherever_it_lies(file, tmp_path):
    other = tmp_path / "elsewhere.yaml"
    other.write_text(file.read_text())
    first = roe(temperature=str(file)).identity(_facts(4))
    assert roe(temperature=str(other)).identity(_facts(4)) == first
    other.write_text(replace(PROFILE, temperature=[0.0, 0.2, 0.0, 0.4]).text())
    assert roe(temperature=str(other)).identity(_facts(4)) != first


@pytest.mark.parametrize(
    "text, message",
    [
        ("- 1\n", "is no profile of a study"),
        ("temperature: [0, 1", "is no profile of a study"),
        ("temperature: [0.1]\n", "is no profile of a study"),
        (PROFILE.text() + "more: 1\n", "more"),
        (replace(PROFILE, documents=[]).text(), "documents:"),
        (PROFILE.text().replace("trials: 50", "trials: many"), "trials"),
    ],
)
def test_other_files_are_refused(tmp_path, text, message):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        roe(temperature=str(tmp_path / "x.yaml"))


def test_a_missing_file_says_what_can_be_given(tmp_path):
    with pytest.raises(ConfigError, match="Give a number, a list, or the best.yaml of a study"):
        roe(temperature="warm")


def test_impossible_temperatures_and_other_models_are_refused(file):
    with pytest.raises(ConfigError, match="4 entries, and the model has 5"):
        roe(temperature=str(file)).temperatures(5)
    file.write_text(replace(PROFILE, temperature=[0.0, -0.1, 0.0, 0.4]).text())
    with pytest.raises(ConfigError, match="at least 0"):
        roe(temperature=str(file)).temperatures(4)
