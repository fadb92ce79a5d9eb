"""Numbers in a paper's text about a figure, next to the same quantity computed from the figure's data here.

An entry of `paper` whose `cell` has a `quantity` is such a number. The data are the rows of `<stem>-<kind>.csv`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from moe_lab.reports.papers.experiment import Experiment, Published
from moe_lab.reports.papers.files import file_stem

if TYPE_CHECKING:
    from pandas import DataFrame

Quantity = Callable[["DataFrame"], float | None]
"""The quantity in the figure's rows of one model and task; None where they lack it."""


def stated_numbers(
    experiment: Experiment, scale: str, folder: Path
) -> list[tuple[Published, dict[str, str], float | None, str]]:
    """The stated numbers, each with model and task, the value in the figure in `folder`, or why it has none.

    Without such data a number has the coordinates of the paper, and no reason.
    """
    of_kind = QUANTITIES.get(experiment.figure or "", {})
    published = [each for each in experiment.paper if each.cell.get("quantity") in of_kind]
    file = folder / f"{file_stem(experiment, scale)}-{experiment.figure}.csv"
    if not published or not file.is_file():
        return [(each, each.cell, None, "") for each in published]
    from pandas import read_csv

    groups, found = list(read_csv(file).groupby(["model", "task"], sort=False)), []
    for each in published:
        name = each.cell["quantity"]
        for (model, task), rows in groups:
            value = of_kind[name](rows)
            absent = "" if value is not None else ABSENT.get(name, "the figure's data lack it")
            found.append((each, {"model": model, "task": task}, value, absent))
    return found


def _more(column: str) -> Quantity:
    """The relative increase of a cost from n=1 to n=64, with the clean cache, at temperature 0 (RoE, Figure 4)."""

    def quantity(rows: DataFrame) -> float | None:
        own = rows[(rows["cache"] == "clean") & (rows["temperature"].astype(str) == "0") & (rows["n"] == 64)]
        return _first(own[f"relative_{column}"] - 1)

    return quantity


def _below(column: str) -> Quantity:
    """The saving of RoE against the larger model, at the n with the largest equivalent size (RoE, Figure 5)."""

    def quantity(rows: DataFrame) -> float | None:
        best = _best(rows)
        return _first(1 - best[f"roe_{column}"] / best[f"equivalent_{column}"])

    return quantity


def _equivalent_size(rows: DataFrame) -> float | None:
    return _first(_best(rows)["equivalent_non_embedding_parameters"] / 1e9)


def _best(rows: DataFrame) -> DataFrame:
    return rows.nlargest(1, "size_ratio")


def _greatest_gain(rows: DataFrame) -> float | None:
    """The number of core experts with the largest gain over the next smaller number; base has none."""
    return _first(rows[rows["gain"] > 0].nlargest(1, "gain")["core_experts"])


def _flat_from(rows: DataFrame) -> float | None:
    """The smallest number of core experts whose 95% interval holds the accuracy of every larger one."""
    ordered = rows[rows["core_experts"] > 0].sort_values("core_experts")
    for i, row in enumerate(ordered.itertuples()):
        if ordered["value"][i:].between(row.low, row.high).all():
            return float(row.core_experts)
    return None


def _share(first: int) -> Quantity:
    """The share of the selected experts after optimization that the router had ranked among its first `first`."""
    return lambda rows: _first(rows[rows["n"] == first]["share"])


def _at_step(column: str, step: int) -> Quantity:
    return lambda rows: _first(rows[rows["step"] == step][column])


def _first(values: DataFrame) -> float | None:
    found = values.dropna()
    return float(found.iloc[0]) if len(found) else None


QUANTITIES: dict[str, dict[str, Quantity]] = {
    "overhead": {
        "memory, n=64 over n=1": _more("memory_bytes"),
        "power, n=64 over n=1": _more("watts"),
    },
    "equivalent": {
        "equivalent size of OLMoE-7B": _equivalent_size,
        "memory below the larger model": _below("mebibytes"),
        "latency below the larger model": _below("milliseconds_per_token"),
    },
    "flops": {
        "core experts with the greatest gain": _greatest_gain,
        "core experts from which accuracy is flat": _flat_from,
    },
    "retained": {
        "top 8 afterwards among the first 8": _share(8),
        "top 8 afterwards among the first 20": _share(20),
    },
    "steps": {
        "accuracy, step 0": _at_step("accuracy", 0),
        "accuracy, step 6": _at_step("accuracy", 6),
        "accuracy, step 10": _at_step("accuracy", 10),
        "right at first and wrong after step 10, of those right at first": _at_step("became_wrong", 10),
    },
}
"""The quantities by kind of figure and name."""

ABSENT = {
    "power, n=64 over n=1": "no power meter on this device",
    "core experts with the greatest gain": "no number gains over the one before",
    "top 8 afterwards among the first 20": "the model's layers have fewer than 20 experts",
}
"""Why the data of a figure may lack a quantity."""
