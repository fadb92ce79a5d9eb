"""Command lines made of the real keys and odd values: refused with exit code 2 before weights load,
or accepted."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from moe_lab.cli.main import main
from moe_lab.config.schema import GROUP_CONFIGS, Config
from moe_lab.methods import get_method, method_names

VALUES = (
    "nan",
    ".nan",
    "inf",
    "-inf",
    "1e999",
    "-1e999",
    "0",
    "-1",
    "-0.0",
    "0.5",
    "1e30",
    "-7",
    "99999999999999999999999999",
    "1" * 400,
    "abc",
    "true",
    "null",
    "''",
    "[]",
    "{}",
    "[[a]]",
    "[1,[2]]",
    "[nan]",
    "[.inf]",
    "{a:1}",
    "{a:{b:[1]}}",
    "[{a:1}]",
    "x" * 5000,
    "ü",
    "'a b'",
    "/",
    "..",
    "/nowhere/at/all",
    "a,b",
    "a=b",
    "[",
    "${nothing}",
    "'\\n'",
)
SETTINGS = (
    "temperature",
    "top_p",
    "top_k",
    "do_sample",
    "until",
    "max_gen_toks",
    "num_beams",
    "nothing",
)
GIVEN = {"mode", "output_dir", "method", "model", "task", "tuning", "logger", "device"}
"""Top-level keys that no odd value is tried of: groups, and what would leave the scratch folder or
this machine."""
TASKS = ("toy_math", "toy_choice", "toy_text", "toy_safety")
PATIENCE = 60
"""Seconds after which a line counts as hanging."""
IN_A_CHILD = 25
"""Lines that one child runs after another."""


class Loaded(BaseException):
    """Weights would load now: the line was accepted."""


class Lines:
    """Attempt n is IN_A_CHILD lines."""

    name = "lines"

    def __init__(self, work: Path, seed: int, count: int):
        self.work = work
        self.seed = seed
        self.count = count
        self.attempts = -(-count // IN_A_CHILD)
        self.endings: Counter[str] = Counter()

    def attempt(self, number: int) -> list[str]:
        """What is wrong with the endings of the lines of attempt `number`."""
        size = min(IN_A_CHILD, self.count - number * IN_A_CHILD)
        answer = self.work / f"lines-{number}.json"
        child = os.fork()
        if child == 0:
            _be_child(answer, [self._line(number, i) for i in range(size)], self.work / "lines")
        _, status = os.waitpid(child, 0)
        if status:
            return [f"lines of attempt {number} ended the process with status {status}"]
        ended = json.loads(answer.read_text())
        self.endings.update(outcome["ending"] for outcome in ended)
        return [
            f"{outcome['line']}: {outcome['problem']}" for outcome in ended if outcome["problem"]
        ]

    def _line(self, number: int, place: int) -> tuple[list[str], str | None]:
        """A command line, and for a misspelt key the right one."""
        random = Random(f"{self.seed} lines {number} {place}")
        method = random.choice(method_names())
        task = random.choice(TASKS)
        argv = [f"method={method}", f"task={task}", "limit=2", "offline=true"]
        keys = _keys(method)
        # the keys of a policy are those of its function, which is not given here
        if random.random() < 0.15 and method != "policy":
            # nothing is near to one letter
            key = random.choice([key for key in keys if len(key) > 1])
            wrong = (
                key[:-1] + random.choice("qjz") if len(key.rpartition(".")[2]) > 4 else f"{key}_x"
            )
            return [*argv, f"{wrong}=1"], key
        for key in random.sample(keys, random.choice((1, 1, 2))):
            argv.append(f"{key}={_value(key, random)}")
        return argv, None

    def told(self) -> str:
        return (
            f"{self.count} command lines "
            f"({', '.join(f'{n} {what}' for what, n in self.endings.items())})"
        )


def _keys(method: str) -> list[str]:
    top = [
        key
        for key in Config.__dataclass_fields__
        if key not in GIVEN | {"overrides", "interpolated"}
    ]
    groups: dict[str, Any] = GROUP_CONFIGS | {"method": get_method(method).Config}
    nested = [
        f"{group}.{key_field.name}"
        for group, cls in groups.items()
        for key_field in dataclasses.fields(cls)
    ]
    return top + [key for key in nested if not key.endswith(".name")]


def _value(key: str, random: Random) -> str:
    value = random.choice(VALUES)
    if key == "gen_kwargs" and random.random() < 0.8:
        return f"{{{random.choice(SETTINGS)}:{value}}}"
    return value


def _be_child(answer: Path, lines: Sequence[tuple[list[str], str | None]], output: Path) -> None:
    """Does not return."""
    code = 1
    try:
        answer.write_text(json.dumps([_try(argv, key, output) for argv, key in lines]))
        code = 0
    finally:
        os._exit(code)


def _try(argv: list[str], key: str | None, output: Path) -> dict[str, str | None]:
    """Run one line in this process as far as the loading of weights."""
    printed = io.StringIO()
    with _no_weights(), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            ending = str(main([*argv, "device=cpu", f"output_dir={output}"]))
        except Loaded:
            ending = "accepted"
        except BaseException as error:
            ending = repr(error)[:200]
    line = " ".join(argv)
    if len(line) >= 300:
        line = f"{line[:150]}...{line[-20:]}"
    problem = _problem(ending, printed.getvalue(), key)
    return {"line": line, "ending": _ending_in_words(ending), "problem": problem}


def _ending_in_words(ending: str) -> str:
    if ending == "accepted":
        return "accepted"
    if ending == "2":
        return "refused"
    return f"ended with {ending}"


def _problem(ending: str, output: str, key: str | None) -> str | None:
    last = (output.strip().splitlines() or ["nothing was printed"])[-1][:200]
    if "Traceback (most recent call last)" in output:
        return f"a traceback: {last}"
    if ending not in ("accepted", "0", "2"):
        return f"ended with {ending}: {last}"
    if key is not None and (ending != "2" or "Did you mean" not in output):
        return f"a misspelt {key} ended with {ending} without a suggestion: {last}"
    if ending == "2" and len(output) > 6000:
        return f"refused with {len(output)} characters"
    return None


@contextlib.contextmanager
def _no_weights() -> Iterator[None]:
    """Loading weights, and making them anew, raises Loaded; a line that takes too long raises
    TimeoutError."""
    import moe_lab.models.load as load
    from moe_lab.methods.pretrain_tiny import PretrainTiny
    from moe_lab.methods.trained import Trained

    def refuse(*args: Any, **keys: Any) -> Any:
        raise Loaded

    def hang(*_: Any) -> None:
        raise TimeoutError(f"it took {PATIENCE} seconds")

    signal.signal(signal.SIGALRM, hang)
    signal.alarm(PATIENCE)
    try:
        with (
            patch.object(load, "load_model", refuse),
            patch.object(PretrainTiny, "_train", refuse),
            patch.object(Trained, "load_or_train", refuse),
        ):
            yield
    finally:
        signal.alarm(0)
