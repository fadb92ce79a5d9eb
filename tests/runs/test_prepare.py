"""Requests are refused before weights load, runs have the comparisons that can differ,
and an id of what changes numbers.

Broken by: a setting that changes numbers and leaves the run id, or one that does not and enters it;
generation settings without effect or with an impossible value; methods and metrics that a model's
routers do not allow; a comparison whose answers are those of the base model by construction.
"""

from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moe_lab.config.schema import (
    Config,
    DistributedConfig,
    LauncherConfig,
    LoggerConfig,
    ModelConfig,
    TaskConfig,
    TuningConfig,
)
from moe_lab.errors import ConfigError, ModelError
from moe_lab.methods import get_method
from moe_lab.methods.profile import Profile
from moe_lab.methods.roe import RoE
from moe_lab.models.designs.configuration import MoeDesignConfig
from moe_lab.models.facts import model_facts
from moe_lab.results.identity import HASHED, RESOLVED, RUNTIME
from moe_lab.runs import identity
from moe_lab.runs.checks import check_chat_template, check_generation, check_router, check_votes
from moe_lab.runs.evaluation import expert
from moe_lab.runs.identity import run_name
from moe_lab.runs.prepare import prepare
from tests.support.designs import COMMON
from tests.support.runs import config, small_data, sums, write_jsonl
from tests.support.tokenizers import tokenizer_of


def test_every_field_is_classified_once_and_runtime_fields_do_not_change_the_id(roe, tmp_path):
    """A new key of `Config` belongs in one of the three sets of moe_lab/results/identity.py."""
    names = [field.name for field in fields(Config)]
    assert sorted([*HASHED, *RESOLVED, *RUNTIME]) == sorted(names)
    first = run_id(roe)
    assert {*RUNTIME_CHANGES, "output_dir", "metrics", "a", "b"} == RUNTIME
    for name, value in RUNTIME_CHANGES.items():
        assert run_id(replace(roe, **{name: value})) == first, name
    assert (
        run_id(replace(roe, mode="compare", a="x", b="y", output_dir=str(tmp_path / "other")))
        == first
    )
    labelled = replace(roe.model, name="label", experts_implementation="eager")
    assert run_id(replace(roe, model=labelled)) == first


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def roe(tiny_olmoe_dir: Path, data: Path, tmp_path: Path) -> Config:
    return config(tiny_olmoe_dir, data, tmp_path, "addsub", "roe", method_keys={"n": 2}, limit=5)


def run_id(run_config: Config) -> str:
    return prepare(run_config).run_id


RUNTIME_CHANGES: dict[str, Any] = {
    "mode": "plan",
    "distributed": DistributedConfig(timeout=3),
    "seeds": 3,
    "batch_size": 4,
    "max_batch_size": 2,
    "device": "auto",
    "offline": False,
    "baseline": False,
    "rerun": True,
    "wait": False,
    "experiment": "x",
    "scale": "paper",
    "overrides": ["a=b"],
    "config_dirs": ["own"],
    "logger": LoggerConfig(name="wandb", project="other", tags=["x"]),
    "launcher": LauncherConfig(name="local", workers=2),
    "tuning": TuningConfig(name="uniform"),
}


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"fewshot_seed": 1},
        {"sample_seed": 1},
        {"limit": 6},
        {"limit": None, "samples": [0]},
        {"num_fewshot": 2},
        {"max_length": 400},
        {"gen_kwargs": {"max_gen_toks": 5}},
        {"system_instruction": "Be brief."},
        {"predict_only": True},
        {"dtype": "bfloat16"},
        {"fewshot_as_multiturn": False},
    ],
    ids=str,
)
def test_fields_that_change_numbers_change_the_id(roe, change):
    assert run_id(replace(roe, **change)) != run_id(roe)


@pytest.mark.parametrize(
    ("first_keys", "second_keys"),
    [
        ({}, {"skip_layers": 1}),
        ({"temperature": 1}, {"temperature": [0, 1.0, 1.0, 0], "skip_layers": 1}),
        ({"temperature": 0}, {"temperature": 0.0, "skip_layers": 1}),
    ],
)
def test_two_spellings_of_one_method_are_one_run(roe, first_keys, second_keys):
    assert run_id(with_method(roe, first_keys)) == run_id(with_method(roe, second_keys))


ROE_CHANGES: dict[str, dict[str, Any]] = {
    "n": {"n": 3},
    "temperature": {"temperature": 0.2},
    "skip_layers": {"skip_layers": 0},
    "cache": {"cache": "standard"},
    "prefill": {"cache": "standard", "prefill": "clean"},
    "weights": {"weights": "perturbed"},
    "aggregate": {"aggregate": "logits"},
    "include_clean": {"include_clean": False},
    "noise": {"noise": "antithetic"},
    "logit_scale": {"logit_scale": 1.5},
}


def test_every_setting_and_the_numerics_of_the_method_count(roe, monkeypatch):
    """A new key of `RoE.Config` belongs here."""
    assert {*ROE_CHANGES, "name"} == {field.name for field in fields(roe.method)}
    ids = {name: run_id(with_method(roe, change)) for name, change in ROE_CHANGES.items()}
    known_ids = {run_id(roe), *ids.values()}
    assert len(known_ids) == len(ids) + 1
    monkeypatch.setattr(RoE, "numerics", 99)
    assert run_id(roe) not in known_ids


def with_method(run_config: Config, keys: dict[str, Any]) -> Config:
    return replace(run_config, method=replace(run_config.method, **keys))


def test_the_seed_is_nothing_to_a_method_without_randomness(tiny_olmoe_dir, data, tmp_path):
    base = config(tiny_olmoe_dir, data, tmp_path, "addsub")
    assert run_id(replace(base, seed=1)) == run_id(base)


def test_documents_count_and_their_place_does_not(roe, tmp_path):
    rows = sums(12)
    write_jsonl(tmp_path / "copy" / "addsub" / "test.jsonl", rows)
    assert run_id(replace(roe, data_dir=str(tmp_path / "copy"))) == run_id(roe)
    write_jsonl(
        tmp_path / "changed" / "addsub" / "test.jsonl", [row | {"answer": "0"} for row in rows]
    )
    assert run_id(replace(roe, data_dir=str(tmp_path / "changed"))) != run_id(roe)
    chosen = prepare(roe).samples["addsub"]
    assert run_id(replace(roe, limit=None, samples=chosen)) == run_id(roe)


@pytest.mark.parametrize(
    ("tasks", "has_another_id"),
    [
        (["toy_choice"], False),
        (["toy_math"], True),
        (["toy_choice", "toy_math"], True),
    ],
    ids=str,
)
def test_a_run_with_generated_answers_counts_a_tokenizer_that_strips_blanks(
    roe, monkeypatch, tasks, has_another_id
):
    """Earlier versions dropped a blank at the beginning of such an answer, whatever other tasks
    the run has."""

    def id_with(family: str) -> str:
        monkeypatch.setattr(identity, "tokenizer_of", lambda config: tokenizer_of(family))
        return run_id(replace(roe, task=TaskConfig(name=tasks)))

    plain_id = id_with("byte-level BPE")
    stripped_id = id_with("SentencePiece BPE, blank in front")
    assert (stripped_id != plain_id) == has_another_id


def test_folder_names_are_safe():
    method = type("M", (), {"name": "roe"})()
    odd = Config(
        model=ModelConfig(name="a/b c:d"), method=method, task=TaskConfig(name=["x y", "z"] * 30)
    )
    name = run_name(odd, "0123456789abcdef")
    assert name.startswith("a-b-c-d-roe-x-y-z-x-y")
    assert name.endswith("-01234567")
    assert len(name) < 100


# Refused requests


def check(**gen_kwargs):
    config = SimpleNamespace(gen_kwargs=gen_kwargs, max_length=None)
    task = SimpleNamespace(get_config=lambda key: gen_kwargs)
    check_generation(config, SimpleNamespace(max_length=100), {"tasks": {"t": task}})


@pytest.mark.parametrize(
    "setting",
    [{"num_beams": 4}, {"max_time": 3.0}, {"num_return_sequences": 2}, {"use_cache": False}],
)
def test_a_generation_setting_of_a_task_that_is_not_supported_is_named(setting):
    [name] = setting
    config = SimpleNamespace(gen_kwargs=None, max_length=None)
    task = SimpleNamespace(get_config=lambda key: {"until": [], "max_gen_toks": 4} | setting)
    with pytest.raises(ConfigError, match=f"{name}=.*Leave it out"):
        check_generation(config, SimpleNamespace(max_length=64), {"tasks": {"own": task}})


@pytest.mark.parametrize(
    ("settings", "message"),
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
def test_a_wrong_generation_setting_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        check(**settings)


def test_what_is_honoured_passes():
    check(
        temperature=0.7,
        top_p=0.9,
        top_k=20,
        do_sample=True,
        until=["x"],
        max_gen_toks=5,
        num_beams=1,
    )
    check(temperature=0, repetition_penalty=1.1, until="x")


@pytest.mark.parametrize(
    ("method", "sampled", "refused"),
    [("base", False, True), ("base", True, False), ("roe", False, False)],
)
def test_a_vote_between_equal_answers_is_refused(method, sampled, refused):
    config = Config(task=TaskConfig(self_consistency=3), method=get_method(method).Config())
    task = SimpleNamespace(get_config={"generation_kwargs": {"do_sample": sampled}}.get)
    method_found = get_method(method)(config.method)
    with (
        pytest.raises(ConfigError, match=f"all answers of method={method}")
        if refused
        else nullcontext()
    ):
        check_votes(method_found, config, {"tasks": {"x": task}})
    check_votes(method_found, Config(method=config.method), {"tasks": {"x": SimpleNamespace()}})


PER_TOKEN = ("roe", "c3po", "c2r", "steer", "icl")
"""Methods that read or change the routing of single tokens."""
OTHERS = ("base", "finetune-freeze", "prefix-tuning", "soft-prompt")


def test_a_chat_template_that_the_tokenizer_lacks_is_refused(monkeypatch):
    tokenizer = SimpleNamespace(chat_template={"default": "", "rag": ""})
    monkeypatch.setattr("moe_lab.runs.checks.prompt_tokenizer", lambda config: tokenizer)
    check_chat_template(Config(apply_chat_template="rag"))
    with pytest.raises(
        ConfigError, match="apply_chat_template=tools: the tokenizer has default, rag"
    ):
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
            message = r"routing of single tokens: its (router|experts)[^!]*method=base"
            with pytest.raises(ModelError, match=message):
                check_router(method, facts)
        else:
            check_router(method, facts)
    config = Config(method=get_method("base").Config(), metrics="expert", device="cpu")
    base = get_method("base")(config.method)
    if router == "token":
        expert.check(base, config, facts, {"tasks": {}})
    else:
        message = "metrics=expert reads and changes the routing of single tokens"
        with pytest.raises(ConfigError, match=message):
            expert.check(base, config, facts, {"tasks": {}})


# Comparisons


PROFILE = Profile(
    model="m",
    task="t",
    study="s",
    tuning="grid",
    metric="perplexity",
    n=1,
    trials=2,
    trial=1,
    score=1.0,
    untuned_score=2.0,
    split="train",
    samples={"t": [1]},
    documents=["a"],
    temperature=[],
    calibrated_scale=1.1,
    settings={"beta": 0.5, "rank": 2, "alpha": 0.1, "cache": "clean"},
)


@pytest.mark.parametrize(
    ("task", "keys", "compared"),
    [
        ("gsm8k", {}, []),
        ("gsm8k", {"gen_kwargs": {"do_sample": True, "temperature": 0.5}}, ["calibration"]),
        ("arc_easy", {}, ["calibration"]),
    ],
)
def test_calibration_is_compared_where_it_has_an_effect(
    task, keys, compared, tiny_olmoe_dir, tmp_path
):
    """A logit scale changes no greedy answer."""
    (tmp_path / "best.yaml").write_text(PROFILE.text())
    changes = {
        "method_keys": {"profile": str(tmp_path / "best.yaml")},
        "num_fewshot": 0,
        "limit": 2,
    }
    data = small_data(tmp_path / "data")
    run = prepare(config(tiny_olmoe_dir, data, tmp_path / "out", task, "scmoe", **changes, **keys))
    assert list(run.comparisons) == compared
    assert run.baseline is not None
