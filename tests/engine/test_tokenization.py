"""A request that is longer than the model's input loses its beginning, with one warning of how many do."""

from __future__ import annotations

import logging

import pytest

from moe_lab.engine.lm import EngineLM, Request
from tests.support import attention_kinds
from tests.support.command import run_command
from tests.support.models import build

SHORT, LONG = ("a", " b"), ("a" * 600, " b")


def warnings_of(caplog, lm, kind, requests):
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="moe_lab"):
        lm.answer(kind, [Request(each) for each in requests], lambda index, answer: None)
    return [record.getMessage() for record in caplog.records if record.name == "moe_lab"]


@pytest.mark.parametrize("own_code", [True, False], ids=["engine", "hf"])
def test_requests_that_lose_their_beginning_are_counted(olmoe, tokenizer, caplog, own_code):
    model = olmoe if own_code else build("qwen3_next", attention_kinds.RECURRENT["qwen3_next"])
    lm = EngineLM(model, tokenizer, max_length=100, progress=False)
    assert (lm.engine is not None) == own_code
    (found,) = warnings_of(caplog, lm, "loglikelihood", [SHORT, LONG, LONG])
    assert found.startswith("2 of 3 requests are longer than the model's input of 100 tokens (max_length)")
    exact = ("a" * 99, " b")  # the last token is not read
    assert warnings_of(caplog, lm, "loglikelihood", [SHORT, exact]) == []
    assert warnings_of(caplog, lm, "loglikelihood_rolling", [("a" * 600,)]) == []


def test_prompts_that_lose_their_beginning_are_counted(olmoe, tokenizer, caplog):
    lm = EngineLM(olmoe, tokenizer, max_length=100, progress=False)
    options = {"until": [], "max_gen_toks": 2}
    (found,) = warnings_of(caplog, lm, "generate_until", [("a" * 98, options), ("a" * 99, options)])
    assert found.startswith("1 of 2 requests")


@pytest.mark.slow
def test_a_run_warns_once_and_notes_it_in_its_log(tmp_path, capsys, tiny_olmoe_dir):
    ended = run_command(
        capsys, "method=roe", "method.n=2", f"model.path={tiny_olmoe_dir}", "task=toy_choice", "limit=3", "max_length=20",
        "baseline=false", f"output_dir={tmp_path}",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    says = "requests are longer than the model's input of 20 tokens (max_length)"
    assert ended.err.count(says) == 1
    (log,) = tmp_path.glob("runs/*/run.log")
    assert log.read_text().count(says) == 1
