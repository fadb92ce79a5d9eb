"""Requests are refused before weights load, and runs have the comparisons that can differ.

Broken by: generation settings without effect or with an impossible value, methods and metrics that a model's routers do not
allow, a comparison whose answers are those of the base model by construction.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from moe_lab.config.schema import Config, ModelConfig, TaskConfig
from moe_lab.errors import ConfigError, ModelError
from moe_lab.methods import get_method
from moe_lab.methods.profile import Profile
from moe_lab.models.designs.configuration import MoeDesignConfig
from moe_lab.models.facts import model_facts
from moe_lab.runs.evaluation import expert
from moe_lab.runs.prepare import check_chat_template, check_generation, check_router, check_votes, prepare
from tests.support.designs import COMMON
from tests.support.runs import config, small_data


def check(**gen_kwargs):
    config = SimpleNamespace(gen_kwargs=gen_kwargs, max_length=None)
    task = SimpleNamespace(get_config=lambda key: gen_kwargs)
    check_generation(config, SimpleNamespace(max_length=100), {"tasks": {"t": task}})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"temprature": 0.5}, "Did you mean 'gen_kwargs.temperature'"),
        ({"stop_strings": ["a"]}, "Unknown key 'gen_kwargs.stop_strings'"),
        ({"temperature": -1}, "at least 0"),
        ({"temperature": "hot"}, "expected a number"),
        ({"top_k": -5}, "at least 0"),
        ({"top_k": 2.5}, "expected an integer"),
        ({"top_p": 1.5}, "at most 1"),
        ({"do_sample": "maybe"}, "true or false"),
        ({"num_beams": 4}, "beam search"),
        ({"max_gen_toks": 0}, "max_gen_toks=0 must be a positive integer"),
        ({"max_gen_toks": 100}, "max_gen_toks=100 of t leaves no room"),
    ],
)
def test_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        check(**settings)


def test_what_is_honoured_passes():
    check(temperature=0.7, top_p=0.9, top_k=20, do_sample=True, until=["x"], max_gen_toks=5, num_beams=1)
    check(temperature=0, repetition_penalty=1.1, until="x")


@pytest.mark.parametrize(
    ("method", "sampled", "refused"), [("base", False, True), ("base", True, False), ("roe", False, False)]
)
def test_a_vote_between_equal_answers_is_refused(method, sampled, refused):
    config = Config(task=TaskConfig(self_consistency=3), method=get_method(method).Config())
    task = SimpleNamespace(get_config={"generation_kwargs": {"do_sample": sampled}}.get)
    found = get_method(method)(config.method)
    with pytest.raises(ConfigError, match=f"all answers of method={method}") if refused else nullcontext():
        check_votes(found, config, {"tasks": {"x": task}})
    check_votes(found, Config(method=config.method), {"tasks": {"x": SimpleNamespace()}})


PER_TOKEN = ("roe", "c3po", "c2r", "steer", "icl")
"""Methods that read or change the routing of single tokens."""
OTHERS = ("base", "finetune-freeze", "prefix-tuning", "soft-prompt")


def test_a_chat_template_that_the_tokenizer_lacks_is_refused(monkeypatch):
    tokenizer = SimpleNamespace(chat_template={"default": "", "rag": ""})
    monkeypatch.setattr("moe_lab.runs.prepare.prompt_tokenizer", lambda config: tokenizer)
    check_chat_template(Config(apply_chat_template="rag"))
    with pytest.raises(ConfigError, match="apply_chat_template=tools: the tokenizer has default, rag"):
        check_chat_template(Config(apply_chat_template="tools"))
    tokenizer.chat_template = "{{ messages }}"
    with pytest.raises(ConfigError, match="the tokenizer has one without a name"):
        check_chat_template(Config(apply_chat_template="rag"))


def design_facts(folder, router):
    MoeDesignConfig(**COMMON, router=router).save_pretrained(folder)
    return model_facts(ModelConfig(path=str(folder)), dtype="auto", device="cpu", offline=True)


@pytest.mark.parametrize("router", ["token", "word", "sentence", "word-hash", "expert"])
def test_methods_on_routers_that_do_not_decide_for_single_tokens(router, tmp_path):
    facts = design_facts(tmp_path, router)
    for name in PER_TOKEN + OTHERS:
        method = get_method(name)(get_method(name).Config())
        if name in PER_TOKEN and router != "token":
            told = r"routing of single tokens: its (router|experts)[^!]*method=base"
            with pytest.raises(ModelError, match=told):
                check_router(method, facts)
        else:
            check_router(method, facts)
    config = Config(method=get_method("base").Config(), metrics="expert", device="cpu")
    base = get_method("base")(config.method)
    if router == "token":
        expert.check(base, config, facts, {"tasks": {}})
    else:
        told = "metrics=expert reads and changes the routing of single tokens"
        with pytest.raises(ConfigError, match=told):
            expert.check(base, config, facts, {"tasks": {}})


# Comparisons


PROFILE = Profile(
    model="m", task="t", study="s", tuning="grid", metric="perplexity", n=1, trials=2, trial=1, score=1.0,
    untuned_score=2.0, split="train", samples={"t": [1]}, documents=["a"], temperature=[], calibrated_scale=1.1,
    settings={"beta": 0.5, "rank": 2, "alpha": 0.1, "cache": "clean"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("task", "keys", "compared"),
    [
        ("gsm8k", {}, []),
        ("gsm8k", {"gen_kwargs": {"do_sample": True, "temperature": 0.5}}, ["calibration"]),
        ("arc_easy", {}, ["calibration"]),
    ],
)
def test_calibration_is_compared_where_it_has_an_effect(task, keys, compared, tiny_olmoe_dir, tmp_path):
    """A logit scale changes no greedy answer."""
    (tmp_path / "best.yaml").write_text(PROFILE.text())
    given = {"method_keys": {"profile": str(tmp_path / "best.yaml")}, "num_fewshot": 0, "limit": 2}
    data = small_data(tmp_path / "data")
    run = prepare(config(tiny_olmoe_dir, data, tmp_path / "out", task, "scmoe", **given, **keys))
    assert list(run.comparisons) == compared and run.baseline is not None
