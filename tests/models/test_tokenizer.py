"""Breaks if a chat template may loop, or build a text of gigabytes, or if a limit stays set."""

from __future__ import annotations

import signal
import time

import pytest

import moe_lab.models.tokenizer as chat
from moe_lab.errors import ConfigError
from moe_lab.models.tokenizer import Framing, rendered
from tests.support.models import make_tokenizer

LOOP = (
    "{% for a in range(90000) %}{% for b in range(90000) %}{% for c in range(90000) %}{% endfor %}{% endfor %}"
    "{% endfor %}"
)
MESSAGES = [{"role": "user", "content": "Hello"}]


def frame(template: object) -> str:
    tokenizer = make_tokenizer()
    tokenizer.name_or_path = "my/model"
    tokenizer.chat_template = template
    return Framing(lambda: tokenizer).apply_chat_template(MESSAGES)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (LOOP, "takes more than 0.3 seconds"),
        ("{% for a in range(10**12) %}{% endfor %}", "fails: Range too big"),
        ("{{ 'a' * (10**30) }}", "fails: cannot fit"),
        ("{{ 'a' * 20000000 }}", "returns a prompt of 20,000,000 characters"),
        ("{{ messages[7].content }}", "fails"),
        ("{{ raise_exception('no such thing') }}", "fails: no such thing"),
        ("{{ 1 / 0 }}", "fails: division by zero"),
        ("{% for %}", "fails"),
        ("{{ ''.__class__.__mro__ }}", "fails"),
    ],
)
def test_a_template_that_cannot_be_used_is_named(monkeypatch, template, says):
    monkeypatch.setattr(chat, "SECONDS", 0.3 if template == LOOP else 10)
    handler = signal.getsignal(signal.SIGALRM)
    with pytest.raises(ConfigError, match=f"chat template of my/model {says}"):
        frame(template)
    assert signal.getsignal(signal.SIGALRM) is handler and signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_another_alarm_still_rings(monkeypatch):
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(True))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert frame("{{ messages[0].content }}") == "Hello"
        time.sleep(0.1)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert rung == [True]


@pytest.mark.parametrize("asked", ["strftime_now('%d %b %Y')", 'strftime_now("%d %b %Y")'])
def test_the_date_is_the_same_on_every_day(asked):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ " + asked + " }}, {{ messages[0].content }}"
    assert Framing(lambda: tokenizer, True).apply_chat_template(MESSAGES) == "05 Aug 2025, Hello"


def test_a_plain_template_is_rendered():
    tokenizer = make_tokenizer()
    assert rendered(tokenizer, lambda: "text") == "text"
    assert frame("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}") == "user: Hello"
