"""Judges whose model lies on the hub. Broken by: a judge that prefetching leaves out, a commit that is not its identity."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from moe_lab.cli.prefetch import prefetch
from moe_lab.config.schema import Config, TaskConfig
from moe_lab.methods import get_method
from moe_lab.tasks.judges import Exchange
from moe_lab.tasks.judges.local import RewardModel
from tests.support.hub.commands import new_command
from tests.support.hub.repositories import Repository
from tests.support.judges.models import reward_directly, reward_folder

REWARD = "someone/reward"


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_judge_is_fetched_and_then_judges_offline(client, hub, tmp_path, capsys):
    folder = reward_folder(tmp_path / "one")
    repository = hub.add(Repository(REWARD))
    first = repository.commit(files_of(folder))
    task = TaskConfig(name="toy_safety", judges=["toy", "reward"], reward_model=REWARD)
    config = Config(method=get_method("base").Config(name="base"), task=task, device="cpu")
    assert prefetch([config]) == 0
    out = capsys.readouterr().out
    assert "judge reward: " in out and "judge toy" not in out
    new_command()
    judge = RewardModel(replace(config, offline=True))
    judge.check()
    found = {}
    with judge.open() as judge_all:
        judge_all([Exchange("Who?", "Nobody.")], found.__setitem__)
    assert abs(found[0]["scores"]["reward"] - reward_directly(folder, "Who?", "Nobody.")) < 1e-5
    assert judge.identity["model"] == {"hub": REWARD, "revision": first}

    second = repository.commit(files_of(reward_folder(tmp_path / "two", seed=1)))
    new_command()
    assert RewardModel(config).identity["model"]["revision"] == second
    pinned = replace(config, task=replace(task, reward_model=f"{REWARD}@{first}"))
    assert RewardModel(pinned).identity == judge.identity
