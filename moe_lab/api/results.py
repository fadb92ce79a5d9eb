"""The results of a command as an object: stored results, data frames, a figure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from moe_lab.api.shown import Shown
from moe_lab.errors import ConfigError
from moe_lab.reports.columns import Column
from moe_lab.reports.figures.primitives import differences_figure
from moe_lab.reports.frames import example_frame, settings_by_run
from moe_lab.reports.scores import ScoreLine
from moe_lab.reports.terminal import notes
from moe_lab.results.model import BASE
from moe_lab.runs.grid import Finished
from moe_lab.runs.jobs import distinct_runs

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Results(Shown, Sequence[dict[str, Any]]):
    """The results of a command's runs, in the order of its grid. Each one is the content of a results.json.

        results = moe_lab.run(["-m", "method=base,roe", "task=toy_choice", "limit=50"])
        results                      # the scores, as a table in a notebook
        results.frame()              # the same as a data frame, with every column
        results.examples()           # one row per example: prompt, answer, target, score
        results.plot()               # differences to the base model with 95% intervals
        results[0]["results"]        # lm-eval's own dictionary

    `runs` has the run of each, with its `config`, `run_id` and `folder`, where its files are; `missing` the folders of
    runs without a result (of `report`); `tables` with `experiment=` a data frame for each table, by name: the
    coordinates of its cells, columns as those of `frame`, and `published`, the paper's number.
    """

    def __init__(self, finished: Finished):
        self.runs = [outcome.run for outcome in finished.outcomes]
        self.missing = [run.folder.name for run in distinct_runs(finished.jobs) if not run.done]
        self.tables = finished.tables
        self._results = [outcome.results for outcome in finished.outcomes]
        self._table, self._finished = finished.table, finished

    def __len__(self) -> int:
        return len(self._results)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [dict(result.content) for result in self._results[index]]
        return dict(self._results[index].content)

    def frame(self, *, all_settings: bool = False) -> pd.DataFrame:
        """The score table: one row per run, task and run that it is compared with.

        The runs that others are compared with (the base model, calibration) have rows of their own, before these.
        Means over seeds follow; their `seed` is missing, and `seeds` is the number of seeds.

        Args:
            all_settings: a column for every setting of the command, not only for those that differ between its runs.

        Columns, missing where they do not apply:

        - `model`, `method`, the settings by their keys (`method.n`, `limit`), `task`, `metric` (lm-eval's
          `metric,filter`), `seed`, `seeds`, `examples` (the number of examples), `run` (the folder in `outputs/runs`,
          of a mean the file in `outputs/summaries`), `notes` (`PARTIAL`, `untuned`, ...).
        - `value` with its 95% interval over examples `low`, `high`, lm-eval's standard error `stderr`; of a mean over
          seeds `std` and the interval over seeds `seed_low`, `seed_high`. Rates are fractions.
        - `difference` to the run `compared_with` on the same examples, with its 95% interval `difference_low`,
          `difference_high` over `difference_over` ("documents", or "seeds and documents"); `to_right`, `to_wrong`:
          examples that only this run, or only the other one, has right.
        - `p` of `test` ("McNemar", "permutation", "seeds" of a mean, or "average" of tasks), and `p_holm`, corrected
          for the `family` comparisons of the same `question`, as the terminal prints it. A run of one of several
          seeds has no `p_holm`: the test is that of the mean.
        - `cost/...`: seconds, tokens, bytes and joules as results.json has them; `expert/...` and others: what
          `metrics=` measured, as loggers name it. Both are of single runs.
        """
        return self._finished.frame(all_settings)

    def examples(self) -> pd.DataFrame:
        """One row per example of every run, base runs included, by the filter of the task's headline metric.

        Columns: `model`, `method`, the settings that differ, `seed`, `task`, `document` (the number of the example in
        the task), `prompt` (as lm-eval asks it, with few-shot examples and chat template), `answer` (the generated
        text; of choices the chosen one, missing where the metric's choice is not known), `target`, `score` (the value
        of `metric`) and `run`.

        Raises DamagedError for a sample log that cannot be read.
        """
        asked = [run.config for run in self.runs]
        runs = self._table.runs
        return example_frame(runs, settings_by_run(runs, self._finished.configs, asked))

    def plot(self) -> Figure:
        """A forest plot: each run's difference with its 95% interval, the largest first, one panel per task.

        Points are filled where the difference is significant: its p, corrected by Holm and written next to it, is
        below 0.05. Of several seeds the mean is shown. The figure is one of matplotlib; a notebook shows it.

        Raises ConfigError where no run is compared with another one.
        """
        several = len({run.model for run in self._table.runs}) > 1
        lines = [
            ScoreLine(line.score, _label(line, several))
            for line in self._table.shown
            if line.score.tested_interval is not None
        ]
        if not lines:
            raise ConfigError(
                "There is no difference to plot: no run is compared with another. Run a method other than base, "
                "without baseline=false."
            )
        return _shown_by_notebooks(differences_figure(lines))

    def _columns(self) -> tuple[list[Column], list[str]]:
        runs = "1 run" if len(self) == 1 else f"{len(self)} runs"
        return self._table.columns(), [runs, *notes(self._table)] if self.runs else ["no results"]


def _label(line: ScoreLine, several_models: bool) -> str:
    """The run and, if it is not base, the run that it is compared with."""
    score = line.score
    named = [score.model] * several_models + [score.method, line.label.replace("method.", "")]
    label = ", ".join(filter(None, named))
    return label if score.other == BASE else f"{label}, minus {score.other.replace('_', ' ')}"


def _shown_by_notebooks(figure: Figure) -> Figure:
    """A figure that was not made by pyplot has no picture in a notebook without this method."""

    def png() -> bytes:
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=150)
        return picture.getvalue()

    figure._repr_png_ = png  # type: ignore[attr-defined]
    return figure
