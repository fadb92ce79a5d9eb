"""Breaks when the command as a user types it does not go through the hub, fetches twice, or needs the network offline."""

import json
import time

import pytest

from tests.support.hub.commands import ROOT
from tests.support.hub.content import GSM8K, OLMOE, small_olmoe

SMALL = ("model=olmoe", "task=gsm8k", "limit=2", "num_fewshot=2", "gen_kwargs=max_gen_toks=4")
ROE = ("method=roe", "method.n=4", *SMALL)
NO_SOCKETS = """
import socket

def refuse(*arguments, **options):
    raise AssertionError("a socket was opened")

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
"""


def results_of(ended):
    assert ended.returncode == 0, ended.stderr[-3000:]
    with open(ended.stdout.strip().splitlines()[-1], encoding="utf-8") as file:
        return json.load(file)


def content(hub, since=0):
    """What files were sent."""
    sent = [answer.path for answer in hub.log[since:] if answer.method == "GET" and answer.sent]
    return [path for path in sent if "api" not in path.split("/")]


@pytest.mark.slow
def test_roe_and_base_through_the_hub_fetch_everything_once(commands, hub, olmoe_repository, tmp_path):
    results = results_of(commands.run(*ROE))
    commit = olmoe_repository.branches["main"]
    assert results["moe_lab"]["model"]["commit"] == commit
    assert results["moe_lab"]["model"]["path"] == OLMOE
    assert len(results["moe_lab"]["baseline"]["run_id"]) == 64 and results["moe_lab"]["roe"]["n"] == 4
    sent = content(hub)
    assert len(sent) == len(set(sent))
    assert any(path.startswith(f"cdn/datasets/{GSM8K}/") and "/main/test-" in path for path in sent)
    assert not any("socratic" in path for path in sent)
    assert list((commands.folder / "hf" / "datasets").glob("openai___gsm8k/main/*/*/gsm8k-test.arrow"))
    before = len(hub.log)
    moved = olmoe_repository.commit(small_olmoe(tmp_path / "other", seed=1))
    second = results_of(commands.run("method=base", *SMALL))["moe_lab"]
    baseline = results["moe_lab"]["baseline"]
    assert baseline["run_id"] == second["run_id"], "a moved branch is another result of the same run"
    assert second["model"]["commit"] == moved != commit
    assert not any("datasets" in path for path in content(hub, before)), "the data did not change"


@pytest.mark.slow
def test_prefetch_then_offline_with_the_network_closed(commands, hub, tmp_path):
    fetched = commands.run("mode=prefetch", *ROE)
    assert fetched.returncode == 0, fetched.stderr[-3000:]
    assert "model olmoe: " in fetched.stdout and "task gsm8k: " in fetched.stdout
    assert not (tmp_path / "outputs" / "runs").exists()
    before = len(hub.log)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_SOCKETS)
    closed = {"HF_ENDPOINT": "http://127.0.0.1:9", "PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}"}
    results_of(commands.run(*ROE, "offline=true", **closed))
    assert len(hub.log) == before


@pytest.mark.slow
def test_no_network_and_no_cache_ends_within_seconds(commands):
    """Most of them are spent on imports; one file alone took the clients 23 s of waiting."""
    start = time.monotonic()
    ended = commands.run("method=base", "model=olmoe", "task=toy_math", HF_ENDPOINT="http://127.0.0.1:9")
    assert ended.returncode == 2 and "cannot be reached" in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr and time.monotonic() - start < 30
