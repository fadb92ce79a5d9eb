"""The results of a command as an object: stored results, data frames, a figure."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from moe_lab.api.shown import Shown, given, text
from moe_lab.errors import ConfigError
from moe_lab.reports.figures.primitives import differences_figure
from moe_lab.reports.frames import example_frame, settings_by_run
from moe_lab.results.measured import interval, number
from moe_lab.results.model import BASE
from moe_lab.results.score_table import ScoreLine
from moe_lab.results.scores import Score
from moe_lab.results.significance import ALPHA
from moe_lab.runs.grid import Finished
from moe_lab.runs.jobs import distinct_runs

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

NAMES = ("model", "method")
"""Columns that name a run, with its settings."""


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
        self._finished = finished

    def __len__(self) -> int:
        return len(self._results)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [dict(result) for result in self._results[index]]
        return dict(self._results[index])

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
        every = self._finished.every
        configs, results = [config for config, _ in every], [result for _, result in every]
        return example_frame(results, settings_by_run(results, configs, [run.config for run in self.runs]))

    def plot(self) -> Figure:
        """A forest plot: each run's difference with its 95% interval, the largest first, one panel per task.

        Points are filled where the difference is significant: its p, corrected by Holm and written next to it, is
        below 0.05. Of several seeds the mean is shown. The figure is one of matplotlib; a notebook shows it.

        Raises ConfigError where no run is compared with another one.
        """
        frame = self.frame()
        of_seeds = [group.results for group in self._finished.by_configuration if group.summary]
        hidden = {result.stored_in.name for results in of_seeds for result in results}
        rows = frame[frame["difference_low"].notna() & ~frame["run"].isin(hidden)]
        if rows.empty:
            raise ConfigError(
                "There is no difference to plot: no run is compared with another. Run a method other than base, "
                "without baseline=false."
            )
        names = self._names(rows)
        return _shown_by_notebooks(
            differences_figure([self._difference(row, names) for row in rows.to_dict("records")])
        )

    def _difference(self, row: dict[str, Any], names: Sequence[str]) -> ScoreLine:
        other = row["compared_with"]
        label = ", ".join(_setting(name, row[name]) for name in names if given(row[name]))
        score = Score(
            model=row["model"],
            method=row["method"],
            task=row["task"],
            metric=row["metric"],
            run_id=row["run"],
            difference=row["difference"],
            difference_interval=(row["difference_low"], row["difference_high"]),
            p_holm=row["p_holm"] if given(row["p_holm"]) else None,
            n=int(row["examples"]) if given(row["examples"]) else None,
            lower_is_better=any(one.lower_is_better(row["task"], row["metric"]) for one in self._results),
        )
        return ScoreLine(score, label if other == BASE else f"{label}, minus {other.replace('_', ' ')}")

    def _names(self, frame: pd.DataFrame) -> list[str]:
        """The columns that name a run: its method, the settings that differ, and of several models the model."""
        settings = list(frame.columns[2 : list(frame.columns).index("task")])
        one_model = frame["model"].nunique() < 2
        return [name for name in (*NAMES, *settings) if not (one_model and name == "model")]

    def _shown(self) -> tuple[dict[str, list[str]], list[str]]:
        if not self.runs:
            return {}, ["no results"]
        frame = self.frame()
        rows = frame.to_dict("records")
        seeds = [f"mean of {row['seeds']}" if row["seeds"] > 1 else text(row["seed"]) for row in rows]
        limits = [(row["difference_low"], row["difference_high"]) for row in rows]
        columns = {
            **{name: [_value(row[name]) for row in rows] for name in self._names(frame)},
            **{name: [text(row[name]) for row in rows] for name in ("task", "metric")},
            "seed": seeds if frame["seeds"].max() > 1 else [],
            "examples": [text(row["examples"]) for row in rows],
            "value": [number(row["value"]) for row in rows],
            "95% interval": [interval((row["low"], row["high"])) for row in rows],
            "compared with": [text(row["compared_with"]) for row in rows],
            "difference": [number(row["difference"], sign=True) for row in rows],
            "its 95% interval": [interval(bounds, sign=True) for bounds in limits],
            "p (Holm)" if self._finished.family.note else "p": [number(row["p_holm"]) for row in rows],
            "notes": [row["notes"] for row in rows],
        }
        return columns, [self._title()]

    def _title(self) -> str:
        runs = "1 run" if len(self) == 1 else f"{len(self)} runs"
        note = self._finished.family.note
        how = f"corrected by Holm for the comparisons of the same question ({note}), " if note else ""
        return f"{runs}; p is {how}significant below {ALPHA}" if self._finished.family.corrected else runs


def _shown_by_notebooks(figure: Figure) -> Figure:
    """A figure that was not made by pyplot has no picture in a notebook without this method."""

    def png() -> bytes:
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=150)
        return picture.getvalue()

    figure._repr_png_ = png  # type: ignore[attr-defined]
    return figure


def _setting(name: str, value: Any) -> str:
    return str(value) if name in NAMES else f"{name.removeprefix('method.')}={_value(value)}"


def _value(value: Any) -> str:
    """A setting; of a profile the study's name."""
    profile = isinstance(value, str) and Path(value).name == "best.yaml"
    return Path(value).parent.name if profile else text(value)
