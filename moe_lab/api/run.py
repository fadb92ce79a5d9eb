"""A command from Python: the same runs, files and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, overload

from moe_lab.cli.main import compose_or_explain, dispatch
from moe_lab.config.arguments import wrong
from moe_lab.config.recorded import recorded
from moe_lab.config.terminal import shown_output
from moe_lab.errors import INTERRUPTED, TERMINATED, ConfigError, ResultsError
from moe_lab.methods import get_method
from moe_lab.methods.method import ModelMaker
from moe_lab.results.scores import shown_scores
from moe_lab.runs.config import to_configs
from moe_lab.runs.grid import grouped
from moe_lab.runs.jobs import Job, distinct_runs, jobs_of
from moe_lab.runs.run import Outcome, Run
from moe_lab.tasks.loading import task_cache

if TYPE_CHECKING:
    import pandas as pd

    from moe_lab.config.schema import Config


PRINTING = {"--help", "-h", "--hydra-help", "--version", "--info", "--cfg", "-c"}
"""Flags of the command."""
SHOWN_ELSEWHERE = ("model.name", "method.name", "task.name", "task.metric", "seed", "overrides")
"""Settings that are columns already, or that repeat others."""


class Results(Sequence[dict[str, Any]]):
    """The results of a command's runs, in the order of its grid. Each one is the content of a results.json."""

    def __init__(self, jobs: Sequence[Job]):
        self.runs = distinct_runs(jobs)
        """Each with its `config`, `run_id` and `folder`, where all of its files are."""
        outcomes = [_stored(run) for run in self.runs]
        self._results = [outcome.results for outcome in outcomes]
        self._groups, self._family = grouped(outcomes, jobs)

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

    def frame(self) -> pd.DataFrame:
        """A row for each run and task with its headline metric: the fields of `moe_lab.results.scores.Score`, and seed.

        Rates are fractions; `interval` and `difference_interval` are (lower, upper), 95%, over documents. `p_holm` is
        corrected for the `family` comparisons of the command, as the terminal prints it. Settings that differ between
        runs are the last columns, `method.n` for example. Means over seeds follow the runs, without a `seed`: they have
        the test, and the runs of single seeds have no `p_holm`.
        """
        import pandas as pd

        rows = [
            asdict(score) | {"seed": result.seed} | own
            for result, own in zip(self._results, _differing([run.config for run in self.runs]), strict=True)
            for score in map(self._family.correct, shown_scores(result))
        ]
        means = [
            asdict(score) | {"seed": None}
            for group in self._groups
            if group.summary is not None
            for score in map(self._family.correct, group.scores())
        ]
        return pd.DataFrame([*rows, *means])


def run(overrides: Sequence[str]) -> Results:
    """Run a command and return its results: `moe_lab.run(["method=roe", "task=toy_math", "limit=50"])`.

    The overrides are those of `python -m moe_lab`, with "-m" for a grid. Tables and errors are printed and files are
    written as there. Stored results are returned without computing.

    Raises ConfigError for what the command refuses, for another mode than run and for `experiment=`, ResultsError where
    a run failed or is held by another process, and KeyboardInterrupt where it was interrupted.
    """
    if (
        isinstance(overrides, str)
        or not isinstance(overrides, Sequence)
        or not all(isinstance(each, str) for each in overrides)
    ):
        raise wrong(
            "moe_lab.run(overrides)",
            overrides,
            'give a list of texts: moe_lab.run(["method=roe", "task=toy_math"])',
        )
    if PRINTING & set(overrides):  # some of these would end the interpreter
        raise ConfigError(f"{' '.join(overrides)} only prints, and has no results. Use the command.")
    cells = compose_or_explain(list(overrides))
    if not cells:
        raise ConfigError(f"{' '.join(overrides)} only prints, and has no results. Use the command.")
    with task_cache(), shown_output():
        configs = to_configs(cells)
        for config in configs:
            _check(config)
        code = dispatch(cells, list(overrides))
        if code in (INTERRUPTED, TERMINATED):
            raise KeyboardInterrupt
        jobs = jobs_of(configs, compute=False)
        runs = distinct_runs(jobs)
        missing = [run.folder.name for run in runs if not run.done]
        if missing:
            raise ResultsError(
                f"{len(missing)} of {len(runs)} runs have no result ({', '.join(missing)}). The errors are above."
            )
        if code:
            raise ResultsError("A run or a study failed; the errors are above. Earlier results stay stored.")
        return Results(jobs)


def _differing(configs: Sequence[Config]) -> list[dict[str, Any]]:
    """The settings of each run whose values differ between the runs that have them, by `group.key`."""
    flat = [_flat(recorded(config)) for config in configs]
    keys = [key for key in dict.fromkeys(key for one in flat for key in one) if key not in SHOWN_ELSEWHERE]
    differing = [key for key in keys if len({repr(one[key]) for one in flat if key in one}) > 1]
    return [{key: one.get(key) for key in differing} for one in flat]


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    nested = {
        f"{group}.{key}": value
        for group, section in values.items()
        if isinstance(section, dict)
        for key, value in section.items()
    }
    return {key: value for key, value in values.items() if not isinstance(value, dict)} | nested


def _check(config: Config) -> None:
    if config.mode != "run" or config.experiment:
        given = f"experiment={config.experiment}" if config.experiment else f"mode={config.mode}"
        raise ConfigError(f"moe_lab.run returns the results of runs, and {given} has none. Use the command.")
    name = config.method.name
    if issubclass(get_method(name), ModelMaker):
        raise ConfigError(f"method={name} makes a model and no results. Use the command.")


def _stored(run: Run) -> Outcome:
    results = run.stored()
    assert results is not None, run.folder
    return Outcome(run=run, results=results, stored=True, path=run.folder / "results.json")
