"""Progress: a bar on a terminal, elsewhere a line every 30 seconds. Both name the run, study or training.

with naming("tiny-roe-gsm8k-1f2e3d4c"), Progress(400, "loglikelihood", "request") as progress:
    progress.update()
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partialmethod
from threading import Event, Thread
from typing import Any, Self

INTERVAL = 30.0
"""Seconds between two lines."""
_name: ContextVar[str] = ContextVar("name", default="")


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Inside this context, all progress has the name of a run, a study or a training."""
    token = _name.set(name)
    try:
        yield
    finally:
        _name.reset(token)


@contextmanager
def bars_of_libraries_hidden() -> Iterator[None]:
    """Inside this context, tqdm's bars of other packages are disabled if stderr is no terminal.

    (tqdm reads TQDM_DISABLE when it is imported, which it may be already.)
    """
    from tqdm import tqdm

    if sys.stderr.isatty():
        yield
        return
    shown = tqdm.__init__
    tqdm.__init__ = partialmethod(shown, disable=True)
    try:
        yield
    finally:
        tqdm.__init__ = shown


class Progress:
    """Counts to `total`, and shows the progress inside its `with` block.

    Args:
        total: the final number, of requests for example.
        what: the activity, "loglikelihood" for example.
        unit: what is counted, in the singular; "B" for bytes.
        initial: the number that was done before.
        shown: False prints nothing.
    """

    def __init__(self, total: int, what: str, unit: str, *, initial: int = 0, shown: bool = True):
        self.total, self.unit, self.done, self.note = total, unit, initial, ""
        self.title = f"{_name.get()}: {what}" if _name.get() else what
        self._initial, self._start = initial, time.monotonic()
        self._bar: Any = None
        self._printed, self._ended = False, Event()
        self._thread = Thread(target=self._print_lines, daemon=True)
        if shown and sys.stderr.isatty():
            from tqdm import tqdm

            scale = unit == "B"
            self._bar = tqdm(
                total=total, initial=initial, desc=self.title, unit=unit, unit_scale=scale, disable=False
            )
        elif shown:
            self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def update(self, count: int = 1) -> None:
        """Add to the number done."""
        self.at(self.done + count)

    def at(self, done: int, note: str | None = None) -> None:
        """Set the number done. `note` is shown after it, the last loss for example."""
        self.done, self.note = done, self.note if note is None else note
        if self._bar is not None:
            self._bar.set_postfix_str(self.note, refresh=False)
            self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Stop showing progress. If lines were printed, print a last one."""
        if self._bar is not None:
            self._bar.close()
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
            if self._printed:
                print(self.line(), file=sys.stderr, flush=True)

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

    def _print_lines(self) -> None:
        while not self._ended.wait(INTERVAL):
            self._printed = True
            print(self.line(), file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """`03:20`, or `1:03:20`."""
    from tqdm import tqdm

    return str(tqdm.format_interval(seconds))
