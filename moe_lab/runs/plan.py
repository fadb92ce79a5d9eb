"""`mode=plan`: the runs to compute, the stored runs, and the remaining work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import pandas as pd
from pandas import DataFrame

from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_line
from moe_lab.errors import MoeLabError
from moe_lab.methods import get_method
from moe_lab.methods.method import TrainingMethod
from moe_lab.methods.references.reference_method import ReferenceMethod
from moe_lab.metrics.registry import evaluations
from moe_lab.models.facts import resolve_device
from moe_lab.models.memory import free_memory
from moe_lab.models.tokenizer import load_tokenizer
from moe_lab.reports.columns import Column, Shown, count, numbers, print_table, texts
from moe_lab.reports.config_settings import settings_of, with_counts
from moe_lab.reports.labels import settings
from moe_lab.results.folder import why_not_writable
from moe_lab.results.response_log import answers_in
from moe_lab.runs.budget import (
    GIGABYTE,
    GPU,
    USABLE,
    Budget,
    gpu_memory,
    planned_memory,
    workload_of,
)
from moe_lab.runs.jobs import PROFILE, Job, distinct_runs, with_baselines
from moe_lab.runs.prepare import check_code_execution, check_router, facts_of
from moe_lab.runs.run import Run
from moe_lab.runs.tuning.study import Study
from moe_lab.tasks.judges import judges_of
from moe_lab.tasks.lm_eval_versions.documents import evaluated_documents
from moe_lab.tasks.loading import load_tasks
from moe_lab.tasks.workload import Workload, workload_of_tasks

NAMES = {"model": "", "weights": "", "method": "", "task": "", "seed": "-"}
"""Columns with names, and what an empty cell of each shows."""
Refused = Mapping[str, Sequence[Config]]
"""Configurations that cannot run, by reason."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of the plan. What is not known before a study or a training is None."""

    config: Config
    state: str
    run: str | None = None
    """The first eight characters of its id."""
    method: str | None = None
    """In the place of the configuration's method."""
    seed: str | None = None
    """None: of a method without randomness."""
    examples: int | None = None
    tokens: int | None = None
    """Forward tokens still to compute; of a study at most (trials share what does not depend on them)."""
    gpu_memory: int | None = None
    """Planned bytes; None for embedded models."""
    one_device: str | None = None
    """Why a training has to fit on one device (`TrainingMethod.one_device`)."""

    @property
    def names(self) -> dict[str, str | None]:
        """Model, weights, method, task and seed."""
        config = self.config
        return {
            "model": config.model.name,
            "weights": config.model.path,
            "method": self.method or config.method.name,
            "task": task_name(config),
            "seed": self.seed,
        }


class Plan(Shown):
    """The runs and studies of a command, and what is left of them.

    `notes` has the sums, and why configurations cannot run, a sentence each.
    """

    def __init__(self, jobs: Sequence[Job], refused: Refused | None = None):
        """Of some jobs, baselines included. Loads no weights."""
        self.refused = refused or {}
        self.exit_code = 0
        self.rows: list[Row] = []
        self.budget = Budget()
        self.missing = self.studies = self.tokens = 0
        """Runs and studies to do, and their forward tokens."""
        self.trainings: dict[str, tuple[int, int]] = {}
        """Optimizer steps and tokens by model folder."""
        self.training_notes: list[str] = []
        self.references: dict[str, float] = {}
        """Forward tokens by name."""
        later = [job for job in jobs if not job.runs]
        trained = [job for job in later if job.trainings]
        self.unknown = ""
        """The work that is not in the sums."""
        if trained:
            tuned = any(job.config.tuning.name != "none" for job in trained)
            self.unknown = " and what follows the trainings" + " and the studies" * tuned
        for study in {study.study_id: study for job in jobs for study in job.studies}.values():
            self._add_study(study)
        for job in trained:
            self._add_trainings(job)
        runs = self._add_tuned([job for job in later if not job.trainings])
        for run in with_baselines([*runs, *distinct_runs(jobs)]):
            self._add_run(run, workload_of(run))
        for number, configs in enumerate(self.refused.values(), start=1):
            self.rows += [
                Row(config=config, seed=_seed(config), state=f"cannot run ({number})")
                for config in configs
            ]

    def frame(self) -> DataFrame:
        """One row per run and study, those that others are compared with included.

        Columns: `run` (the first 8 digits of its id; missing before it has one), `model`, `weights` (`model.path`),
        `method`, `task`, `seed` (as text: a tuned run has several), the settings that differ, `examples`, `tokens`
        (estimated forward tokens that are left), `gpu_memory` (planned bytes; missing for embedded models), `state`
        ("done", "missing", ...). What is not known before a study or a training is missing.
        """
        counts = ("examples", "tokens", "gpu_memory")
        configs = [row.config for row in self.rows]
        settings = settings_of(configs, configs)
        for own in settings:
            own.pop("baseline", None)  # false of the runs that others are compared with
        frame = pd.DataFrame(
            {
                "run": row.run,
                **row.names,
                **own,
                **{name: getattr(row, name) for name in (*counts, "state")},
            }
            for row, own in zip(self.rows, settings, strict=True)
        )
        return with_counts(frame, settings).astype(dict.fromkeys(counts, "Int64"))

    def __len__(self) -> int:
        return len(self.rows)

    def _add_study(self, study: Study) -> None:
        finished, total = study.finished(), study.search.n_trials
        config, tasks = study.config, study.tasks["tasks"]
        documents = {
            name: list(range(len(evaluated_documents(task)))) for name, task in tasks.items()
        }
        workload = workload_of_tasks(
            tasks, documents, config, right_answers=study.search.metric == "perplexity"
        )
        each = study.method.forward_tokens(workload, config, study.facts)
        tokens = round(max(0, total - finished) * each)  # at most: trials share cached activations
        self.studies += finished < total
        self.tokens += tokens
        self.budget.add(study)
        self.rows.append(
            Row(
                run=study.study_id[:8],
                config=config,
                method=f"{config.method.name}, tuning",
                seed=str(config.seed) if study.method.random else None,
                examples=sum(map(len, study.samples.values())),
                tokens=tokens,
                state="done" if finished >= total else f"{finished} of {total} trials",
                gpu_memory=planned_memory(study, workload),
            )
        )

    def _add_trainings(self, job: Job) -> None:
        """The trainings of a job's models, and the runs after them, which have no id yet."""
        for training in job.trainings:
            self.trainings |= training.left()
            self.budget.add(training, trains=True)
        self.missing += job.coming
        self.rows.append(
            Row(config=job.config, seed=f"{job.coming} after training", state="missing")
        )

    def _add_tuned(self, jobs: Sequence[Job]) -> list[Run]:
        """The runs after the jobs' studies, which have no id yet. Returns the base runs that they are compared with."""
        baselines: list[Run] = []
        controls: dict[str, Run] = {}
        for job in jobs:
            expected = job.expected_runs()
            self._add_coming(job.config, expected, job.coming // len(expected))
            baselines += [run.baseline for run in expected if run.baseline is not None]
            for name in expected[0].comparisons:
                # several jobs may have one control: the calibration of a shared study
                new = {run.comparisons[name].run_id: run.comparisons[name] for run in expected}
                new = {run_id: run for run_id, run in new.items() if run_id not in controls}
                controls |= new
                if new:
                    runs = list(new.values())
                    self._add_coming(runs[0].config, runs, 1)
        return baselines

    def _add_coming(self, config: Config, expected: Sequence[Run], each: int) -> None:
        """A line for runs after studies: `each` runs like every one of `expected`."""
        tokens = 0.0
        for run in expected:
            workload = workload_of(run)
            tokens += (
                each
                * run.method.forward_tokens(workload, run.config, run.facts)
                * (1 + _evaluations_left(run))
            )
            self.budget.add(run)
        count = each * len(expected)
        self.missing += count
        self.tokens += round(tokens)
        self.rows.append(
            Row(
                config=config,
                seed=f"{count} after tuning",
                state="missing",
                examples=expected[0].num_documents,
                tokens=round(tokens),
                gpu_memory=planned_memory(expected[0], workload_of(expected[0])),
            )
        )

    def _add_run(self, run: Run, workload: Workload) -> None:
        config, method = run.config, run.method
        state, share = run_state(run, workload)
        missing = state != "done"
        share += _evaluations_left(run)
        tokens = round(method.forward_tokens(workload, config, run.facts) * share)
        one_device = None
        if missing:
            if isinstance(method, ReferenceMethod):
                self.references |= method.references_left(config, run.facts)
            if isinstance(method, TrainingMethod):
                left = method.training_left(config, run.facts)
                self.trainings |= left
                one_device = method.one_device if left else None
                if left:
                    self.training_notes += method.training_notes(config, run.facts)
        self.missing += missing
        self.tokens += tokens
        self.budget.add(run, trains=missing and isinstance(method, TrainingMethod))
        self.rows.append(
            Row(
                run=run.run_id[:8],
                config=config,
                seed=str(config.seed) if method.random else None,
                examples=run.num_documents,
                tokens=tokens,
                state=state,
                gpu_memory=planned_memory(run, workload),
                one_device=one_device,
            )
        )

    def print(self) -> None:
        """Print a row per study and run, baselines included, and the remaining work and disk space."""
        columns, lines = self._columns()
        print_table("Plan", columns)
        for line in lines:
            print_line(line)

    def _columns(self) -> tuple[list[Column], list[str]]:
        rows = self.rows
        labels = settings([row.config.overrides for row in rows], [0] * len(rows))
        named = {
            "run": [row.run or "-" for row in rows],
            **{key: [row.names[key] or empty for row in rows] for key, empty in NAMES.items()},
            "settings": labels,
        }
        memory = [row.gpu_memory and row.gpu_memory / GIGABYTE for row in rows]
        columns = [
            *(Column(heading=heading, cells=cells, name=True) for heading, cells in named.items()),
            numbers("documents", [row.examples for row in rows], count, spare=2),
            numbers("forward tokens left (estimated)", [row.tokens for row in rows], count),
            numbers("memory (GB)", memory, "{:.3g}".format, spare=1),
            texts("state", [row.state for row in rows]),
        ]
        return columns, self.notes

    @property
    def notes(self) -> list[str]:
        """The sums, and the reasons why some configurations cannot run."""
        impossible = sum(map(len, self.refused.values()))
        cannot = f" Cannot run: {impossible}." if impossible else ""
        studies = f" and {self.studies} {'study' if self.studies == 1 else 'studies'}" * (
            self.studies > 0
        )
        lines = [
            f"To run: {self.missing}{studies}, about {self.tokens:,} forward tokens{self.unknown}.{cannot}"
        ]
        if self.references:
            tokens = sum(self.references.values())
            lines.append(
                f"Reference sets to make: {len(self.references)}, about {tokens:,.0f} forward tokens."
            )
        if self.trainings:
            steps, tokens = (sum(work) for work in zip(*self.trainings.values(), strict=True))
            lines.append(
                f"To train: {len(self.trainings)}, {steps:,} optimizer steps over about {tokens:,} tokens."
            )
            lines += dict.fromkeys(self.training_notes)
        if self.missing or any(row.tokens for row in self.rows):
            lines += self.budget.lines()
        lines += self._memory_lines()
        if self.missing or self.studies:
            reason = why_not_writable(self.rows[0].config.output_dir)
            if reason is not None:
                lines.append(f"{reason}: to run this, choose another output_dir=.")
        return [
            *lines,
            *(f"({number}) {reason}" for number, reason in enumerate(self.refused, start=1)),
        ]

    def _memory_lines(self) -> list[str]:
        """The largest row and its GPUs, and the largest training that has to fit on one GPU and does not."""
        known = [row for row in self.rows if row.gpu_memory is not None]
        if not known:
            return []
        gpu = min(gpu_memory(), default=GPU)
        largest = max(known, key=_bytes_of)
        device = resolve_device(largest.config.device)
        lines = [
            f"GPU memory: at most {_of_run(largest)}, {_takes(largest, gpu)}. Free here, on {device}: "
            f"{free_memory(device) / GIGABYTE:,.3g} GB."
        ]
        alone = [row for row in known if row.one_device and _bytes_of(row) > USABLE * gpu]
        too_large = max(alone, key=_bytes_of, default=largest)
        if too_large is not largest:
            lines.append(
                f"GPU memory of a training: {_of_run(too_large)}, {_takes(too_large, gpu)}."
            )
        return lines


def _evaluations_left(run: Run) -> float:
    """How many times `metrics=expert` evaluates a run again, with masked and with random experts."""
    measures = run.config.metrics == "expert" and run.method.expert_metrics == "all"
    if measures and (run.config.rerun or not run.measured):
        return evaluations()
    return 0.0


def _seed(config: Config) -> str | None:
    """The seed of a configuration that cannot run, if its method has randomness."""
    # a method cannot be created before the study has found its temperatures
    untuned = getattr(config.method, "temperature", None) == PROFILE
    random = untuned or get_method(config.method.name)(config.method).random
    return str(config.seed) if random else None


def _bytes_of(row: Row) -> int:
    assert row.gpu_memory is not None
    return row.gpu_memory


def _of_run(row: Row) -> str:
    """The memory of a row, and its model and method."""
    size = _bytes_of(row) / GIGABYTE
    return f"{size:,.3g} GB (model={row.config.model.name} method={row.config.method.name})"


def _takes(row: Row, gpu: float) -> str:
    """The number of GPUs of `gpu` bytes that hold a row, or why none does."""
    count = ceil(_bytes_of(row) / (USABLE * gpu))
    one = f"{gpu / GIGABYTE:,.0f} GB"
    if count > 1 and row.one_device:
        return (
            f"which is too much for one GPU of {one}, and {row.one_device}. Use a GPU of at least "
            f"{_bytes_of(row) / USABLE / GIGABYTE:,.0f} GB"
        )
    return f"which takes {count} of {one} with {1 - USABLE:.0%} of each left over"


def run_state(run: Run, workload: Workload) -> tuple[str, float]:
    """(the state in words, the share of the answers that is left to compute). Only reads the run's folder."""
    if run.done and not run.config.rerun:
        return ("done" if run.measured else "metrics missing"), 0.0
    name = "responses.rerun.jsonl" if run.config.rerun else "responses.jsonl"
    held, answered = run.store.is_held(), answers_in(run.folder / name, run.answers_header)
    if not held and not answered:
        return "missing", 1.0
    word = (
        "running" if held else "failed" if (run.folder / "status.json").exists() else "interrupted"
    )
    requests = max(round(workload.requests), answered)
    return f"{word}, {answered:,} of {requests:,} answered", 1 - answered / requests


def lacks_of(config: Config, error: MoeLabError) -> list[str]:
    """Why a configuration cannot run: the reason of the error that preparing it raised, and all other lacks.

    The model, its tokenizer, the tasks, the judges and the method's own data are looked at one by one.
    """
    method = get_method(config.method.name)(config.method)

    def judges() -> None:
        for judge in judges_of(config, load_tasks(config)):
            judge.check()

    steps: list[Callable[[], Any]] = [
        lambda: check_router(method, facts_of(config)),
        lambda: method.check(facts_of(config)),
        lambda: load_tokenizer(config.model, offline=config.offline),
        lambda: check_code_execution(config, load_tasks(config)),
        judges,
        lambda: method.data_identity(config, facts_of(config)),
    ]
    reasons = [str(error)]
    for step in steps:
        try:
            step()
        except MoeLabError as other:
            if not any(str(other) in reason for reason in reasons):
                reasons.append(str(other))
    return reasons


def task_name(config: Config) -> str:
    """The task's name, or its tasks' names joined by commas."""
    name = config.task.name
    return name if isinstance(name, str) else ",".join(name)
