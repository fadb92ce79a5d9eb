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
from moe_lab.methods.training_method import ModelMaker
from moe_lab.reports.scores import corrected, shown_scores
from moe_lab.runs.config import to_configs
from moe_lab.runs.jobs import distinct_runs, jobs_of
from moe_lab.tasks.loading import task_cache

if TYPE_CHECKING:
    import pandas as pd

    from moe_lab.config.schema import Config
    from moe_lab.runs.run import Run


PRINTING = {"--help", "-h", "--hydra-help", "--version", "--info", "--cfg", "-c"}
"""Flags of the command."""
SHOWN_ELSEWHERE = ("model.name", "method.name", "task.name", "task.metric", "seed", "overrides")
"""Settings that are columns already, or that say what others say."""


class Results(Sequence[dict[str, Any]]):
    """The results of a command's runs, in the order of its grid: of each the content of its results.json."""

    def __init__(self, runs: Sequence[Run]):
        self.runs = list(runs)
        """Each with its `config`, `run_id` and `folder`, where all of its files are."""
        self._results = [_stored(run) for run in runs]

    def __len__(self) -> int:
        return len(self._results)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        return self._results[index]

    def frame(self) -> pd.DataFrame:
        """A row for each run and task with its headline metric: the fields of `moe_lab.reports.scores.Score`, and seed.

        Rates are fractions; `interval` and `difference_interval` are (lower, upper), 95%, over documents. `p_holm` is
        corrected for all rows, as the terminal prints it. Settings that differ between runs are the last columns,
        `method.n` for example.
        """
        import pandas as pd

        rows = [
            (score, {"seed": results["moe_lab"]["seed"]} | own)
            for results, own in zip(self, _differing([run.config for run in self.runs]), strict=True)
            for score in shown_scores(results)
        ]
        scores = corrected([score for score, _ in rows])
        return pd.DataFrame([asdict(score) | own for score, (_, own) in zip(scores, rows, strict=True)])


def run(overrides: Sequence[str]) -> Results:
    """Run a command and return its results: `moe_lab.run(["method=roe", "task=toy_math", "limit=50"])`.

    The overrides are those of `python -m moe_lab`, with "-m" for a grid. Tables and errors are printed and files are
    written as there. What is stored already is returned.

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
        runs = distinct_runs(jobs_of(configs))
        missing = [run.folder.name for run in runs if not run.done]
        if missing:
            raise ResultsError(
                f"{len(missing)} of {len(runs)} runs have no result ({', '.join(missing)}); their errors stand above."
            )
        if code:
            raise ResultsError(
                "A run or a study failed; the errors stand above. Earlier results stay stored."
            )
        return Results(runs)


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


def _stored(run: Run) -> dict[str, Any]:
    results = run.stored()
    assert results is not None, run.folder
    return results
