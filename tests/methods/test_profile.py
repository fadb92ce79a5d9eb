"""Profiles of studies, and the methods that take them: calibration, RoE, and those whose settings a grid finds.

Broken by: a file that is taken though it is no profile, a value lost on the way to disk, settings of another method, a
key that a profile overrides in silence, a run whose id depends on the path of its profile or not on a scale, examples
that were tuned on and are tested, a scale that changes greedy answers, a model without routers that is refused.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from moe_lab.engine.hf import Request
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.methods.policy_method import PolicyMethod, Settings
from moe_lab.methods.profile import Profile, read_profile
from tests.support.opened_methods import opened
from tests.support.runs import facts

PROFILE = Profile(
    model="tiny",
    task="toy_math",
    study="tiny-toy_math-perplexity-0123",
    tuning="tpe",
    metric="perplexity",
    n=8,
    trials=50,
    trial=31,
    score=1.25,
    untuned_score=1.5,
    split="validation",
    samples={"toy_math": [1, 5]},
    documents=["00ff00ff00ff00ff", "1234567890123456"],
    temperature=[0.0, 0.1234567890123, 0.0, 0.4],
)


def calibration(**keys):
    cls = get_method("calibration")
    return cls(cls.Config(**keys))


def answers(model, tokenizer, kind, requests, **keys):
    found = {}
    with opened(calibration(**keys), model, tokenizer) as lm:
        lm.progress = False
        lm.answer(kind, requests, found.__setitem__)
    return [found[index] for index in range(len(requests))]


def test_greedy_answers_are_those_of_the_base_model(olmoe, tokenizer):
    requests = [Request(("2 + 2 =", {"max_gen_toks": 6, "do_sample": False, "until": []}))]
    texts = [answers(olmoe, tokenizer, "generate_until", requests, logit_scale=scale) for scale in (1.0, 0.5)]
    assert texts[0] == texts[1]


def test_a_dense_model_is_calibrated_too(tokenizer):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).eval()
    pair = [Request(("2 + 2 =", " 4"))]
    one, other = (answers(model, tokenizer, "loglikelihood", pair, logit_scale=scale) for scale in (1.0, 2.0))
    assert one[0][0] != pytest.approx(other[0][0], abs=1e-4)


def test_a_profile_gives_its_scale_and_its_documents_are_left_out(tmp_path):
    (tmp_path / "best.yaml").write_text(replace(PROFILE, logit_scale=3.0, calibrated_scale=1.25).text())
    method = calibration(logit_scale=str(tmp_path / "best.yaml"))
    assert method.logit_scale == 1.25 and method.tuned_on == frozenset(PROFILE.documents)
    assert method.identity(facts())["logit_scale"] == 1.25 != calibration().identity(facts())["logit_scale"]
    assert method.temperatures(3) == [0.0, 0.0, 0.0]
    (tmp_path / "other.yaml").write_text(PROFILE.text())
    with pytest.raises(ConfigError, match="has none of the base model"):
        calibration(logit_scale=str(tmp_path / "other.yaml"))


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
    assert file.read_text().index("documents:") > file.read_text().index("answers:"), "long lists are last"


def test_roe_takes_its_temperatures_documents_and_study(file):
    method = roe(temperature=str(file))
    assert method.temperatures(4) == PROFILE.temperature
    assert method.tuned_on == frozenset(PROFILE.documents)
    assert method.first_noisy(4) == 1
    report = method.report(facts(moe_layers=4), {}, {})
    assert "untuned" not in report and report["tuning"]["study"] == PROFILE.study
    assert report["tuning"]["samples"] == {"toy_math": [1, 5]}


def test_a_profile_is_part_of_the_identity_wherever_it_lies(file, tmp_path):
    other = tmp_path / "elsewhere.yaml"
    other.write_text(file.read_text())
    first = roe(temperature=str(file)).identity(facts(moe_layers=4))
    assert roe(temperature=str(other)).identity(facts(moe_layers=4)) == first
    other.write_text(replace(PROFILE, temperature=[0.0, 0.2, 0.0, 0.4]).text())
    assert roe(temperature=str(other)).identity(facts(moe_layers=4)) != first


@pytest.mark.parametrize(
    "text, message",
    [
        ("- 1\n", "is no profile of a study"),
        ("temperature: [0, 1", "is no profile of a study"),
        ("temperature: [0.1]\n", "is no profile of a study"),
        (PROFILE.text() + "more: 1\n", "more"),
        (replace(PROFILE, documents=[]).text(), "no `documents` to leave out"),
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
    with pytest.raises(ConfigError, match="4 entries; give one for each of 5"):
        roe(temperature=str(file)).temperatures(5)
    file.write_text(replace(PROFILE, temperature=[0.0, -0.1, 0.0, 0.4]).text())
    with pytest.raises(ConfigError, match="at least 0"):
        roe(temperature=str(file)).temperatures(4)


class Powered(PolicyMethod):
    @dataclass(kw_only=True)
    class Config(PolicyMethod.Config):
        name: str = "powered"
        power: float = 0.5
        rank: int = 1

    def grid(self, facts: Any) -> list[Settings]:
        return [{"power": 0.0}, {"power": 1.0}]


def powered(**keys: Any) -> Powered:
    return Powered(Powered.Config(**keys))


TUNED = replace(PROFILE, study="s", documents=["a", "b"], temperature=[], settings={"power": 1.0, "rank": 2})


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "best.yaml").write_text(TUNED.text())
    return str(tmp_path / "best.yaml")


def test_a_profile_gives_all_keys_and_its_examples_are_left_out(path):
    method = powered(profile=path)
    assert (method.config.power, method.config.rank) == (1.0, 2)
    assert method.tuned_on == {"a", "b"}
    assert method.tuning_block["tuning"]["settings"] == TUNED.settings
    assert method.identity(facts()) == {"name": "powered", "power": 1.0, "rank": 2, "study": "s"}


def test_a_study_stores_all_keys():
    method = powered(rank=4)
    assert method.settings({"power": 0.25}) == {"rank": 4, "power": 0.25}
    assert method.at({"power": 0.25}).power == 0.25
    assert method.with_profile("best.yaml") == replace(method.config, profile="best.yaml")
    assert powered().tuning_block == {"untuned": True} and powered().tuned_on == frozenset()


def test_a_key_that_contradicts_the_profile_is_refused(path):
    """Broken by a grid over rank whose rows are all of the profile's rank."""
    assert powered(profile=path, rank=2).config.rank == 2
    with pytest.raises(ConfigError, match=r"method\.rank=3 contradicts method\.profile"):
        powered(profile=path, rank=3)


@pytest.mark.parametrize(
    ("settings", "has"), [(None, "temperatures"), ({"beta": 1.0}, "those of beta"), ({"power": 1.0}, "power")]
)
def test_a_profile_of_another_method_is_refused(settings, has, tmp_path):
    (tmp_path / "best.yaml").write_text(replace(TUNED, settings=settings).text())
    with pytest.raises(ConfigError, match=has):
        powered(profile=str(tmp_path / "best.yaml"))
    told = r"method\.profile=nowhere\.yaml is no profile of a study: No such file"
    with pytest.raises(ConfigError, match=told):
        powered(profile="nowhere.yaml")


def test_it_is_compared_with_calibration_where_its_study_measured_it(tmp_path, path):
    assert powered().comparisons(greedy=False) == powered(profile=path).comparisons(greedy=False) == {}
    (tmp_path / "best.yaml").write_text(replace(TUNED, calibrated_scale=1.1).text())
    config, overrides = powered(profile=path).comparisons(greedy=False)["calibration"]
    assert config.logit_scale == path and overrides == ["method=calibration", f"method.logit_scale={path}"]
