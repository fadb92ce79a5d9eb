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
    from pandas import DataFrame, Series

Quantity = Callable[["DataFrame"], "Series"]
"""The values of a quantity in the figure's rows of one model and task, of which the first counts; empty without one."""


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
            known = of_kind[name](rows).dropna()
            value = float(known.iloc[0]) if len(known) else None
            absent = "" if value is not None else ABSENT.get(name, "the figure's data lack it")
            found.append((each, {"model": model, "task": task}, value, absent))
    return found


def _clean_cache(rows: DataFrame) -> DataFrame:
    """The row of n=64 with the clean cache, at temperature 0 (RoE, Figure 4)."""
    return rows[(rows["cache"] == "clean") & (rows["temperature"].astype(str) == "0") & (rows["n"] == 64)]


def _below(rows: DataFrame, column: str) -> Series:
    """The saving of RoE against the larger model, at the n with the largest equivalent size (RoE, Figure 5)."""
    best = rows.nlargest(1, "size_ratio")
    return 1 - best[f"roe_{column}"] / best[f"equivalent_{column}"]


def _flat_from(rows: DataFrame) -> Series:
    """The numbers of core experts whose 95% interval holds the accuracy of every larger one, the smallest first."""
    ordered = rows[rows["core_experts"] > 0].sort_values("core_experts")
    flat = [
        ordered["value"][i:].between(row.low, row.high).all() for i, row in enumerate(ordered.itertuples())
    ]
    return ordered["core_experts"][flat]


QUANTITIES: dict[str, dict[str, Quantity]] = {
    "overhead": {
        "memory, n=64 over n=1": lambda rows: _clean_cache(rows)["relative_memory_bytes"] - 1,
        "power, n=64 over n=1": lambda rows: _clean_cache(rows)["relative_watts"] - 1,
    },
    "equivalent": {
        "equivalent size of OLMoE-7B": lambda rows: (
            rows.nlargest(1, "size_ratio")["equivalent_non_embedding_parameters"] / 1e9
        ),
        "memory below the larger model": lambda rows: _below(rows, "mebibytes"),
        "latency below the larger model": lambda rows: _below(rows, "milliseconds_per_token"),
    },
    "flops": {
        # the largest gain over the next smaller number; base has none
        "core experts with the greatest gain": lambda rows: rows[rows["gain"] > 0].nlargest(1, "gain")[
            "core_experts"
        ],
        "core experts from which accuracy is flat": _flat_from,
    },
    "retained": {
        "top 8 afterwards among the first 8": lambda rows: rows["share"][rows["n"] == 8],
        "top 8 afterwards among the first 20": lambda rows: rows["share"][rows["n"] == 20],
    },
    "steps": {
        "accuracy, step 0": lambda rows: rows["accuracy"][rows["step"] == 0],
        "accuracy, step 6": lambda rows: rows["accuracy"][rows["step"] == 6],
        "accuracy, step 10": lambda rows: rows["accuracy"][rows["step"] == 10],
        "right at first and wrong after step 10, of those right at first": lambda rows: rows["became_wrong"][
            rows["step"] == 10
        ],
    },
}
"""The quantities by kind of figure and name."""

ABSENT = {
    "power, n=64 over n=1": "no power meter on this device",
    "core experts with the greatest gain": "no number gains over the one before",
    "top 8 afterwards among the first 20": "the model's layers have fewer than 20 experts",
}
"""Why the data of a figure may lack a quantity."""
