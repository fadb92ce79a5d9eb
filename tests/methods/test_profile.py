"""RoE's settings; profiles of studies, and the methods that take them: calibration, RoE,
those whose settings a grid finds.

Broken by: settings that mean something else for a model, a file that is taken though
it is no profile, a value lost on the way to disk, settings of another method, a key that a profile
overrides in silence, a run whose id depends on the path of its profile or not on a scale,
examples that were tuned on and are tested, a scale that changes greedy answers, a model
without routers that is refused.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.methods.method import StudyStart
from moe_lab.methods.profile import Profile, read_profile
from moe_lab.methods.roe import RoE
from moe_lab.methods.tunable_method import GridMethod, Settings
from moe_lab.models.lm_eval_internals import instance_of
from tests.support.opened_methods import answered, context, loaded, opened
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
    with opened(calibration(**keys), model, tokenizer) as lm:
        lm.progress = False
        return answered(lm, kind, requests)


def test_greedy_answers_are_those_of_the_base_model(olmoe, tokenizer):
    requests = [("2 + 2 =", {"max_gen_toks": 6, "do_sample": False, "until": []})]
    texts = [
        answers(olmoe, tokenizer, "generate_until", requests, logit_scale=scale)
        for scale in (1.0, 0.5)
    ]
    assert texts[0] == texts[1]


def test_a_dense_model_is_calibrated_too(tokenizer):
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
    }
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).eval()
    pair = [("2 + 2 =", " 4")]
    base = answers(model, tokenizer, "loglikelihood", pair, logit_scale=1.0)
    calibrated = answers(model, tokenizer, "loglikelihood", pair, logit_scale=2.0)
    assert base[0][0] != pytest.approx(calibrated[0][0], abs=1e-4)


def test_a_profile_gives_its_scale_and_its_documents_are_left_out(tmp_path):
    (tmp_path / "best.yaml").write_text(
        replace(PROFILE, logit_scale=3.0, calibrated_scale=1.25).text()
    )
    method = calibration(logit_scale=str(tmp_path / "best.yaml"))
    assert method.logit_scale == 1.25
    assert method.tuned_on == frozenset(PROFILE.documents)
    assert (
        method.identity(facts())["logit_scale"]
        == 1.25
        != calibration().identity(facts())["logit_scale"]
    )
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
    return RoE(RoE.Config(**keys))


def test_reading_gives_what_was_written(file):
    assert read_profile(file) == PROFILE
    assert file.read_text().index("documents:") > file.read_text().index("answers:"), (
        "long lists are last"
    )


def test_roe_takes_its_temperatures_documents_and_study(file):
    method = roe(temperature=str(file))
    assert method.temperatures(4) == PROFILE.temperature
    assert method.tuned_on == frozenset(PROFILE.documents)
    assert method.first_noisy(4) == 1
    report = method.report(facts(moe_layers=4), {}, {})
    assert "untuned" not in report
    assert report["tuning"]["study"] == PROFILE.study
    assert report["tuning"]["samples"] == {"toy_math": [1, 5]}


def test_a_profile_is_part_of_the_identity_wherever_it_lies(file, tmp_path):
    other_file = tmp_path / "elsewhere.yaml"
    other_file.write_text(file.read_text())
    first = roe(temperature=str(file)).identity(facts(moe_layers=4))
    assert roe(temperature=str(other_file)).identity(facts(moe_layers=4)) == first
    other_file.write_text(replace(PROFILE, temperature=[0.0, 0.2, 0.0, 0.4]).text())
    assert roe(temperature=str(other_file)).identity(facts(moe_layers=4)) != first


@pytest.mark.parametrize(
    "text, message",
    [
        ("- 1\n", "is no profile of a study"),
        ("temperature: [0, 1", "is no profile of a study"),
        ("temperature: [0.1]\n", "is no profile of a study"),
        (PROFILE.text() + "more: 1\n", "more"),
        (replace(PROFILE, documents=[]).text(), "no `documents` to leave out"),
        (PROFILE.text().replace("trials: 50", "trials: many"), "trials"),
        (replace(PROFILE, temperature=[0.1] * 5).text(), "5 entries; give one for each of 4"),
        (replace(PROFILE, temperature=[0.0, -0.1, 0.0, 0.4]).text(), "at least 0"),
    ],
)
def test_other_files_are_refused(tmp_path, text, message):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        roe(temperature=str(tmp_path / "x.yaml")).temperatures(4)


class Powered(GridMethod):
    @dataclass(kw_only=True)
    class Config(GridMethod.Config):
        name: str = "powered"
        power: float = 0.5
        rank: int = 1

    def grid(self, facts: Any) -> list[Settings]:
        return [{"power": 0.0}, {"power": 1.0}]


def powered(**keys: Any) -> Powered:
    return Powered(Powered.Config(**keys))


TUNED = replace(
    PROFILE, study="s", documents=["a", "b"], temperature=[], settings={"power": 1.0, "rank": 2}
)


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
    assert powered().tuning_block == {"untuned": True}
    assert powered().tuned_on == frozenset()


def test_a_key_that_contradicts_the_profile_is_refused(path):
    """Broken by a grid over rank whose rows are all of the profile's rank."""
    assert powered(profile=path, rank=2).config.rank == 2
    with pytest.raises(ConfigError, match=r"method\.rank=3 contradicts method\.profile"):
        powered(profile=path, rank=3)


@pytest.mark.parametrize(
    ("settings", "has"),
    [(None, "temperatures"), ({"beta": 1.0}, "those of beta"), ({"power": 1.0}, "power")],
)
def test_a_profile_of_another_method_is_refused(settings, has, tmp_path):
    (tmp_path / "best.yaml").write_text(replace(TUNED, settings=settings).text())
    with pytest.raises(ConfigError, match=has):
        powered(profile=str(tmp_path / "best.yaml"))


def test_it_is_compared_with_calibration_where_its_study_measured_it(tmp_path, path):
    assert (
        powered().comparisons(greedy=False) == powered(profile=path).comparisons(greedy=False) == {}
    )
    (tmp_path / "best.yaml").write_text(replace(TUNED, calibrated_scale=1.1).text())
    config, overrides = powered(profile=path).comparisons(greedy=False)["calibration"]
    assert config.logit_scale == path
    assert overrides == [
        "method=calibration",
        f"method.logit_scale={path}",
    ]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [0, 0.1, 0.1, 0.1, 0]),
        ({"temperature": 0.5, "skip_layers": 2}, [0, 0, 0.5, 0, 0]),
        ({"temperature": 1, "skip_layers": 0}, [1] * 5),
        ({"temperature": [0.3, 0, 0.1, 0, 0.2]}, [0.3, 0, 0.1, 0, 0.2]),
        ({"temperature": [0, 0.4, 0.1, 0, 0], "skip_layers": 1}, [0, 0.4, 0.1, 0, 0]),
    ],
)
def test_temperature_per_layer(keys, expected):
    assert roe(**keys).temperatures(5) == expected


def test_report():
    def reported(**counters):
        return roe(n=4).report(facts(moe_layers=5), counters, {})["roe"]

    assert reported(changed_decisions=3, noisy_decisions=12) == {
        "n": 4,
        "temperatures": [0, 0.1, 0.1, 0.1, 0],
        "cache": "clean",
        "prefill": "noisy",
        "weights": "clean",
        "changed_fraction": 0.25,
    }
    assert reported()["changed_fraction"] is None
    assert reported(noisy_decisions=12)["changed_fraction"] == 0, (
        "the log of a run leaves out counts of 0"
    )


@pytest.mark.parametrize("reuse", [True, False])
def test_a_study_opens_with_its_own_ensemble(olmoe, tokenizer, reuse):
    """The trials of a study start in its own fork layer.

    With given prefixes nothing may be reused.
    """
    method = roe(n=6, temperature=[0, 0, 0.2, 0])
    first = roe(n=3).ensemble([0.0, 0.0, 0.0, 0.0], 1, seed=4)
    study = StudyStart(first=first, reuse=reuse)
    with method.open(loaded(olmoe, tokenizer), context(study=study)) as lm:
        assert lm.ensemble is first
        assert not lm.progress
        read = [_tokens_read(lm) for _ in range(2)]
    assert (read[1] < read[0]) is reuse


def _tokens_read(lm) -> int:
    before = lm.cost["tokens_in"]
    settings = {"until": [], "max_gen_toks": 2}
    lm.generate_until([instance_of("generate_until", ("one two three four five", settings))])
    return lm.cost["tokens_in"] - before


def test_the_lm_has_the_ensemble_that_was_asked_for(olmoe, tokenizer):
    with opened(roe(n=6, temperature=[0, 0, 0.2, 0]), olmoe, tokenizer, seed=4) as lm:
        assert lm.ensemble.n == 6
        assert lm.ensemble.first_noisy == 2
        assert lm.ensemble.routing.seed == 4
        assert lm.ensemble.routing.temperatures == [0, 0, 0.2, 0]
    with opened(roe(cache="none", prefill="clean"), olmoe, tokenizer, seed=4) as lm:
        assert (lm.ensemble.cache, lm.ensemble.prefill) == ("none", "clean")
    with opened(roe(n=1), olmoe, tokenizer, seed=4) as lm:
        assert lm.ensemble.n == 1
        assert lm.ensemble.routing is None
    with opened(roe(noise="antithetic"), olmoe, tokenizer, seed=4) as lm:
        assert lm.ensemble.routing.antithetic


def test_the_footnotes_say_how_much_noise_there_was():
    def said(*temperatures):
        [line] = RoE.footnotes({"roe": {"n": 4, "temperatures": list(temperatures)}})
        return line

    assert said(0.0, 0.1, 0.0) == "roe: 4 routing samples, temperature 0.1 in 1 of 3 MoE layers."
    assert said(0.05, 0.5) == "roe: 4 routing samples, temperature 0.05 to 0.5 in all 2 MoE layers."
    assert said(0.0, 0.0).startswith("roe: temperature 0 in every MoE layer, so that")


@pytest.mark.parametrize(
    ("family", "refused"), [("olmoe", False), ("gpt_oss", False), ("deepseek_v3", True)]
)
def test_weights_from_noisy_logits_need_a_router_that_chooses_by_logits(family, refused):
    method = roe(n=2, weights="perturbed")
    with (
        pytest.raises(ConfigError, match=r"method\.weights=perturbed") if refused else nullcontext()
    ):
        method.check(facts(family, moe_layers=5))
