"""Commands from Python: the same runs, files and numbers; and what a command would run, without
running it."""

from __future__ import annotations

import inspect
import io
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.config.arguments import wrong
from moe_lab.config.progress import bars_of_libraries_hidden
from moe_lab.config.streams import lasting_streams
from moe_lab.errors import INTERRUPTED, TERMINATED, ConfigError, ResultsError
from moe_lab.runs.config import compose_or_explain, to_configs
from moe_lab.tasks.loading import task_cache

if TYPE_CHECKING:
    from moe_lab.config.compose import Cell
    from moe_lab.routing import PolicyFunction
    from moe_lab.runs.plan import Plan
    from moe_lab.runs.results import Results


def run(
    overrides: Sequence[str] = (),
    *,
    policy: PolicyFunction | None = None,
    quiet: bool = False,
    **keys: Any,
) -> Results:
    """Run a command and return its results: `moe_lab.run(["method=roe", "task=toy_math",
    "limit=50"])`.

    `moe_lab.run(policy=drop_weakest, task="toy_math", limit=50)` runs a function (router, routing)
    as `method=policy`.

    Args:
        overrides: those of `python -m moe_lab`, with "-m" for a grid. Files are written as there,
            and stored results are returned without computing. With `experiment=` the results are
            those of all its cells, and `results.tables` has its tables.
        policy: a function of an importable file, as in `override`.
        quiet: print nothing. By default tables, progress and errors are printed as by the command.
        keys: further overrides without a dot in their key.

    Raises ConfigError for what the command refuses and for another mode than run, ResultsError
    where a run failed or is held by another process, and KeyboardInterrupt where it was
    interrupted.
    """
    more = []
    if policy is not None:
        more += ["method=policy", f"method.policy={_place_of(policy)}"]
    for key, value in keys.items():
        more.append(f"{key}={_text(value)}")
    return _results("run", overrides, quiet, more)


@contextmanager
def _silent() -> Iterator[None]:
    """Inside this context, nothing is printed."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


def _text(value: Any) -> str:
    """A value as Hydra reads it: true, null, [1, 2], {a: 1}."""
    if isinstance(value, str | Path):
        return str(value)
    return re.sub(r'"(\w+)": ', r"\1: ", json.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    """A number or an array of NumPy, or a path, as JSON has it. Raises ConfigError for another
    object."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise ConfigError(
        f"moe_lab.run takes numbers, texts, lists and dictionaries, and not {value!r:.80}."
    )


def _place_of(policy: Any) -> str:
    """`<file>:<function>`. Raises ConfigError for a function that no other process can import."""
    file = inspect.getsourcefile(policy) if inspect.isfunction(policy) else None
    name = getattr(policy, "__qualname__", str(policy))
    if file is None or not Path(file).is_file() or not name.isidentifier():
        raise ConfigError(
            f"policy={name}: worker processes import the function from its file, and it has none, "
            "or is inside another function. Write it at the top level of a file (in a notebook: "
            "%%writefile my_idea.py) and import it."
        )
    return f"{file}:{name}"


def report(overrides: Sequence[str], *, quiet: bool = False) -> Results:
    """The stored results of a command: `moe_lab.report(["-m", "method=base,roe",
    "task=toy_math"])`; computes nothing.

    It is `mode=report` of the command: page, tables and figures are written again. Runs that are
    not stored are named and left out.

    Args:
        overrides, quiet: as of `moe_lab.run`.

    Raises ConfigError for what the command refuses, and where nothing is stored.
    """
    return _results("report", overrides, quiet, ["mode=report"])


def plan(overrides: Sequence[str]) -> Plan:
    """What a command would run: `moe_lab.plan(["-m", "method=base,roe", "task=toy_math",
    "seeds=5"])`.

    It is `mode=plan` of the command: everything is checked that can be checked without weights,
    nothing is computed, written or printed.

    Args:
        overrides: those of `python -m moe_lab`, with "-m" for a grid, or with `experiment=`.

    Returns a table of the runs: `frame()`, and `notes` with the sums.

    Raises ConfigError for what the command refuses.
    """
    from moe_lab.runs.grid import do

    cells = composed("plan", overrides)
    with task_cache(), _silent():
        configs = to_configs(cells)
        if any(config.mode not in ("run", "plan") for config in configs):
            raise ConfigError(f"mode={configs[0].mode}: moe_lab.plan plans runs. Leave mode= out.")
        planned: Plan = do("plan", configs, cells, overrides)
        return planned


def _results(mode: str, overrides: Sequence[str], quiet: bool, more: Sequence[str]) -> Results:
    """The results of a command line with `more` overrides, printed unless `quiet`.

    Raises ResultsError if a run failed, KeyboardInterrupt if the command was interrupted.
    """
    from moe_lab.runs.grid import do

    cells = composed(mode, overrides, *more)
    silence = _silent() if quiet else nullcontext()
    with task_cache(), silence, bars_of_libraries_hidden():
        configs = to_configs(cells)
        for config in configs:
            if config.mode != mode:
                raise ConfigError(
                    f"moe_lab.{mode} returns the results of runs, and mode={config.mode} has none. "
                    "Leave it out."
                )
        results: Results = do(mode, configs, cells, [*overrides, *more])
        if not quiet:
            with lasting_streams():
                results.print()
    if results.exit_code in (INTERRUPTED, TERMINATED):
        raise KeyboardInterrupt
    if results.exit_code:
        where = f"The errors:\n{_errors_of(results)}\n" if quiet else "The errors are above."
        raise ResultsError(f"A run or a study failed. {where} Earlier results stay stored.")
    return results


def _errors_of(results: Results) -> str:
    """The messages of all that failed, one after the other."""
    errors = [*results.refused]
    for failure in results.failures:
        errors.append(failure.error)
    return "\n".join(str(error) for error in errors)


PRINTING = {"--help", "-h", "--hydra-help", "--version", "--info", "--cfg", "-c"}
"""Flags with which the command only prints."""


def composed(name: str, overrides: Sequence[str], *more: str) -> list[Cell]:
    """The cells of a command line with `more` overrides. `name` is that of the public function.

    Raises ConfigError for a command that only prints, and for `overrides` that are not a list of
    texts.
    """
    is_list = isinstance(overrides, Sequence) and not isinstance(overrides, str)
    if not is_list or not all(isinstance(override, str) for override in overrides):
        raise wrong(
            f"moe_lab.{name}(overrides)",
            overrides,
            f'give a list of texts: moe_lab.{name}(["method=roe", "task=toy_math"])',
        )
    only_prints = bool(PRINTING & set(overrides))  # some of these would end the interpreter
    cells = [] if only_prints else compose_or_explain([*overrides, *more])
    if not cells:
        raise ConfigError(
            f"{' '.join(overrides)} only prints, and has no results. Use the command."
        )
    return cells
