"""Breaks if a chat template that fails is not named, or states another date on another day."""

import pytest

from moe_lab.errors import ConfigError
from moe_lab.models.tokenizer import Framing, rendered
from tests.support.models import make_tokenizer

MESSAGES = [{"role": "user", "content": "Hello"}]


def frame(template: object) -> str:
    tokenizer = make_tokenizer()
    tokenizer.name_or_path = "my/model"
    tokenizer.chat_template = template
    return Framing(lambda: tokenizer).apply_chat_template(MESSAGES)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ messages[7].content }}", "fails"),
        ("{{ raise_exception('no such thing') }}", "fails: no such thing"),
        ("{{ 1 / 0 }}", "fails: division by zero"),
        ("{% for %}", "fails"),
        ("{{ ''.__class__.__mro__ }}", "fails"),
    ],
)
def test_a_template_that_cannot_be_used_is_named(template, says):
    with pytest.raises(ConfigError, match=f"chat template of my/model {says}"):
        frame(template)


@pytest.mark.parametrize("asked", ["strftime_now('%d %b %Y')", 'strftime_now("%d %b %Y")'])
def test_the_date_is_the_same_on_every_day(asked):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ " + asked + " }}, {{ messages[0].content }}"
    assert Framing(lambda: tokenizer, True).apply_chat_template(MESSAGES) == "05 Aug 2025, Hello"


def test_a_plain_template_is_rendered():
    tokenizer = make_tokenizer()
    assert rendered(tokenizer, lambda: "text") == "text"
    assert frame("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}") == "user: Hello"
