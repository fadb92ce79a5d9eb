"""Breaks if a setting that changes numbers leaves the run id, or one that does not enters it."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from moe_lab.config.schema import Config, LauncherConfig, LoggerConfig, ModelConfig, TaskConfig, TuningConfig
from moe_lab.results.identity import HASHED, RESOLVED, RUNTIME
from moe_lab.runs.prepare import prepare, run_name
from tests.support.runs import config, small_data, sums, write_jsonl


def test_every_field_is_classified_once():
    """A new key of `Config` belongs in one of the three sets of moe_lab/results/identity.py."""
    names = [field.name for field in fields(Config)]
    assert sorted([*HASHED, *RESOLVED, *RUNTIME]) == sorted(names)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def roe(tiny_olmoe_dir: Path, data: Path, tmp_path: Path) -> Config:
    return config(tiny_olmoe_dir, data, tmp_path, "addsub", "roe", method_keys={"n": 2}, limit=5)


def run_id(one: Config) -> str:
    return prepare(one).run_id


RUNTIME_CHANGES: dict[str, Any] = {
    "mode": "plan",
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


def test_runtime_fields_do_not_change_the_id(roe, tmp_path):
    first = run_id(roe)
    assert {*RUNTIME_CHANGES, "output_dir", "metrics", "a", "b"} == RUNTIME
    for name, value in RUNTIME_CHANGES.items():
        assert run_id(replace(roe, **{name: value})) == first, name
    assert run_id(replace(roe, mode="compare", a="x", b="y", output_dir=str(tmp_path / "other"))) == first
    labelled = replace(roe.model, name="label", experts_implementation="eager")
    assert run_id(replace(roe, model=labelled)) == first


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


def test_the_method_counts(roe, monkeypatch):
    first = run_id(roe)
    assert run_id(replace(roe, method=replace(roe.method, temperature=0.2))) != first
    from moe_lab.methods.roe import RoE

    monkeypatch.setattr(RoE, "numerics", 99)
    assert run_id(roe) != first


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"skip_layers": 1}),
        ({"temperature": 1}, {"temperature": [0, 1.0, 1.0, 0], "skip_layers": 1}),
        ({"temperature": 0}, {"temperature": 0.0, "skip_layers": 1}),
    ],
)
def test_two_spellings_of_one_method_are_one_run(roe, one, other):
    assert run_id(with_method(roe, one)) == run_id(with_method(roe, other))


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


def test_every_setting_of_roe_counts(roe):
    """A new key of `RoE.Config` belongs here."""
    assert {*ROE_CHANGES, "name"} == {field.name for field in fields(roe.method)}
    ids = {name: run_id(with_method(roe, change)) for name, change in ROE_CHANGES.items()}
    assert len({run_id(roe), *ids.values()}) == len(ids) + 1


def with_method(one: Config, keys: dict[str, Any]) -> Config:
    return replace(one, method=replace(one.method, **keys))


def test_the_seed_is_nothing_to_a_method_without_randomness(tiny_olmoe_dir, data, tmp_path):
    base = config(tiny_olmoe_dir, data, tmp_path, "addsub")
    assert run_id(replace(base, seed=1)) == run_id(base)


def test_documents_count_and_their_place_does_not(roe, tmp_path):
    rows = sums(12)
    write_jsonl(tmp_path / "copy" / "addsub" / "test.jsonl", rows)
    assert run_id(replace(roe, data_dir=str(tmp_path / "copy"))) == run_id(roe)
    write_jsonl(tmp_path / "changed" / "addsub" / "test.jsonl", [row | {"answer": "0"} for row in rows])
    assert run_id(replace(roe, data_dir=str(tmp_path / "changed"))) != run_id(roe)
    chosen = prepare(roe).samples["addsub"]
    assert run_id(replace(roe, limit=None, samples=chosen)) == run_id(roe)


def test_folder_names_are_safe():
    method = type("M", (), {"name": "roe"})()
    odd = Config(model=ModelConfig(name="a/b c:d"), method=method, task=TaskConfig(name=["x y", "z"] * 30))
    name = run_name(odd, "0123456789abcdef")
    assert name.startswith("a-b-c-d-roe-x-y-z-x-y") and name.endswith("-01234567") and len(name) < 100
