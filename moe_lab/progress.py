"""How far something has come: a bar on a terminal, elsewhere a line every 30 seconds. Both name what it is part of.

with naming("tiny-roe-gsm8k-1f2e3d4c"), Progress(400, "loglikelihood", "request") as progress:
    progress.update()
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event, Thread
from typing import Any, Self

INTERVAL = 30.0
"""Seconds between two lines."""
_name: ContextVar[str] = ContextVar("name", default="")


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Within this, all progress bears the name of a run, a study or a training."""
    token = _name.set(name)
    try:
        yield
    finally:
        _name.reset(token)


def on_terminal() -> bool:
    """Whether stderr shows bars."""
    return sys.stderr.isatty()


class Progress:
    """Counts to `total`, and shows how far it is while its block runs.

    Args:
        total: of what is counted, e.g. requests.
        what: what is being done.
        unit: what is counted, in the singular; "B" for bytes.
        initial: how many were done before.
        shown: False counts in silence.
    """

    def __init__(self, total: int, what: str, unit: str, *, initial: int = 0, shown: bool = True):
        self.total, self.unit, self.done, self.note = total, unit, initial, ""
        self.title = f"{_name.get()}: {what}" if _name.get() else what
        self._initial, self._start = initial, time.monotonic()
        self._bar: Any = None
        self._told = False
        self._ended = Event()
        self._thread: Thread | None = None
        if shown and on_terminal():
            from tqdm import tqdm

            self._bar = tqdm(
                total=total,
                initial=initial,
                desc=self.title,
                unit=unit,
                unit_scale=unit == "B",
                disable=False,
            )
        elif shown:
            self._thread = Thread(target=self._tell_again, daemon=True)
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def update(self, count: int = 1) -> None:
        """Count on."""
        self.at(self.done + count)

    def at(self, done: int, note: str | None = None) -> None:
        """So many are done by now; `note` is shown beside: the last loss, say."""
        self.done, self.note = done, self.note if note is None else note
        if self._bar is not None:
            self._bar.set_postfix_str(self.note, refresh=False)
            self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Show nothing more, after a last line where there were lines."""
        if self._bar is not None:
            self._bar.close()
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            if self._told:
                self._tell()

    def line(self) -> str:
        """`<name>: <what>, 120 of 400 requests, about 03:20 left`."""
        seconds, counted = time.monotonic() - self._start, self.done - self._initial
        done = f"{self._count(self.done)} of {self._count(self.total)}"
        parts = [self.title, done if self.unit == "B" else f"{done} {self.unit}s"]
        if self.note:
            parts.append(self.note)
        if self.done >= self.total:
            parts.append(f"took {duration(seconds)}")
        elif counted > 0:
            parts.append(f"about {duration(seconds / counted * (self.total - self.done))} left")
        return ", ".join(parts)

    def _count(self, amount: int) -> str:
        return f"{amount / 1e9:.2f} GB" if self.unit == "B" else f"{amount:,}"

    def _tell_again(self) -> None:
        while not self._ended.wait(INTERVAL):
            self._tell()

    def _tell(self) -> None:
        self._told = True
        print(self.line(), file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """`03:20`, or `1:03:20`."""
    from tqdm import tqdm

    return str(tqdm.format_interval(seconds))
