"""`mode=plan`: the runs to compute, the stored runs, and the remaining work."""

from collections.abc import Mapping, Sequence

import pandas as pd
from pandas import DataFrame

from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_line
from moe_lab.methods import get_method
from moe_lab.methods.method import TrainingMethod
from moe_lab.methods.references.reference_method import ReferenceMethod
from moe_lab.reports.columns import Shown, TableWithNotes, print_table
from moe_lab.reports.config_settings import settings_of, with_counts
from moe_lab.results.folder import why_not_writable
from moe_lab.runs.jobs import PROFILE, Job, distinct_runs, with_baselines
from moe_lab.runs.planning.disk import Budget
from moe_lab.runs.planning.memory import planned_memory
from moe_lab.runs.planning.memory_notes import memory_notes
from moe_lab.runs.planning.rows import NAMES, Row, columns_of
from moe_lab.runs.planning.state import evaluations_left, run_state
from moe_lab.runs.planning.workload import workload_of
from moe_lab.runs.run import Run
from moe_lab.runs.tuning.study import Study
from moe_lab.tasks.lm_eval_versions.documents import evaluated_documents
from moe_lab.tasks.workload import Workload, workload_of_tasks

Refused = Mapping[str, Sequence[Config]]
"""Configurations that cannot run, by reason."""


class Plan(Shown):
    """The runs and studies of a command, and what is left of them.

    `notes` has the sums, and why configurations cannot run, a sentence each.
    """

    def __init__(self, jobs: Sequence[Job], refused: Refused | None = None):
        """The plan of some jobs, baselines included. Loads no weights."""
        self.refused = refused or {}
        self.exit_code = 0
        self.rows: list[Row] = []
        self.budget = Budget()
        self.missing = 0
        """Runs to do."""
        self.studies = 0
        """Studies to do."""
        self.tokens = 0
        """Forward tokens of these runs and studies."""
        self.trainings: dict[str, tuple[int, int]] = {}
        """Optimizer steps and tokens by model folder."""
        self.training_notes: list[str] = []
        self.references: dict[str, float] = {}
        """Forward tokens by name."""
        waiting = [job for job in jobs if not job.runs]
        after_training = [job for job in waiting if job.trainings]
        after_tuning = [job for job in waiting if not job.trainings]
        self.unknown = _unknown_work(after_training)
        """The work that is not in the sums."""

        for study in _distinct_studies(jobs):
            self._add_study(study)
        for job in after_training:
            self._add_trainings(job)
        baselines = self._add_tuned(after_tuning)
        for run in with_baselines([*baselines, *distinct_runs(jobs)]):
            self._add_run(run, workload_of(run))
        for number, configs in enumerate(self.refused.values(), start=1):
            for config in configs:
                state = f"cannot run ({number})"
                self.rows.append(Row(config=config, seed=_seed(config), state=state))

    def frame(self) -> DataFrame:
        """One row per run and study, those that others are compared with included.

        Columns: `run` (the first 8 digits of its id; missing before it has one), `model`, `weights`
        (`model.path`), `method`, `task`, `seed` (as text: a tuned run has several), the settings
        that differ, `examples`, `tokens` (estimated forward tokens that are left), `gpu_memory`
        (planned bytes; missing for embedded models), `state` ("done", "missing", ...). What is not
        known before a study or a training is missing.
        """
        configs = [row.config for row in self.rows]
        settings = settings_of(configs, configs)
        lines = []
        for row, row_settings in zip(self.rows, settings, strict=True):
            # false of the runs that others are compared with
            row_settings.pop("baseline", None)
            lines.append(
                {
                    "run": row.run,
                    **row.names,
                    **row_settings,
                    "examples": row.examples,
                    "tokens": row.tokens,
                    "gpu_memory": row.gpu_memory,
                    "state": row.state,
                }
            )
        counts = ["examples", "tokens", "gpu_memory"]
        frame = pd.DataFrame(lines)
        if not lines:  # an experiment without runs
            frame = pd.DataFrame(columns=["run", *NAMES, *counts, "state"])
        return with_counts(frame, settings).astype(dict.fromkeys(counts, "Int64"))

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.rows)

    def _add_study(self, study: Study) -> None:
        """A row for a study, whose missing trials are counted."""
        config = study.config
        tasks = study.tasks["tasks"]
        documents = {}
        for name, task in tasks.items():
            documents[name] = list(range(len(evaluated_documents(task))))
        workload = workload_of_tasks(
            tasks, documents, config, right_answers=study.search.metric == "perplexity"
        )
        finished = study.finished()
        total = study.search.n_trials
        tokens_of_trial = study.method.forward_tokens(workload, config, study.facts)
        # at most: trials share cached activations
        tokens = round(max(0, total - finished) * tokens_of_trial)
        state = "done"
        if finished < total:
            state = f"{finished} of {total} trials"
            self.studies += 1
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
                state=state,
                gpu_memory=planned_memory(study, workload),
            )
        )

    def _add_trainings(self, job: Job) -> None:
        """The trainings of a job's models, and the runs after them, which have no id yet."""
        for training in job.trainings:
            self.trainings |= training.left()
            self.budget.add(training, trains=True)
        self.missing += job.coming
        seed = f"{job.coming} after training"
        self.rows.append(Row(config=job.config, seed=seed, state="missing"))

    def _add_tuned(self, jobs: Sequence[Job]) -> list[Run]:
        """The runs after the jobs' studies, which have no id yet.

        Returns the base runs that they are compared with.
        """
        baselines: list[Run] = []
        controls: set[str] = set()
        for job in jobs:
            expected = job.expected_runs()
            self._add_coming(job.config, expected, repeats=job.coming // len(expected))
            baselines += [run.baseline for run in expected if run.baseline is not None]
            for name in expected[0].comparisons:
                # several jobs may have one control: the calibration of a shared study
                new: dict[str, Run] = {}
                for run in expected:
                    control = run.comparisons[name]
                    if control.run_id not in controls:
                        new[control.run_id] = control
                controls.update(new)
                if new:
                    runs = list(new.values())
                    self._add_coming(runs[0].config, runs, repeats=1)
        return baselines

    def _add_coming(self, config: Config, expected: Sequence[Run], repeats: int) -> None:
        """A line for runs after studies: `repeats` runs like each of `expected`."""
        tokens = 0.0
        for run in expected:
            of_evaluation = run.method.forward_tokens(workload_of(run), run.config, run.facts)
            tokens += repeats * of_evaluation * (1 + evaluations_left(run))
            self.budget.add(run)
        number = repeats * len(expected)
        self.missing += number
        self.tokens += round(tokens)
        self.rows.append(
            Row(
                config=config,
                seed=f"{number} after tuning",
                state="missing",
                examples=expected[0].num_documents,
                tokens=round(tokens),
                gpu_memory=planned_memory(expected[0], workload_of(expected[0])),
            )
        )

    def _add_run(self, run: Run, workload: Workload) -> None:
        """A row for a run, whose missing answers, training and references are counted."""
        config = run.config
        method = run.method
        state, share = run_state(run, workload)
        evaluations = share + evaluations_left(run)
        tokens = round(method.forward_tokens(workload, config, run.facts) * evaluations)
        self.tokens += tokens
        is_done = state == "done"
        one_device = None
        if not is_done:
            self.missing += 1
            if isinstance(method, ReferenceMethod):
                self.references |= method.references_left(config, run.facts)
            if isinstance(method, TrainingMethod):
                one_device = self._add_training(method, run)
        trains = isinstance(method, TrainingMethod) and not is_done
        self.budget.add(run, trains=trains)
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

    def _add_training(self, method: TrainingMethod, run: Run) -> str | None:
        """Count what is left of the training of a run's model.

        Returns why the training has to fit on one device (`Row.one_device`); None if it need not,
        or if nothing is left of it.
        """
        training_left = method.training_left(run.config, run.facts)
        if not training_left:
            return None
        self.trainings |= training_left
        self.training_notes += method.training_notes(run.config, run.facts)
        return method.one_device

    def print(self) -> None:
        """Print a row per study and run, and the remaining work and disk space."""
        columns, lines = self._table_with_notes()
        print_table("Plan", columns)
        for line in lines:
            print_line(line)

    def _table_with_notes(self) -> TableWithNotes:
        return TableWithNotes(columns_of(self.rows), self.notes)

    @property
    def notes(self) -> list[str]:
        """The sums, and the reasons why some configurations cannot run."""
        notes = [self._sum()]
        if self.references:
            tokens = sum(self.references.values())
            notes.append(
                f"Reference sets to make: {len(self.references)}, "
                f"about {tokens:,.0f} forward tokens."
            )
        if self.trainings:
            steps = sum(steps for steps, _ in self.trainings.values())
            tokens = sum(tokens for _, tokens in self.trainings.values())
            notes.append(
                f"To train: {len(self.trainings)}, {steps:,} optimizer steps "
                f"over about {tokens:,} tokens."
            )
            notes += dict.fromkeys(self.training_notes)
        if self.missing or any(row.tokens for row in self.rows):
            notes += self.budget.lines()
        notes += memory_notes(self.rows)
        if self.missing or self.studies:
            reason = why_not_writable(self.rows[0].config.output_dir)
            if reason is not None:
                notes.append(f"{reason}: to run this, choose another output_dir=.")
        for number, reason in enumerate(self.refused, start=1):
            notes.append(f"({number}) {reason}")
        return notes

    def _sum(self) -> str:
        """The runs and studies to do, and their tokens."""
        to_run = str(self.missing)
        if self.studies == 1:
            to_run += " and 1 study"
        elif self.studies > 1:
            to_run += f" and {self.studies} studies"
        text = f"To run: {to_run}, about {self.tokens:,} forward tokens{self.unknown}."
        refused = sum(map(len, self.refused.values()))
        if refused:
            text += f" Cannot run: {refused}."
        return text


def _unknown_work(after_training: Sequence[Job]) -> str:
    """What is known only when the models are trained, as the end of a sentence; empty without
    trainings."""
    if not after_training:
        return ""
    text = " and what follows the trainings"
    if any(job.config.tuning.name != "none" for job in after_training):
        text += " and the studies"
    return text


def _distinct_studies(jobs: Sequence[Job]) -> list[Study]:
    """The studies of the jobs, each id once."""
    studies: dict[str, Study] = {}
    for job in jobs:
        for study in job.studies:
            studies[study.study_id] = study
    return list(studies.values())


def _seed(config: Config) -> str | None:
    """The seed of a configuration that cannot run; None for a method without randomness."""
    # a method cannot be created before the study has found its temperatures
    is_untuned = getattr(config.method, "temperature", None) == PROFILE
    if is_untuned or get_method(config.method.name)(config.method).random:
        return str(config.seed)
    return None
