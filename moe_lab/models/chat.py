"""Chat templates, applied to prompts by a tokenizer alone, within limits.

A template is a program that comes with a model. jinja's sandbox keeps it from the machine, but not from looping and
from building texts of gigabytes.
"""

from __future__ import annotations

import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from lm_eval.api.model import TemplateLM

from moe_lab.errors import ConfigError

SECONDS = 10.0
BYTES = 2**30
CHARACTERS = 2**24
"""What a template may take for one prompt."""


class _TooLong(BaseException):
    """Derived from BaseException, so that jinja does not take it for an error of an expression."""


def rendered(tokenizer: Any, render: Callable[[], str]) -> str:
    """The text that `render` gets of a tokenizer's chat template. Raises ConfigError beyond the limits or on errors."""
    template = f"The chat template of {tokenizer.name_or_path}"
    remedy = "Use another tokenizer (model.tokenizer), or leave apply_chat_template out."
    try:
        with _limits():
            text = render()
    except _TooLong:
        raise ConfigError(
            f"{template} takes more than {SECONDS:g} seconds for one prompt. {remedy}"
        ) from None
    except MemoryError:
        raise ConfigError(
            f"{template} takes more than {BYTES / 2**30:g} GiB for one prompt. {remedy}"
        ) from None
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(f"{template} fails: {reason}. {remedy}") from error
    if len(text) > CHARACTERS:
        raise ConfigError(f"{template} makes a prompt of {len(text):,} characters. {remedy}")
    return text


@contextmanager
def _limits() -> Iterator[None]:
    """Inside the context, _TooLong is raised after SECONDS, and MemoryError if BYTES more are taken.

    Signals reach the main thread alone: elsewhere there is no limit on time. On other systems than Linux there is none
    on memory.
    """
    timed = threading.current_thread() is threading.main_thread()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if (taken := _address_space()) is not None:
        most = taken + BYTES
        most = most if soft == resource.RLIM_INFINITY else min(soft, most)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    before = signal.signal(signal.SIGALRM, _stop) if timed else None
    left, start = signal.setitimer(signal.ITIMER_REAL, SECONDS)[0] if timed else 0.0, time.monotonic()
    try:
        yield
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_REAL, max(left - time.monotonic() + start, 1e-6) if left else 0)
            signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _stop(*_: object) -> None:
    raise _TooLong


def _address_space() -> int | None:
    """Bytes of addresses that this process has taken, by Linux's count; None on other systems."""
    counts = Path("/proc/self/statm")
    return int(counts.read_text().split()[0]) * resource.getpagesize() if counts.exists() else None


class Framing:
    """The part of lm-eval's model interface that applies a chat template. It needs no weights.

    Args:
        load_tokenizer: returns the tokenizer; called at its first use.
        chat_template: lm-eval's `apply_chat_template`: False, True, or the name of one of several templates.
    """

    def __init__(self, load_tokenizer: Callable[[], Any], chat_template: bool | str | None = False):
        self.chat_template_args: dict[str, Any] = {}
        self._load_tokenizer = load_tokenizer
        self._template_name = chat_template

    @cached_property
    def tokenizer(self) -> Any:
        tokenizer = self._load_tokenizer()
        if self._template_name:
            tokenizer.chat_template = TemplateLM.chat_template(
                _TokenizerHolder(tokenizer), self._template_name
            )
        return tokenizer

    @property
    def tokenizer_name(self) -> str:
        return self.tokenizer.name_or_path.replace("/", "__")

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        from lm_eval.models.huggingface import HFLM

        hf: Any = HFLM  # its method reads the tokenizer and chat_template_args alone
        return rendered(
            self.tokenizer, lambda: hf.apply_chat_template(self, chat_history, add_generation_prompt)
        )


class _TokenizerHolder:
    """The attribute of a model that `TemplateLM.chat_template` reads."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
