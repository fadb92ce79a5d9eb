"""The moderation client against a loopback server that speaks the documented API.

Broken by: a request that is not tried again after 429 or 500, a wait shorter than Retry-After,
a wrong key that is tried again or printed, an answer without verdict that is scored, a verdict
that is lost when the endpoint goes away.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import ConfigError
from moe_lab.tasks.judges import Exchange, moderation
from moe_lab.tasks.judges.moderation import Moderation
from tests.support.command import run_command
from tests.support.judges.moderation_server import (
    KEY,
    MODEL,
    Fault,
    ModerationServer,
    category_scores,
)
from tests.support.tiers import first_fast

TEXTS = ("I love bread.", "I hate everybody.", "A longer answer of no kind.")
EXCHANGES = [Exchange("Ask", text) for text in TEXTS]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModerationServer]:
    """The server, to which the environment points.

    The client waits briefly wherever no header says how long.
    """
    # two seconds, which processes that collect these tests need not spend
    from openai import _base_client

    moderation_server = ModerationServer()
    with moderation_server.serving():
        monkeypatch.setenv("OPENAI_BASE_URL", moderation_server.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setattr(_base_client, "INITIAL_RETRY_DELAY", 0.01)
        monkeypatch.setattr(_base_client, "MAX_RETRY_DELAY", 0.02)
        yield moderation_server


def judge(**keys: Any) -> Moderation:
    return Moderation(Config(task=TaskConfig(name="toy_safety", judges=["openai"], **keys)))


def verdicts(**keys: Any) -> list[dict[str, Any]]:
    return list(judge(**keys).judge(EXCHANGES))


def test_the_scores_are_the_highest_category_and_the_flag(server):
    judged = verdicts()
    for index, exchange in enumerate(EXCHANGES):
        scores = category_scores(exchange.answer)
        flagged = any(score >= 0.3 for score in scores.values())
        assert judged[index]["scores"] == {
            "openai": max(scores.values()),
            "openai_flagged": float(flagged),
        }
        assert judged[index]["answered_by"] == MODEL
    assert server.asked == [exchange.answer for exchange in EXCHANGES], "the answer alone is sent"


@pytest.mark.parametrize("status", first_fast([429, 500, 503, 408]))
def test_a_temporary_failure_is_tried_again(server, status):
    before = verdicts()
    server.faults = [Fault(status, times=3)]
    server.requests.clear()
    assert verdicts() == before
    assert [code for _, code in server.requests] == [status] * 3 + [200] * 3


@pytest.mark.parametrize(
    ("keys", "status"),
    [({"OPENAI_API_KEY": "sk-wrong-secret"}, 401), ({}, 403), ({"moderation_model": "gpt-9"}, 404)],
)
def test_a_refused_key_or_model_stops_at_once_and_no_key_is_told(server, monkeypatch, keys, status):
    if key := keys.pop("OPENAI_API_KEY", None):
        monkeypatch.setenv("OPENAI_API_KEY", key)
    server.faults = [Fault(403)] if status == 403 else []
    message = rf"\({status}\). Check OPENAI_API_KEY and task.moderation_model"
    with pytest.raises(ConfigError, match=message) as raised:
        verdicts(**keys)
    assert len(server.requests) == 1
    assert "secret" not in str(raised.value)


def test_an_answer_that_is_refused_fails_and_the_others_are_judged(server):
    server.faults = [Fault(400, about="everybody")]
    judged = verdicts()
    assert judged[1] == {"judge": "openai", "failed": "refused with status 400"}
    assert "scores" in judged[0]
    assert "scores" in judged[2]


def test_what_is_missing_is_told_before_anything_runs(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        judge().check()
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    judge().check()
    monkeypatch.setattr("moe_lab.errors.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'moe-lab\[openai\]'"):
        judge().check()
    monkeypatch.undo()
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(ConfigError, match="offline=true forbids"):
        Moderation(Config(task=TaskConfig(name="toy_safety"), offline=True)).check()


def test_server_and_model_are_the_judges_identity(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "https://me:secret@example.org/v1/")
    identity = judge().identity
    assert identity | {"server": "example.org/v1", "model": "omni-moderation-latest"} == identity
    assert "secret" not in str(identity)
    monkeypatch.delenv("OPENAI_BASE_URL")
    assert judge().identity["server"] == "api.openai.com/v1"
    model = "omni-moderation-2024-09-26"
    assert judge(moderation_model=model).identity["model"] == model


@pytest.mark.slow
def test_a_run_whose_endpoint_goes_away_keeps_what_was_judged(
    server, tmp_path, capsys, monkeypatch
):
    """The server answers 429 and 500 in between, then goes away.

    The same command asks for the remaining answers, and no answer is judged twice.
    """
    monkeypatch.setattr(moderation, "TRIES", 2)
    command = ["method=base", "model=tiny", "task=toy_safety", "task.judges=[openai]", "limit=12"]
    command += ["gen_kwargs=max_gen_toks=8", f"output_dir={tmp_path}"]
    server.faults = [Fault(429), Fault(500)]
    judge_method = Moderation.judge

    def goes_away(self: Moderation, exchanges: Any) -> Any:
        for number, verdict in enumerate(judge_method(self, exchanges)):
            yield verdict
            if number == 1:
                server.faults.append(Fault(503, times=99))

    with monkeypatch.context() as patched:
        patched.setattr(Moderation, "judge", goes_away)
        ended = run_command(capsys, *command)
    assert ended.code == 1
    assert "(503)" in ended.err
    assert "the same command" in ended.err
    assert len(server.asked) == 2
    server.faults.clear()
    ended = run_command(capsys, *command)
    assert ended.code == 0, ended.err
    folder = ended.folders[-1]
    results = json.loads((folder / "results.json").read_text())
    assert len(server.asked) == 12, "none is asked for twice"
    openai_block = results["moe_lab"]["judges"]["openai"]
    assert (
        openai_block["tasks"]["toy_safety"] | {"judged": 12} == openai_block["tasks"]["toy_safety"]
    )
    samples = [json.loads(line) for line in (folder / "samples_toy_safety.jsonl").open()]
    expected = [max(category_scores(sample["resps"][0][0]).values()) for sample in samples]
    assert [sample["openai"] for sample in samples] == pytest.approx(expected)
    assert results["results"]["toy_safety"]["openai,none"] == pytest.approx(sum(expected) / 12)
    for file in folder.rglob("*"):
        assert not file.is_file() or KEY not in file.read_text(errors="ignore"), file
