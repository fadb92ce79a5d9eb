"""The results of a command as an object: stored results, tables, data frames, a figure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_error, print_line, print_message
from moe_lab.errors import CONTINUES, ConfigError, RunHeldError, exit_code
from moe_lab.methods import get_method
from moe_lab.reports.columns import Shown, TableWithNotes
from moe_lab.reports.confidence import print_confidence
from moe_lab.reports.config_settings import settings_by_run
from moe_lab.reports.example_frame import example_frame
from moe_lab.reports.expert import print_expert_metrics
from moe_lab.reports.frames import score_frame
from moe_lab.reports.plotted import plotted
from moe_lab.reports.scores import CommandTable
from moe_lab.reports.several_answers import print_answers
from moe_lab.reports.terminal import notes, print_scores, print_studies
from moe_lab.runs.attempts import Failure
from moe_lab.runs.jobs import Job, distinct_runs, with_baselines
from moe_lab.runs.outcomes import results_with_metrics
from moe_lab.runs.run import Outcome, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

FOOTNOTES = 8
"""The largest number of lines of methods below the tables of a command."""


@dataclass(kw_only=True, eq=False, repr=False)
class Results(Shown, Sequence[dict[str, Any]]):
    """The results of a command's runs, in the order of its grid.

    Each one is the content of a results.json.

        results = moe_lab.run(["-m", "method=base,roe", "task=toy_choice", "limit=50"])
        results                      # the scores, as a table in a notebook
        results.frame()              # the same as a data frame, with every column
        results.examples()           # one row per example: prompt, answer, target, score
        results.plot()               # differences to the base model with 95% intervals
        results[0]["results"]        # lm-eval's own dictionary

    `runs` has the run of each, with its `config`, `run_id` and `folder`, where its files are;
    `missing` the folders of runs without a result (of `report`); `tables` with `experiment=` a data
    frame for each table, by name: the coordinates of its cells, columns as those of `frame`, and
    `published`, the paper's number.
    """

    jobs: Sequence[Job] = ()
    outcomes: Sequence[Outcome] = ()
    """The results of the jobs' runs, each once."""
    failures: Sequence[Failure] = ()
    refused: Sequence[BaseException] = ()
    """The errors of cells of an experiment that cannot run."""
    studies: Sequence[Path] = ()
    """Folders of studies that are shown."""
    table: CommandTable = field(default_factory=lambda: CommandTable([]))
    tables: dict[str, DataFrame] = field(default_factory=dict)
    """The tables of experiments, by name."""
    files: Sequence[Path] = ()
    """What is printed last."""
    alone: bool = False
    """Whether there is one run at most, whose failure is printed without its name."""
    code: int | None = None
    """The exit code of a process of torchrun that followed process 0; None in any other process."""

    @property
    def exit_code(self) -> int:
        """0 without failures; of a single run that of its error.

        Of several runs it is 130 or 143 if the command was interrupted, else 1 if a run failed,
        else 3: another process held a run.
        """
        if self.code is not None:
            return self.code
        errors = [*self.refused, *(failure.error for failure in self.failures)]
        if not errors:
            return 0
        if self.alone:
            return exit_code(errors[0])
        for error in errors:
            if isinstance(error, KeyboardInterrupt):
                return exit_code(error)
        if all(isinstance(error, RunHeldError) for error in errors):
            return RunHeldError.exit_code
        return 1

    @property
    def configs(self) -> dict[str, Config]:
        """The configurations of the runs and of those that they are compared with, by run id."""
        runs = with_baselines([outcome.run for outcome in self.outcomes])
        return {run.run_id: run.config for run in runs}

    def __len__(self) -> int:
        """The number of results."""
        return len(self.outcomes)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        contents = [dict(outcome.results.content) for outcome in self.outcomes]
        return contents[index]

    @property
    def runs(self) -> list[Run]:
        """The runs that have a result, in the order of the results."""
        return [outcome.run for outcome in self.outcomes]

    @property
    def missing(self) -> list[str]:
        """The names of the folders of runs without a result."""
        return [run.folder.name for run in distinct_runs(self.jobs) if not run.done]

    def frame(self, *, all_settings: bool = False) -> DataFrame:
        """The score table: one row per run, task and run that it is compared with.

        The runs that others are compared with (the base model, calibration) have rows of their own,
        before these. Means over seeds follow; their `seed` is missing, and `seeds` is the number of
        seeds.

        Args:
            all_settings: a column for every setting of the command, not only for those that differ
                between its runs.

        Columns, missing where they do not apply:

        - `model`, `method`, the settings by their keys (`method.n`, `limit`), `task`, `metric`
          (lm-eval's `metric,filter`), `seed`, `seeds`, `examples` (the number of examples), `run`
          (the folder in `outputs/runs`, of a mean the file in `outputs/summaries`), `notes`
          (`PARTIAL`, `untuned`, ...).
        - `value` with its 95% interval over examples `low`, `high`, lm-eval's standard error
          `stderr`; of a mean over seeds `std` and the interval over seeds `seed_low`, `seed_high`.
          Rates are fractions.
        - `difference` to the run `compared_with` on the same examples, with its 95% interval
          `difference_low`, `difference_high` over `difference_over` ("documents", or "seeds and
          documents"); `to_right`, `to_wrong`: examples that only this run, or only the other one,
          has right.
        - `p` of `test` ("McNemar", "permutation", "seeds" of a mean, or "average" of tasks), and
          `p_holm`, corrected for the `family` comparisons of the same `question`, as the terminal
          prints it. A run of one of several seeds has no `p_holm`: the test is that of the mean.
        - `cost/...`: seconds, tokens, bytes and joules as results.json has them; `expert/...`,
          `confidence/...`: what `metrics=` measured, as loggers name it. Both are of single runs.
        """
        configs = [run.config for run in self.runs]
        return score_frame(self.table, self.configs, configs, all_settings)

    def examples(self) -> DataFrame:
        """One row per example of every run, base runs included.

        It is of the filter of the task's headline metric.

        Columns: `model`, `method`, the settings that differ, `seed`, `task`, `document` (the number
        of the example in the task), `prompt` (as lm-eval asks it, with few-shot examples and chat
        template), `answer` (the generated text; of choices the chosen one, missing where the
        metric's choice is not known), `target`, `score` (the value of `metric`) and `run`.

        Raises DamagedError for a sample log that cannot be read.
        """
        configs = [run.config for run in self.runs]
        runs = self.table.runs
        return example_frame(runs, settings_by_run(runs, self.configs, configs))

    def plot(self) -> Figure:
        """A forest plot: each run's difference with its 95% interval, one panel per task.

        The largest difference is first.

        Points are filled where the difference is significant: its p, corrected by Holm and written
        next to it, is below 0.05. Of several seeds the mean is shown. The figure is one of
        matplotlib; a notebook shows it.

        Raises ConfigError where no run is compared with another one.
        """
        from moe_lab.reports.figures.differences import differences_figure

        lines = plotted(self.table.shown)
        if not lines:
            raise ConfigError(
                "There is no difference to plot: no run is compared with another. "
                "Run a method other than base, without baseline=false."
            )
        return _shown_by_notebooks(differences_figure(lines))

    def _table_with_notes(self) -> TableWithNotes:
        columns = self.table.columns()
        if not self.outcomes:
            return TableWithNotes(columns, ["no results"])
        runs = "1 run" if len(self) == 1 else f"{len(self)} runs"
        return TableWithNotes(columns, [runs, *notes(self.table)])

    def print(self) -> None:
        """Print tables and paths, and the failures on stderr."""
        print_studies(self.studies)
        if self.outcomes:
            print_scores(self.table, self._footnotes())
            with_experts = results_with_metrics(self.outcomes, "expert")
            print_expert_metrics(with_experts, self.table.family)
            print_confidence(results_with_metrics(self.outcomes, "confidence"))
            print_answers(self.table.runs)
        for file in self.files:
            print_line(str(file))
        for failure in self.failures:
            if not self.alone:
                print_message(f"{failure.name}:")
            if isinstance(failure.error, KeyboardInterrupt):
                print_message(CONTINUES)
            else:
                print_error(failure.error)

    def _footnotes(self) -> list[str]:
        """What the runs' methods say of their results, each line once."""
        distinct: set[str] = set()
        for run in self.table.runs:
            distinct.update(get_method(run.method.name).footnotes(run["moe_lab"]))
        lines = sorted(distinct)
        left_out = len(lines) - FOOTNOTES
        if left_out <= 0:
            return lines
        return [*lines[:FOOTNOTES], f"{left_out} more lines of other runs: see their pages."]


def _shown_by_notebooks(figure: Figure) -> Figure:
    """A figure that was not made by pyplot has no picture in a notebook without this method."""

    def png() -> bytes:
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=150)
        return picture.getvalue()

    figure._repr_png_ = png  # type: ignore[attr-defined]
    return figure
