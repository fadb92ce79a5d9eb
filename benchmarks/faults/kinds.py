"""The runs that are attacked: five command lines on the embedded model, and what their results must
be."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults.child import Ended, run

KINDS = {
    "roe": "method=roe method.n=2 task=toy_choice limit=2",
    "tuning": (
        "method=roe method.n=2 task=toy_choice limit=2 seeds=1 tuning=tpe "
        "tuning.n_trials=2 tuning.num_samples=2"
    ),
    "c3po": "method=c3po method.steps=1 method.reference_size=16 task=toy_choice limit=2",
    "finetune": "method=finetune-freeze method.dataset_size=8 method.validation_size=1 "
    "method.epochs=1 "
    "method.max_steps=2 method.save_steps=1 method.compare_with_full=false task=toy_choice limit=2",
    "judged": "method=roe method.n=2 task=toy_safety limit=2 gen_kwargs=max_gen_toks=4",
}
TIMES = {
    "date",
    "total_evaluation_time_seconds",
    "start_time",
    "end_time",
    "cost",
    "last_session_seconds",
    "last_session",
}
"""Keys of a results.json that hold times and costs, at any depth."""
COUNTED = {"changed_fraction", "flops_per_sample", "flops_plain_per_sample"}
"""Means over all that was computed, what was lost and computed again included (docs/results.md)."""
TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}")


@dataclass
class Kind:
    """A command line and what it must come to."""

    name: str
    expected: dict[str, Any] = field(default_factory=dict)
    """`results_in` of an undisturbed run."""
    seconds: float = 0.0
    """What that took."""
    finished: Path = Path()
    """Its output folder."""

    def argv(self, output: Path) -> list[str]:
        return [*KINDS[self.name].split(), "device=cpu", f"output_dir={output}"]

    def run(self, output: Path, **options: Any) -> Ended:
        return run(self.argv(output), output.with_suffix(".log"), **options)

    def problems(self, ended: Ended, output: Path) -> list[str]:
        """What is wrong with a command that must have finished the run.

        A result that it does not need may be damaged, if it says so.
        """
        if ended.code != 0 or ended.traceback:
            return [f"ended with {ended.code}: {ended.last_line}"]
        named_runs = {name for name in self.expected if f"{name}/results.json is " in ended.output}
        results = results_in(output) | {name: self.expected[name] for name in named_runs}
        if results != self.expected:
            return [f"results differ: {difference(self.expected, results)}"]
        stale = [path for path in output.rglob(".*") if TEMPORARY.fullmatch(path.name)]
        return [f"{path.relative_to(output)} is left" for path in stale]


def undisturbed(name: str, work: Path, run_here: Callable[[list[str]], int]) -> Kind:
    """A kind, run twice: in this process, which loads what children then have, and in a child. Both
    must be equal."""
    kind = Kind(name)
    folder_here, kind.finished = work / f"{name}-here", work / f"{name}-finished"
    code = run_here(kind.argv(folder_here))
    if code != 0:
        raise SystemExit(f"{' '.join(kind.argv(folder_here))} ended with {code}.")
    kind.expected = results_in(folder_here)
    ended = kind.run(kind.finished)
    kind.seconds = ended.seconds
    if problems := kind.problems(ended, kind.finished):
        raise SystemExit(f"{name}: an undisturbed run {problems[0]}\n{ended.output[-2000:]}")
    return kind


def results_in(output: Path) -> dict[str, Any]:
    """Every run's results.json by folder, without times and costs; the output folder's path is a
    placeholder.

    None stands for one that cannot be read.
    """
    results = {}
    for path in sorted(output.glob("runs/*/results.json")):
        try:
            content = json.loads(path.read_text().replace(str(output), "<output_dir>"))
        except (ValueError, OSError, RecursionError):
            content = None
        results[path.parent.name] = _without_times(content)
    return results


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_times(item) for key, item in value.items() if key not in TIMES | COUNTED
        }
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def difference(expected: Any, actual: Any, place: str = "") -> str:
    """The first place where two results differ."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        if missing := expected.keys() ^ actual.keys():
            return f"{place}: only one has {', '.join(sorted(missing))[:200]}"
        for key, value in expected.items():
            if value != actual[key]:
                return difference(value, actual[key], f"{place}/{key}")
    return f"{place}: {str(expected)[:80]} and {str(actual)[:80]}"


def scratch(work: Path) -> Path:
    """An output folder that does not exist yet."""
    folder = Path(tempfile.mkdtemp(dir=work))
    return folder / "out"


def clear(output: Path) -> None:
    shutil.rmtree(output.parent, ignore_errors=True)
