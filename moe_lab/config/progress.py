"""Progress: a bar on a terminal, elsewhere a line every 30 seconds. Both name the run, study or
training.

with naming("tiny-roe-gsm8k-1f2e3d4c"), Progress(400, "loglikelihood", "request") as progress:
    progress.update()
"""

import io
import sys
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


LINE = "{desc}, {n_fmt} of {total_fmt} {unit}{postfix}, {remaining} left"


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
        from tqdm import tqdm

        self.title = f"{_name.get()}: {what}" if _name.get() else what
        options: dict[str, Any] = {"total": total, "initial": initial, "desc": self.title}
        if unit == "B":
            options |= {"unit": "B", "unit_scale": True}
        else:
            options |= {"unit": f"{unit}s"}
        on_terminal = shown and sys.stderr.isatty()
        if not on_terminal:  # the bar only counts, and its lines are printed here
            options |= {"bar_format": LINE, "file": io.StringIO(), "mininterval": INTERVAL}
        self._bar = tqdm(disable=False, **options)
        self._printed = False
        self._ended = Event()
        self._thread = Thread(target=self._print_lines, daemon=True)
        if shown and not on_terminal:
            self._thread.start()

    @property
    def done(self) -> int:
        """The number done."""
        return int(self._bar.n)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def update(self, count: int = 1) -> None:
        """Add to the number done."""
        self._bar.update(count)

    def at(self, done: int, note: str | None = None) -> None:
        """Set the number done. `note` is shown after it, the last loss for example."""
        if note is not None:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Stop showing progress. If lines were printed, print a last one."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
            if self._printed:
                self._print()
        self._bar.close()

    def _print_lines(self) -> None:
        """Print a line every INTERVAL seconds until the end."""
        while not self._ended.wait(INTERVAL):
            self._print()

    def _print(self) -> None:
        """Print a line with the number done and the time left."""
        self._printed = True
        print(self._bar, file=sys.stderr, flush=True)
