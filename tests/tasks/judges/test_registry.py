"""Judges by name. Broken by: a second place that has to know a judge, a metric that a judged task does not have."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import ConfigError
from moe_lab.tasks.judges import registry
from moe_lab.tasks.judges.judge import Judge
from moe_lab.tasks.judges.registry import judge_metrics, judge_names, judges_of
from moe_lab.tasks.judges.toy import ToyJudge
from moe_lab.tasks.loading import load_tasks


class Loud(Judge):
    """Counts exclamation marks."""

    name = "loud"
    metrics = ("loud", "very_loud")

    def _identity(self):
        return {}

    def open(self):
        raise NotImplementedError


def asking(*judges: str) -> Config:
    return Config(task=TaskConfig(name="toy_safety", judges=list(judges)))


def test_a_judge_is_one_module_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("lab_judge")
    module.Loud = Loud
    monkeypatch.setitem(sys.modules, "lab_judge", module)
    with pytest.raises(ConfigError, match="loud is unknown"):
        judge_names(asking("loud"))
    monkeypatch.setitem(registry.JUDGES, "loud", "lab_judge:Loud")
    config = asking("loud", "toy")
    tasks = load_tasks(config)
    assert [type(judge) for judge in judges_of(config, tasks)] == [ToyJudge, Loud]
    found = tasks["tasks"]["toy_safety"].higher_is_better()
    assert found == dict.fromkeys(("toy", "toy_flagged", "loud", "very_loud"), False)


def test_a_judged_task_has_the_metrics_of_all_judges() -> None:
    names = [metric["metric"] for metric in judge_metrics()]
    own = [
        "toy",
        "toy_flagged",
        "reward",
        "llama_guard",
        "llama_guard_probability",
        "openai",
        "openai_flagged",
    ]
    assert names == own


@pytest.mark.parametrize("judges", [["tiger"], [], ["toy", "toy"]])
def test_wrong_names_are_refused(judges: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="judges"):
        load_tasks(asking(*judges))
