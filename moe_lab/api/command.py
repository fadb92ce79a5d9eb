"""A command line from Python: what it composes to, and where its output goes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

from moe_lab.cli.main import compose_or_explain
from moe_lab.config.arguments import wrong
from moe_lab.errors import ConfigError

if TYPE_CHECKING:
    from moe_lab.config.compose import Cell

PRINTING = {"--help", "-h", "--hydra-help", "--version", "--info", "--cfg", "-c"}
"""Flags of the command."""


def composed(name: str, overrides: Sequence[str]) -> list[Cell]:
    """The cells of a command line. `name` is that of the public function.

    Raises ConfigError for a command that only prints, and for what is no list of texts.
    """
    if (
        isinstance(overrides, str)
        or not isinstance(overrides, Sequence)
        or not all(isinstance(each, str) for each in overrides)
    ):
        raise wrong(
            f"moe_lab.{name}(overrides)",
            overrides,
            f'give a list of texts: moe_lab.{name}(["method=roe", "task=toy_math"])',
        )
    # some of these would end the interpreter
    cells = [] if PRINTING & set(overrides) else compose_or_explain(list(overrides))
    if not cells:
        raise ConfigError(f"{' '.join(overrides)} only prints, and has no results. Use the command.")
    return cells


@contextmanager
def output(quiet: bool) -> Iterator[Callable[[], str]]:
    """Within this, nothing is printed if `quiet`. Yields a function that says where the errors are."""
    if not quiet:
        yield lambda: "The errors are above."
        return
    printed = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(printed):
        yield lambda: f"The errors:\n{printed.getvalue().strip()}\n"
