"""results.json and expert_metrics.json of runs, made by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moe_lab.reports.papers.cell_table import CellTable
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Experiment, Scale
from moe_lab.results import statistics
from moe_lab.results.model import RunResult
from moe_lab.results.versions import versions


def block_of(
    method: str = "roe",
    task: str = "t",
    metric: str = "acc,none",
    documents: Sequence[int] = range(4),
    **changes: Any,
) -> dict[str, Any]:
    """The block `moe_lab` of a results.json of one task."""
    return {
        "run_id": "r",
        "partial": False,
        "model": {"name": "tiny"},
        "method": {"name": method},
        "task": {"name": task, "tasks": [task], "metric": metric},
        "versions": versions(),
        "statistics": statistics.VERSION,
        "samples": {task: list(documents)},
    } | changes


def result_with(
    results: Mapping[str, Any] = {},
    folder: Path | None = None,
    content: Mapping[str, Any] = {},
    **changes: Any,
) -> RunResult:
    """A result with these scores, changes to `block_of`'s block, and `content` of lm-eval."""
    return RunResult({"results": results, "moe_lab": block_of() | changes, **content}, folder)


def changed(result: RunResult, **changes: Any) -> RunResult:
    """A result with other keys of lm-eval."""
    return RunResult(result.content | changes, result.folder)


def results_of(method: str = "roe", value: float = 0.5, n: int = 8, **changes: Any) -> RunResult:
    """A results.json of one task."""
    of_roe = (
        {"roe": {"n": n, "temperatures": [0.0, 0.0], "cache": "clean"}} if method == "roe" else {}
    )
    block = (
        block_of(method)
        | {
            "model": {"name": "tiny", "top_k": 4},
            "method": {
                "name": method,
                "config": {"name": method} | ({"n": n} if method == "roe" else {}),
            },
            "intervals": {"t": {"acc,none": [value - 0.1, value + 0.1]}},
            "cost": {
                "wall_seconds": 2.0,
                "tokens_out": 100,
                "peak_memory_bytes": 10**9,
                "weight_bytes": 3 * 10**6,
                "peak_working_bytes": 10**6,
                "energy_joules": None,
                "device": "cpu",
            },
        }
        | of_roe
        | changes
    )
    return RunResult({"results": {"t": {"acc,none": value}}, "moe_lab": block})


def expert_results(value: float = 0.6, **changes) -> RunResult:
    block = block_of("finetune-freeze", run_id="r1", intervals={"t": {"acc,none": [0.4, 0.8]}})
    scores = {"t": {"acc,none": value, "acc_stderr,none": 0.05}}
    return RunResult({"results": scores, "moe_lab": block | changes})


def loss(difference: float) -> dict:
    return {"acc,none": {"difference": difference, "ci95": [difference - 0.1, difference + 0.1]}}


EXPERT_METRICS: dict[str, Any] = {
    "metric": "acc,none",
    "differences": {},
    "load_balance": {
        "all": {"value": 3.5, "ci95": [3.4, 3.6]},
        "prefill": {"value": 1.0, "ci95": None},
    },
    "collaboration": {"all": {"value": 2.5, "ci95": None}},
    "capacity": {"least": {"tasks": {"t": loss(0.02)}}, "most": {"tasks": {"t": loss(0.3)}}},
    "specialization": {"tasks": {"t": loss(0.5), "u": loss(0.1), "all": loss(0.25)}},
}


def cell_table(*cells: TableCell, **keys: Any) -> CellTable:
    """Cells of an experiment without axes; `keys` are those of the Experiment."""
    settings = {"name": "x", "title": "X", "source": "", "scales": {"tiny": Scale()}, "paper": []}
    axes: dict[str, Any] = {"rows": [], "columns": [], "metric": "headline"}
    return CellTable(Experiment(**(settings | axes | keys)), cells)


def cell_of(**changes: Any) -> TableCell:
    return TableCell(coordinates={}, run_id="r", results=[results_of(**changes)])


def overhead_cell(
    n: int, seconds: float, *, temperature: float = 0.0, cache: str = "clean", **cost: Any
):
    blank = results_of()["moe_lab"]["cost"]
    roe = {"n": n, "temperatures": [0.0, temperature], "cache": cache}
    return cell_of(n=n, roe=roe, cost=blank | {"wall_seconds": seconds} | cost)
