"""`mode=plan`: the runs to compute, the stored runs, and the remaining work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
from pandas import DataFrame

from moe_lab.config.schema import Config, TuningConfig
from moe_lab.errors import MoeLabError
from moe_lab.methods import get_method
from moe_lab.methods.method import TrainingMethod
from moe_lab.metrics.registry import evaluations
from moe_lab.models.facts import resolve_device
from moe_lab.models.memory import free_memory
from moe_lab.models.tokenizer import load_tokenizer
from moe_lab.reports.columns import Column, Shown, count, numbers, print_table, texts
from moe_lab.reports.frames import settings_of, with_counts
from moe_lab.reports.scores import settings
from moe_lab.results.logs import answers_in
from moe_lab.runs.budget import (
    GIGABYTE,
    GPU,
    USABLE,
    Budget,
    gpu_memory,
    gpus_for,
    planned_memory,
    study_workload,
    workload_of,
)
from moe_lab.runs.jobs import PROFILE, Job, distinct_runs, runs_of, with_baselines
from moe_lab.runs.prepare import check_code_execution, check_router, facts_of
from moe_lab.runs.run import Run
from moe_lab.runs.tuning.study import Study
from moe_lab.tasks.judges import judges_of
from moe_lab.tasks.loading import load_tasks
from moe_lab.tasks.requests import Workload

Refused = Mapping[str, Sequence[Config]]
"""Configurations that cannot run, by reason."""


@dataclass(frozen=True)
class Row:
    """A line of the plan."""

    run: str
    """The first eight characters of its id; a dash if it has no id yet."""
    config: Config
    names: list[str]
    """Model, method, task and seed."""
    documents: int | None
    tokens: int | None
    """Forward tokens still to compute; of a study at most (trials share what does not depend on them)."""
    state: str
    memory: int | None = None
    """Planned bytes of GPU memory; None for embedded models, and for runs without an id."""


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
        self.missing = self.tokens = 0
        self.trainings: dict[str, tuple[int, int]] = {}
        """Optimizer steps and tokens by model folder."""
        self.references: dict[str, float] = {}
        """Forward tokens by name."""
        later = [job for job in jobs if not job.runs]
        self.first = ""
        """What precedes runs."""
        if any(job.trainings for job in later):
            self.first += " and what follows the trainings"
        if any(job.studies or job.config.tuning.name != "none" for job in later):
            self.first += " and the studies"
        for study in {study.study_id: study for job in jobs for study in job.studies}.values():
            self._add_study(study)
        for job in later:
            self._add_coming(job)
        for run in with_baselines(distinct_runs(jobs)):
            self._add_run(run, workload_of(run))
        for number, configs in enumerate(self.refused.values(), start=1):
            state = f"cannot run ({number})"
            self.rows += [Row("-", config, _names(config), None, None, state) for config in configs]

    def frame(self) -> DataFrame:
        """One row per run and study, those that others are compared with included.

        Columns: `run` (the first 8 digits of its id; missing before it has one), `model`, `weights` (`model.path`),
        `method`, `task`, `seed` (as text: a tuned run has several), the settings that differ, `examples`, `tokens`
        (estimated forward tokens that are left), `gpu_memory` (planned bytes; missing for embedded models), `state`
        ("done", "missing", ...). What is not known before a study or a training is missing.
        """
        rows = []
        configs = [row.config for row in self.rows]
        settings = settings_of(configs, configs)
        for own in settings:
            own.pop("baseline", None)  # false of the runs that others are compared with
        for row, own in zip(self.rows, settings, strict=True):
            model, method, task, seed = row.names
            rows.append(
                {
                    "run": None if row.run == "-" else row.run,
                    "model": model,
                    "weights": row.config.model.path,
                    "method": method,
                    "task": task,
                    "seed": None if seed == "-" else seed,
                    **own,
                    "examples": row.documents,
                    "tokens": row.tokens,
                    "gpu_memory": row.memory,
                    "state": row.state,
                }
            )
        frame = with_counts(pd.DataFrame(rows), settings)
        return frame.astype(dict.fromkeys(("examples", "tokens", "gpu_memory"), "Int64"))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def notes(self) -> list[str]:
        """The sums, and the reasons why some configurations cannot run."""
        reasons = (f"({number}) {reason}" for number, reason in enumerate(self.refused, start=1))
        return [*_sums(self), *reasons]

    def _add_study(self, study: Study) -> None:
        finished, total = study.finished(), study.search.n_trials
        workload, config = study_workload(study), study.config
        tokens = study.method.forward_tokens(workload, config, study.facts)
        left = round(max(0, total - finished) * tokens)  # at most: trials share cached activations
        names = _names(config)
        names[1] += ", tuning"
        documents = sum(map(len, study.samples.values()))
        state = "done" if finished >= total else f"{finished} of {total} trials"
        memory = planned_memory(study, workload)
        self.budget.add(study)
        self.rows.append(Row(study.study_id[:8], config, names, documents, left, state, memory))

    def _add_coming(self, job: Job) -> None:
        """The trainings of a job's models, and the runs after them or after its studies, which have no id yet."""
        names = [*_names(job.config)[:3], f"{job.coming} after {'training' if job.trainings else 'tuning'}"]
        documents = tokens = memory = None
        for training in job.trainings:
            self.trainings |= training.left()
            self.budget.add(training, trains=True)
        if not job.trainings:
            config = job.evaluated or job.studies[0].evaluated
            method: Any = config.method
            if (search := job.studies[0].search).grid is None and search.tuning != "scale":
                method = replace(method, temperature=1.0)  # a placeholder
            [run] = runs_of(replace(config, method=method, tuning=TuningConfig(), baseline=False, seeds=1))
            workload = workload_of(run)
            tokens = round(job.coming * run.method.forward_tokens(workload, run.config, run.facts))
            documents, memory = run.num_documents, planned_memory(run, workload)
            self.budget.add(run)
        self.missing += job.coming
        self.tokens += tokens or 0
        self.rows.append(Row("-", job.config, names, documents, tokens, "missing", memory))

    def _add_run(self, run: Run, workload: Workload) -> None:
        config, method = run.config, run.method
        state, share = run_state(run, workload)
        missing = state != "done"
        again = evaluations() if config.metrics == "expert" and method.expert_metrics == "all" else 0
        measured = run.measured and not config.rerun
        tokens = round(method.forward_tokens(workload, config, run.facts) * (share + again * (not measured)))
        if missing:
            self.references |= method.references_left(config, run.facts)
            if isinstance(method, TrainingMethod):
                self.trainings |= method.training_left(config, run.facts)
        self.missing += missing
        self.tokens += tokens
        self.budget.add(run, trains=missing and isinstance(method, TrainingMethod))
        memory = planned_memory(run, workload)
        row = Row(run.run_id[:8], config, _names(config), run.num_documents, tokens, state, memory)
        self.rows.append(row)

    def print(self) -> None:
        """Print a row per study and run, baselines included, and the remaining work and disk space."""
        columns, lines = self._columns()
        print_table("Plan", columns)
        for line in lines:
            print(line)

    def _columns(self) -> tuple[list[Column], list[str]]:
        rows = self.rows
        labels = settings([row.config.overrides for row in rows], [0] * len(rows))
        model, method, task, seed = ([row.names[index] for row in rows] for index in range(4))
        named = {
            "run": [row.run for row in rows],
            "model": model,
            "weights": [row.config.model.path or "" for row in rows],
            "method": method,
            "task": task,
            "seed": seed,
            "settings": labels,
        }
        memory = [row.memory and row.memory / GIGABYTE for row in rows]
        columns = [
            *(Column(heading=heading, cells=cells, name=True) for heading, cells in named.items()),
            numbers("documents", [row.documents for row in rows], count, spare=2),
            numbers("forward tokens left (estimated)", [row.tokens for row in rows], count),
            numbers("memory (GB)", memory, "{:.3g}".format, spare=1),
            texts("state", [row.state for row in rows]),
        ]
        return columns, self.notes


def run_state(run: Run, workload: Workload) -> tuple[str, float]:
    """(the state in words, the share of the answers that is left to compute). Only reads the run's folder."""
    if run.done and not run.config.rerun:
        if run.measured:
            return "done", 0.0
        stored = run.stored()
        if stored is not None and stored.older_intervals:
            return "intervals to make anew", 0.0
        return "metrics missing", 0.0
    name = "responses.rerun.jsonl" if run.config.rerun else "responses.jsonl"
    held, answered = run.store.is_held(), answers_in(run.folder / name, run.answers_header)
    if not held and not answered:
        return "missing", 1.0
    word = "running" if held else "failed" if (run.folder / "status.json").exists() else "interrupted"
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


def _sums(plan: Plan) -> list[str]:
    impossible = sum(map(len, plan.refused.values()))
    cannot = f" Cannot run: {impossible}." if impossible else ""
    lines = [f"To run: {plan.missing}, about {plan.tokens:,} forward tokens{plan.first}.{cannot}"]
    if plan.references:
        tokens = sum(plan.references.values())
        lines.append(f"Reference sets to make: {len(plan.references)}, about {tokens:,.0f} forward tokens.")
    if plan.trainings:
        steps, tokens = (sum(work) for work in zip(*plan.trainings.values(), strict=True))
        lines.append(
            f"To train: {len(plan.trainings)}, {steps:,} optimizer steps over about {tokens:,} tokens."
        )
    unfinished = plan.missing or any(row.tokens for row in plan.rows)
    return [*lines, *(plan.budget.lines() if unfinished else []), *_memory(plan)]


def _memory(plan: Plan) -> list[str]:
    """What the largest run takes on GPUs, and how models of different sizes share GPUs."""
    largest = max(plan.rows, key=lambda row: row.memory or 0, default=None)
    if largest is None or largest.memory is None:
        return []
    gpu, device = min(gpu_memory(), default=GPU), resolve_device(largest.config.device)
    return [
        f"GPU memory: at most {largest.memory / GIGABYTE:,.3g} GB ({' '.join(largest.names[:3])}), which takes "
        f"{gpus_for(largest.memory, gpu)} of {gpu / GIGABYTE:,.0f} GB. Planned with passes of 2,048 tokens; larger "
        f"ones take free memory only. {1 - USABLE:.0%} of a GPU is left for its context, kernels and fragmentation. "
        f"Free here, on {device}: {free_memory(device) / GIGABYTE:,.3g} GB."
    ]


def task_name(config: Config) -> str:
    """The task's name, or its tasks' names joined by commas."""
    name = config.task.name
    return name if isinstance(name, str) else ",".join(name)


def _names(config: Config) -> list[str]:
    """Model, method, task and seed; the seed is a dash for a method without randomness."""
    # a method cannot be created before the study has found its temperatures
    untuned = getattr(config.method, "temperature", None) == PROFILE
    random = untuned or get_method(config.method.name)(config.method).random
    return [config.model.name, config.method.name, task_name(config), str(config.seed) if random else "-"]
