"""Breaks if settings of generation are other ones than lm-eval reads in the same text."""

import pytest
from lm_eval.utils import simple_parse_args_string

from moe_lab.runs.config import compose_or_explain, to_config
from tests.support.command import FakeRuns, install, run_command

SAME = [
    "max_gen_toks=064",
    "max_gen_toks=8",
    "max_gen_toks=+8",
    "temperature=1e-3",
    "temperature=1e2",
    "temperature=.5",
    "temperature=5.",
    "temperature=1_0.5",
    "top_k=007",
    "do_sample=TRUE",
    "do_sample=false",
    "until=#",
    "until==",
    "until=12:30",
    "until=a=b",
    "until=yes",
    "until=~",
    "until=null",
    "until=0x1F",
    "until=Question:",
    "until=- ",
    "until=&a",
    "until=*",
    "until=!",
    "until=%",
    "until=@",
    "until=`",
    "until=|",
    "until=[a]",
    "until={a: b}",
    "until='12'",
    'until="a"',
    "until=it's",
    "until=\\n",
    "until=a\\",
    "until=ü",
    "temperature=0.7,do_sample=true",
    "until=#,max_gen_toks=012,",
    "until=a b,top_p=0.9",
    "until=</s>",
]


def settings_of(text: str) -> dict:
    [cell] = compose_or_explain(["method=base", f"gen_kwargs={text}"])
    return to_config(cell).gen_kwargs


@pytest.mark.parametrize("text", SAME)
def test_settings_of_generation_are_lm_evals(text):
    ours = settings_of(text)
    expected = simple_parse_args_string(text)
    assert ours == expected
    assert list(map(type, ours.values())) == list(map(type, expected.values()))


@pytest.mark.parametrize("text", ["12", "064", "1e3", "true", "-1.50"])
def test_a_stop_text_that_looks_like_a_number_stays_a_text(text):
    assert settings_of(f"until={text},max_gen_toks=4") == {"until": text, "max_gen_toks": 4}


@pytest.mark.parametrize(
    "text",
    [
        "temperature",
        "temperature=",
        "=3",
        "a=1,b",
        "max_gen_toks=none",
        "temperature=x",
        "temperature=inf",
    ],
)
def test_what_is_no_setting_is_refused(text, capsys, tmp_path):
    ended = run_command(
        capsys, "method=base", f"gen_kwargs={text}", f"output_dir={tmp_path}", "limit=1"
    )
    assert ended.code == 2
    assert "gen_kwargs" in ended.err
    assert len(ended.err.splitlines()) <= 3


def test_a_stop_text_none_is_what_lm_eval_takes_it_for(capsys, tmp_path):
    """None in 0.4, which is refused, and a text in 0.5."""
    expected = simple_parse_args_string("until=none")
    assert settings_of("until=none") == expected
    ended = run_command(
        capsys, "method=base", "gen_kwargs=until=none", f"output_dir={tmp_path}", "limit=1"
    )
    assert (ended.code == 2) is (expected["until"] is None)


def test_settings_of_generation_reach_the_run(capsys, monkeypatch, tmp_path):
    runs = install(monkeypatch, FakeRuns())
    argv = ["method=base", "gen_kwargs=until==,max_gen_toks=064", f"output_dir={tmp_path}"]
    assert run_command(capsys, *argv).code == 0
    assert runs.asked[0].gen_kwargs == {"until": "=", "max_gen_toks": 64}
