"""Helpers for tests of the command: run it in this process, and stand-ins
for runs that need no model."""

import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import moe_lab.runs.execute
import moe_lab.runs.jobs
from moe_lab.cli.main import main
from moe_lab.config.schema import Config
from moe_lab.methods import get_method
from moe_lab.models.facts import ModelFacts
from moe_lab.results.model import RunResult
from moe_lab.results.score_table import SeedGroup
from moe_lab.runs import outcomes, plan
from moe_lab.runs.run import Run
from tests.support.requests import generating
from tests.support.runs import facts
from tests.support.stored_results import block_of


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def folders(self) -> list[Path]:
        """The folders of the runs whose results.json it prints."""
        return [
            Path(line).parent for line in self.out.splitlines() if line.endswith("results.json")
        ]

    @property
    def results(self) -> list[dict[str, Any]]:
        """The content of these results.json."""
        return [json.loads((folder / "results.json").read_text()) for folder in self.folders]


def run_command(capsys: pytest.CaptureFixture[str], *argv: str) -> Ended:
    """The command line in this process."""
    capsys.readouterr()
    code = main(list(argv))
    captured = capsys.readouterr()
    return Ended(code, captured.out, captured.err)


@dataclass
class Forked:
    """The command line in a process of its own, which has everything imported already.

    `folder` is its working folder; its output goes through files there.
    """

    folder: Path
    argv: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.files = [self.folder / f"forked.{name}" for name in ("out", "err")]
        self.process = multiprocessing.get_context("fork").Process(target=self._run)
        self.process.start()

    def _run(self) -> None:
        os.environ |= self.environment
        os.chdir(self.folder)
        for stream, file in enumerate(self.files, 1):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        # pytest has replaced the streams
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        sys.exit(main(list(self.argv)))

    def ended(self) -> Ended:
        """How it ended; waits for it."""
        self.process.join(300)
        return Ended(self.process.exitcode, *(file.read_text() for file in self.files))


def exit_code(function: Callable[..., Any], *args: Any) -> int | None:
    """The exit code of a process that is forked from this one and calls the function.

    Minus the signal where a signal kills it.
    """
    process = multiprocessing.get_context("fork").Process(target=function, args=args)
    process.start()
    process.join(120)
    return process.exitcode


def run_forked(folder: Path, *argv: str, **environment: str) -> Ended:
    """How the command line ends in a process of its own."""
    return Forked(folder, argv, environment).ended()


@dataclass
class FakeRun:
    """What the grid reads of a `moe_lab.runs.run.Run`."""

    config: Config
    done: bool = False
    measured: bool = True
    baseline: None = None
    compared_runs: dict = field(default_factory=dict)
    num_documents: int = 10
    judges: tuple = ()
    facts: ModelFacts = field(default_factory=facts)
    tasks: None = None
    samples: None = None

    @property
    def method(self) -> Any:
        return get_method(self.config.method.name)(self.config.method)

    @property
    def run_id(self) -> str:
        config = self.config
        seed = config.seed if config.method.name == "roe" else 0
        return f"{config.model.name}-{config.method.name}-{config.task.name}-{seed}"

    @property
    def folder(self) -> Path:
        return Path(self.config.output_dir) / "runs" / self.run_id

    def stored(self) -> RunResult | None:
        return fake_results(self) if self.done else None

    def check_free(self) -> None:
        """No other process works on it."""

    stored_metrics = Run.stored_metrics


@dataclass
class FakeOutcome:
    """What the grid reads of a `moe_lab.runs.run.Outcome`."""

    run: FakeRun
    results: RunResult
    path: Path
    stored: bool = False


@dataclass
class FakeRuns:
    """Replaces `prepare` and `execute`; `errors` maps a run id to what its execution raises."""

    errors: dict[str, BaseException] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    executed: list[str] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)
    summarized: list[str] = field(default_factory=list)
    asked: list[Config] = field(default_factory=list)
    """Of every run that is executed or read."""

    def prepare(self, config: Config) -> FakeRun:
        run = FakeRun(config)
        run.done = run.run_id in self.done
        self.prepared.append(run.run_id)
        return run

    def execute(self, run: FakeRun, models: Any, *, begin: Any = None) -> FakeOutcome:
        self.asked.append(run.config)
        if run.run_id in self.errors:
            raise self.errors[run.run_id]
        if run.run_id not in self.done:
            self.executed.append(run.run_id)
            self.done.add(run.run_id)
        return FakeOutcome(run, fake_results(run), run.folder / "results.json")

    def summarize(self, outcomes: list[FakeOutcome], repeated: list[list[str]]) -> list[SeedGroup]:
        self.summarized = [outcome.run.run_id for outcome in outcomes]
        return [SeedGroup([outcome.results]) for outcome in outcomes]


def fake_results(run: FakeRun) -> RunResult:
    """A results.json of a partial run with one task."""
    config = run.config
    task = str(config.task.name)
    block = block_of(config.method.name, task, documents=range(10)) | {
        "run_id": run.run_id,
        "partial": True,
        "model": {"name": config.model.name},
        "overrides": config.overrides,
        "seed": config.seed,
        "cost": {
            "wall_seconds": 2.0,
            "load_seconds": 1.0,
            "tokens_in": 100,
            "tokens_out": 20,
            "tokens_per_second": 60.0,
            "peak_memory_bytes": 2**20,
            "device": "cpu",
        },
        "intervals": {task: {"acc,none": [0.2373, 0.7627]}},
    }
    if config.method.name != "base":
        paired = {"n": 10, "difference": 0.1, "ci95": [-0.1, 0.3], "p_mcnemar": 0.31}
        block |= {
            "untuned": True,
            "baseline": {"run_id": "b", "results": {task: {"acc,none": 0.4}}},
            "paired": {task: {"acc,none": paired}},
            "roe": {"n": 32, "temperatures": [0.0, 0.1, 0.0], "changed_fraction": 0.18},
        }
    scores = {task: {"alias": task, "acc,none": 0.5, "acc_stderr,none": 0.1}}
    return RunResult({"results": scores, "moe_lab": block}, run.folder)


ASKED = generating(10, prompt=101, new=0)
"""1,000 tokens for a clean ensemble of any size."""


def fake_state(run: FakeRun) -> tuple[str, float]:
    """`moe_lab.runs.planning.state.run_state` of a run without a folder."""
    return ("done", 0.0) if run.done and not run.config.rerun else ("missing", 1.0)


def install(monkeypatch: pytest.MonkeyPatch, runs: FakeRuns) -> FakeRuns:
    """Put the stand-ins in the place of `moe_lab.runs.run`'s functions."""
    monkeypatch.setattr(moe_lab.runs.jobs, "prepare", runs.prepare)
    monkeypatch.setattr(moe_lab.runs.execute, "execute", runs.execute)
    monkeypatch.setattr(outcomes, "summarize", runs.summarize)
    monkeypatch.setattr(plan, "workload_of", lambda run: ASKED)
    monkeypatch.setattr(plan, "run_state", lambda run, config: fake_state(run))
    return runs
