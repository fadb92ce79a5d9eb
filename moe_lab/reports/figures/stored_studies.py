"""A study as stored in its folder, for its figures: study.json, trials.csv, best.yaml."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from numpy import isfinite
from pandas import DataFrame, Series, read_csv

from moe_lab.reports.papers.cells import TableCell
from moe_lab.results.stored_files import damaged, read_mapping, typed

COMPLETE, PRUNED = "COMPLETE", "PRUNED"


@dataclass(frozen=True, kw_only=True)
class StudyInfo:
    """The fields of study.json that figures need."""

    model: str
    task: str
    tuning: str
    metric: str
    n: int
    cache: str
    direction: str
    num_samples: int
    """Tuning documents."""
    skip_layers: int
    max_temperature: float
    logit_scale: bool = False

    @property
    def minimizes(self) -> bool:
        """Whether a lower metric is better."""
        return self.direction == "minimize"


@dataclass(frozen=True, kw_only=True)
class StoredStudy:
    """A stored study, for its figures."""

    info: StudyInfo
    trials: DataFrame
    """A row per complete or pruned trial: its number `trial`, `state`, `value`, `estimate` and
    `temperature`.

    A pruned trial has an estimate instead of a value: the metric over the documents that it scored.
    `temperature` is the one of all layers with tuning=uniform. Missing numbers are NaN."""
    temperatures: list[float]
    """Temperatures of the best trial, one per MoE layer; empty without a profile."""
    calibrated: float | None
    """The metric of temperature 0 at its best logit scale: the control for a gain in perplexity."""
    at_bound: list[str]
    """The parameters at the bound of their search according to the profile, such as "layer_3"."""

    @property
    def complete(self) -> DataFrame:
        """The rows of the complete trials."""
        return self.trials[self.trials["state"] == COMPLETE]

    @property
    def untuned(self) -> float | None:
        """The metric of the untuned model, which is trial 0; None if that is not complete."""
        values = self.complete["value"][self.complete["trial"] == 0]
        return next(iter(values), None)

    @property
    def best(self) -> Series:
        """The first complete trial with the best value."""
        values = self.complete["value"]
        best_place = values.idxmin() if self.info.minimizes else values.idxmax()
        return self.complete.loc[best_place]

    @property
    def label(self) -> str:
        """Model, task and tuning documents, for a panel's title."""
        info = self.info
        details = f"n={info.n}, {info.num_samples} documents"
        if info.cache != "clean":
            details += f",\n{info.cache} cache"
        return f"{info.model}, {info.task}\n({details})"

    @property
    def key(self) -> dict[str, object]:
        """The columns that name the study in a CSV."""
        names = ("model", "task", "tuning", "metric", "n", "cache")
        return {name: getattr(self.info, name) for name in names}

    def is_skipped(self, layer: int) -> bool:
        """Whether an MoE layer is one of the first or last ones, which have no noise."""
        skip = self.info.skip_layers
        return not skip <= layer < len(self.temperatures) - skip


def studies_of(cells: Sequence[TableCell]) -> list[StoredStudy]:
    """The studies of the cells that have a complete trial, each once."""
    folders: dict[Path, None] = {}
    for cell in cells:
        folders |= dict.fromkeys(cell.studies)
    studies = [read_study(folder) for folder in folders]
    return [study for study in studies if len(study.complete)]


def read_study(folder: Path) -> StoredStudy:
    """The study in a folder. Without best.yaml, which is written after trial 0, it has no
    temperatures.

    Raises DamagedError if study.json or trials.csv is missing or cannot be read.
    """
    file = folder / "study.json"
    try:
        info: StudyInfo = typed(StudyInfo, read_mapping(file) or {})
        file = folder / "trials.csv"
        trials = _read_trials(file)
    except (OSError, ValueError, KeyError) as error:
        raise damaged(file, error) from error

    # a complete trial without a finite value counts as pruned
    is_complete = (trials["state"] == COMPLETE) & isfinite(trials["value"])
    trials["state"] = trials["state"].where(is_complete, PRUNED)
    trials["estimate"] = trials["value"].mask(is_complete)
    trials["value"] = trials["value"].where(is_complete)

    profile = read_mapping(folder / "best.yaml") or {}
    return StoredStudy(
        info=info,
        trials=trials,
        temperatures=profile.get("temperature", []),
        calibrated=profile.get("calibrated_score"),
        at_bound=profile.get("at_bound", []),
    )


def _read_trials(file: Path) -> DataFrame:
    """The complete and pruned trials of a trials.csv, in the order of their numbers: the columns of
    `StoredStudy.trials`."""
    trials = read_csv(file)
    trials = trials.rename(columns={"number": "trial", "params_temperature": "temperature"})
    trials = trials[trials["state"].isin((COMPLETE, PRUNED))]
    trials = trials.sort_values("trial", ignore_index=True)
    trials = trials.reindex(columns=["trial", "state", "value", "estimate", "temperature"])
    return trials.astype({"trial": int, "value": float, "temperature": float})
