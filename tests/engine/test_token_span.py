"""Names of the tokens of a prompt, as `method.tokens` has them.

Broken by a name that stands for other tokens, another name that is taken, and by a
short prompt that is not named.
"""

import pytest

from moe_lab.engine.token_span import TokenSpan, check_length, named_tokens
from moe_lab.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "length", "start"),
    [
        ("last1", 7, 6),
        ("last3", 7, 4),
        ("last7", 7, 0),
        ("first1", 7, 0),
        ("first3", 7, 0),
        ("middle1", 7, 3),
        ("middle1", 8, 3),
        ("middle2", 3, 0),
        ("middle3", 3, 0),
        ("middle3", 7, 2),
    ],
)
def test_names_are_places(name, length, start):
    span = named_tokens(name)
    assert f"{span.where}{span.size}" == name
    assert span.start(length) == start
    assert start + span.size <= length


@pytest.mark.parametrize(
    "name", ["last", "last0", "3", "end1", "last1+first1", "last-1", "last01", "", None]
)
def test_other_names_are_refused_with_examples(name):
    with pytest.raises(ConfigError, match=r"method\.tokens=.*last1 or middle3"):
        named_tokens(name)


def test_a_short_prompt_is_named_with_what_fits():
    span = TokenSpan("middle", 3)
    check_length(span, [1, 2, 3], "long enough")
    message = r"(?s)method\.tokens=middle3: the prompt 'Hi' has 2 tokens.*middle2"
    with pytest.raises(ConfigError, match=message):
        check_length(span, [1, 2], "Hi")
    with pytest.raises(ValueError, match="2 tokens"):
        span.start(2)
