"""Breaks when a data set that cannot be had is tried for long, or its failure is not told as what it is."""

from __future__ import annotations

import pytest

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import TaskError
from moe_lab.methods import get_method
from moe_lab.tasks.loading import load_tasks
from tests.support.hub.content import GSM8K


def load(name, **keys):
    return load_tasks(
        Config(method=get_method("base").Config(name="base"), task=TaskConfig(name=name, **keys))
    )


def test_a_data_set_that_is_not_there_is_told_after_one_request(client, hub):
    with pytest.raises(TaskError, match=r"Task hellaswag: The data set Rowan/hellaswag is not on the hub"):
        load("hellaswag")
    assert [a.path for a in hub.log if "hellaswag" in a.path] == ["api/datasets/Rowan/hellaswag"]


def test_a_token_that_is_refused_is_told(client, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_mistypedSecret")
    with pytest.raises(TaskError, match="401") as raised:
        load("gsm8k")
    assert "hf_mistypedSecret" not in str(raised.value)


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("dataset_name: algebra\ntest_split: test", r"BuilderConfig 'algebra' not found.*main"),
        ("dataset_name: main\ntest_split: holdout", "holdout"),
    ],
    ids=["configuration", "split"],
)
def test_a_configuration_or_split_that_it_lacks_is_told(client, tmp_path, monkeypatch, task, says):
    import datasets
    from huggingface_hub import constants

    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", constants.ENDPOINT)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "mine.yaml").write_text(
        f"task: mine\ndataset_path: {GSM8K}\n{task}\noutput_type: generate_until\n"
        "doc_to_text: '{{question}}'\ndoc_to_target: '{{answer}}'\nmetric_list:\n  - metric: exact_match\n"
    )
    with pytest.raises(TaskError, match=says):
        load("mine", include_path=str(tmp_path / "tasks"))
