"""Generation settings are refused before weights load where they have no effect or an impossible value."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from moe_lab.errors import ConfigError
from moe_lab.runs.checks import check_generation


def check(**gen_kwargs):
    config = SimpleNamespace(gen_kwargs=gen_kwargs, max_length=None)
    check_generation(config, SimpleNamespace(max_length=100), {"tasks": {}})


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"temprature": 0.5}, "Did you mean 'temperature'"),
        ({"min_new_tokens": 3}, "no generation setting that is honoured"),
        ({"stop_strings": ["a"]}, "no generation setting that is honoured"),
        ({"temperature": -1}, "at least 0"),
        ({"temperature": "hot"}, "must be float"),
        ({"top_k": -5}, "at least 0"),
        ({"top_k": 2.5}, "must be int"),
        ({"top_p": 1.5}, "at most 1"),
        ({"do_sample": "maybe"}, "true or false"),
        ({"num_beams": 4}, "beam search"),
        ({"until": 5}, "a text or a list of texts"),
    ],
)
def test_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        check(**settings)


def test_what_is_honoured_passes():
    check(temperature=0.7, top_p=0.9, top_k=20, do_sample=True, until=["x"], max_gen_toks=5, num_beams=1)
    check(temperature=0, repetition_penalty=1.1, until="x")
