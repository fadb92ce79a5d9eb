"""Studies before any weights. Broken by: an identity that leaves something out, a request that cannot be which is found
only after weights are loaded.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moe_lab.config.schema import TaskConfig, TuningConfig
from moe_lab.errors import ConfigError, TaskError
from moe_lab.methods import get_method
from moe_lab.models import load
from moe_lab.runs.jobs import job_of
from moe_lab.runs.tuning.study import prepare_study
from tests.support.runs import tuned


@pytest.fixture
def gsm8k(tiny_olmoe_dir, data, tmp_path):
    return tuned(tiny_olmoe_dir, data, tmp_path, "gsm8k", num_fewshot=1)


def test_a_study_is_named_and_makes_nothing(gsm8k, tmp_path):
    study = prepare_study(gsm8k)
    assert study.folder.name == f"small-gsm8k-perplexity-{study.study_id[:8]}"
    assert study.split == "train" and len(study.samples["gsm8k"]) == 4
    assert len(study.documents) == 8, "a prompt and a row of each"
    assert study.profile() is None
    assert list(tmp_path.iterdir()) == []
    tuned_config = study.tuned_config()
    assert tuned_config.method.temperature == str(study.folder / "best.yaml")
    assert tuned_config.num_seeds == 5 and tuned_config.tuning.name == "none"


def test_more_trials_are_the_same_study_and_anything_else_is_another(gsm8k):
    def study_id(**changes):
        return prepare_study(replace(gsm8k, **changes)).study_id

    tuning = gsm8k.tuning
    first = study_id()
    assert study_id(tuning=replace(tuning, n_trials=99)) == first
    assert study_id(limit=3) == first and study_id(seeds=3) == first and study_id(batch_size=2) == first
    method = get_method("roe").Config
    others = [
        {"seed": 1},
        {"sample_seed": 3},
        {"num_fewshot": 0},
        {"tuning": replace(tuning, max_temperature=0.3)},
        {"tuning": replace(tuning, metric="accuracy")},
        {"tuning": replace(tuning, num_samples=5)},
        {"tuning": TuningConfig(name="uniform", num_samples=4)},
        {"method": method(n=5), "overrides": ["method.n=5"]},
        {"method": method(weights="perturbed")},
        {"method": method(skip_layers=0)},
    ]
    ids = [study_id(**change) for change in others]
    assert len({first, *ids}) == 1 + len(others)


def test_tuning_seeds_are_as_many_studies_each_with_a_seed_of_its_own(gsm8k):
    job = job_of(replace(gsm8k, seed=3, tuning=replace(gsm8k.tuning, seeds=3)))
    assert [study.config.seed for study in job.studies] == [3, 4, 5]
    assert len({study.study_id for study in job.studies}) == 3 and job.runs == []
    assert [study.tuned_config().num_seeds for study in job.studies] == [1, 1, 1]
    [one] = job_of(gsm8k).studies
    assert one.tuned_config().num_seeds == 5
    assert (job.coming, job_of(gsm8k).coming) == (3, 5)
    with pytest.raises(ConfigError, match=r"tuning.seeds=3 evaluates each .* seeds=5 .* Leave seeds out"):
        replace(gsm8k, tuning=replace(gsm8k.tuning, seeds=3), seeds=5)


def test_a_method_without_randomness_has_one_run_after_its_study(gsm8k):
    grid = TuningConfig(name="grid", num_samples=4)
    config = replace(gsm8k, method=get_method("top-k").Config(), tuning=grid, seeds=5)
    assert job_of(config).coming == 1


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"method": get_method("base").Config(name="base")}, ConfigError, "nothing to search"),
        ({"predict_only": True}, ConfigError, "computes no metric"),
        ({"task": TaskConfig(name=["gsm8k", "addsub"])}, ConfigError, "tunes on one task"),
        ({"task": TaskConfig(name="gsm8k", metric="acc,none")}, TaskError, "is not reported"),
        ({"gen_kwargs": {"num_beams": 3}}, ConfigError, "beam search"),
        (
            {
                "task": TaskConfig(name="addsub"),
                "num_fewshot": 0,
                "tuning": TuningConfig(name="tpe", num_samples=12, metric="accuracy"),
            },
            TaskError,
            "none is left",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_weights_load(gsm8k, change, error, message, monkeypatch):
    monkeypatch.setattr(load, "load_model", None)
    with pytest.raises(error, match=message):
        prepare_study(replace(gsm8k, **change))


def test_a_rolling_task_has_no_accuracy(tiny_olmoe_dir, data, tmp_path):
    config = tuned(tiny_olmoe_dir, data, tmp_path, "toy_text", tuning={"metric": "accuracy"})
    with pytest.raises(ConfigError, match="has no accuracy"):
        prepare_study(config)
