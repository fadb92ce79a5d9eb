"""The mean scores of runs that differ in the seed alone: what a summary in `outputs/summaries/`
holds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moe_lab.results.model import RunResult
from moe_lab.results.stored import Interval


@dataclass(frozen=True, kw_only=True)
class SeedDifference:
    """A mean score over seeds minus that of other runs on the same documents: one run for each
    seed, or one for all."""

    mean: float
    """The mean score of the other runs."""
    difference: float
    interval: Interval | None
    """Over documents, which are resampled."""
    p_documents: float | None
    seed_interval: Interval | None
    """Student's, over seeds."""
    p_seeds: float | None
    equal: bool
    """Whether all seeds are equal within rounding. Then there is no test."""
    p_both: float | None = None
    """Over seeds and documents together, from five seeds on (`moe_lab.results.over_seeds`)."""
    both_interval: Interval | None = None

    def to_json(self) -> dict[str, Any]:
        """The difference as a summary file has it. `p_both` and `both_interval` are left out where
        they are None."""
        written: dict[str, Any] = {
            "mean": self.mean,
            "difference": self.difference,
            "difference_ci95_documents": self.interval,
            "difference_p_documents": self.p_documents,
            "difference_ci95_seeds": self.seed_interval,
            "difference_p_seeds": self.p_seeds,
            "equal": self.equal,
        }
        if self.p_both is not None:
            written["difference_p_both"] = self.p_both
        if self.both_interval is not None:
            written["difference_ci95_both"] = self.both_interval
        return written


@dataclass(frozen=True, kw_only=True)
class SeedScore:
    """A score over seeds."""

    values: Sequence[float]
    """Of each seed."""
    mean: float | None
    std: float | None
    seed_interval: Interval | None
    """Student's, over seeds."""
    interval: Interval | None
    """Over documents, which are resampled."""
    with_base: SeedDifference | None = None
    compared: Mapping[str, SeedDifference] = field(default_factory=dict)
    """The other comparisons, by name."""

    def to_json(self) -> dict[str, Any]:
        """The score as a summary file has it.

        The base model's mean is under `base`, next to the keys of the difference to it; differences
        to other runs are under `compared`.
        """
        written: dict[str, Any] = {
            "values": self.values,
            "mean": self.mean,
            "std": self.std,
            "ci95_seeds": self.seed_interval,
            "ci95_documents": self.interval,
        }
        if self.with_base is not None:
            difference = self.with_base.to_json()
            written["base"] = difference.pop("mean")
            written.update(difference)
        if self.compared:
            written["compared"] = dict(self.compared)
        return written


@dataclass(frozen=True, kw_only=True)
class SeedSummary:
    """The summary of a configuration with several seeds.

    With one study in `studies` the spread over seeds is that of the evaluation alone; with one
    study per seed it includes the search. `versions` are those of the runs; if they differ, those
    of a run that was computed with other versions than the installed ones.
    """

    first: RunResult
    """The run of the first seed, whose model, method and task name the summary."""
    partial: bool
    versions: Mapping[str, str | None]
    statistics: int
    seeds: Sequence[int]
    studies: Sequence[str]
    run_ids: Sequence[str]
    scores: Mapping[str, Mapping[str, SeedScore]]
    """By task, then by lm-eval's `metric,filter`."""

    def to_json(self) -> dict[str, Any]:
        """The content of the summary's file."""
        block = self.first["moe_lab"]
        settings = {}
        for name in ("model", "method", "task", "untuned", "tuning", "judges"):
            if name in block:
                settings[name] = block[name]
        settings["task"] = {**block["task"], "metric": self.first.metric}
        return settings | {
            "schema_version": 1,
            "partial": self.partial,
            "versions": self.versions,
            "statistics": self.statistics,
            "overrides": self.first.overrides,
            "seeds": self.seeds,
            "studies": self.studies,
            "run_ids": self.run_ids,
            "scores": self.scores,
        }
