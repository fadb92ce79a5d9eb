"""Broken by a quantity read from another row or column of the figure, or shown in another unit;
in Table 7 of C3PO by a paper's number next to another set, and by a set that is left out.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moe_lab.models.memory import ModelPool
from moe_lab.reports.figures.cost import draw_overhead
from moe_lab.reports.figures.traces import retained_rows, step_rows
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Experiment, find_experiments
from moe_lab.reports.papers.settings_tables import reference_rows
from moe_lab.reports.papers.stated import stated_numbers
from moe_lab.results.atomic import write_rows
from moe_lab.results.family import NO_COMPARISONS
from moe_lab.runs.experiments.figure import make_figure
from tests.support.stored_results import cell_table, overhead_cell
from tests.support.stored_traces import c3po_results, run_of
from tests.support.views import markdown, table

GPU = {"device": "cuda:0", "peak_memory_bytes": 1000, "energy_joules": 20.0}
Rows = list[dict[str, Any]]


def overhead(folder: Path) -> Rows:
    """64 rows with the clean cache at temperature 0: 12% more memory.

    36 J in 3 s are 20% more power than 20 J in 2 s.
    """
    tuned = GPU | {"peak_memory_bytes": 9000}
    table = cell_table(
        overhead_cell(1, 2.0, **GPU),
        overhead_cell(64, 3.0, temperature=0.2, **tuned),
        overhead_cell(64, 3.0, cache="none", **tuned),
        overhead_cell(32, 3.0, **tuned),
        overhead_cell(64, 3.0, **GPU | {"energy_joules": 36.0, "peak_memory_bytes": 1120}),
    )
    return draw_overhead(table).rows


def equivalent(folder: Path) -> Rows:
    """The largest equivalent size is that of n = 16."""
    return [
        {
            "n": n,
            "size_ratio": size / 7,
            "equivalent_non_embedding_parameters": size * 10**9,
            "roe_mebibytes": 75 + n - 16,
            "equivalent_mebibytes": 100,
            "roe_milliseconds_per_token": 70 + n - 16,
            "equivalent_milliseconds_per_token": 100,
        }
        for n, size in ((4, 8), (16, 10), (64, 9))
    ]


def flops(folder: Path) -> Rows:
    """8 add most, 16 have most."""
    return [
        {"core_experts": cores, "value": value, "gain": gain, "flat": cores >= 8}
        for cores, value, gain in (
            (0, 0.48, None),
            (4, 0.5, 0.02),
            (6, 0.53, 0.03),
            (8, 0.6, 0.07),
            (16, 0.61, 0.01),
        )
    ]


def steps(folder: Path) -> Rows:
    """Right at first, after 6 and after 10 steps: 2, 1 and 1 of 3.

    One of the two is wrong after 10.
    """
    answers = ["ABBBBBABBBA", "ABBBBBBBBBB", "BBBBBBBAAAB"]
    return step_rows(run_of(folder / "run", answers))


def retained(folder: Path) -> Rows:
    rows = retained_rows(run_of(folder / "run", ["BA"]))
    # of 4 experts, as if there were 64
    return [row | {"n": {2: 8, 4: 20}.get(row["n"], 0)} for row in rows]


CASES: dict[str, tuple[Callable[[Path], Rows], list[float]]] = {
    "roe/figure4": (overhead, [0.12, 0.2]),
    "roe/figure5": (equivalent, [10, 0.25, 0.3]),
    "c3po/figure4": (flops, [8, 8]),
    "c3po/figure5": (retained, [0.5, 1.0]),
    "c3po/figure6": (steps, [2 / 3, 1 / 3, 1 / 3, 0.5]),
}


def experiment_of(name: str, rows: Rows, folder: Path) -> Experiment:
    """The experiment, with a figure of these rows in a folder."""
    [experiment] = find_experiments(name)
    named = [{"model": "m", "task": "t"} | row for row in rows]
    write_rows(named, folder / f"{name.replace('/', '-')}-tiny-{experiment.figure}.csv")
    return experiment


@pytest.mark.parametrize("name", CASES)
def test_the_quantity_is_that_of_the_figures_data(name, tmp_path):
    rows, expected = CASES[name]
    stated = stated_numbers(experiment_of(name, rows(tmp_path), tmp_path), "tiny", tmp_path)
    assert [row.score.value for row in stated] == pytest.approx(expected)
    assert len({(row.coordinates["model"], row.coordinates["task"]) for row in stated}) == 1


def test_every_stated_number_of_an_experiment_with_data_has_its_quantity():
    for experiment in find_experiments("all"):
        names = {entry.cell["quantity"] for entry in experiment.paper if "quantity" in entry.cell}
        if experiment.figure != "setup":  # a table of settings
            assert names == {entry.cell["quantity"] for entry in experiment.paper if entry.data}, (
                experiment.name
            )


def test_units_are_the_papers_and_what_is_missing_has_its_reason(tmp_path):
    power = [row | {"relative_watts": None} for row in overhead(tmp_path)]
    experiment = experiment_of("roe/figure4", power, tmp_path)
    text = markdown(experiment, "tiny", [], tmp_path)
    place = "Section 3.3 (A100)"
    assert f"| memory, n=64 over n=1 | tiny, t | 12 percent | 12 percent | {place} |" in text
    assert (
        "| power, n=64 over n=1 | tiny, t | not measured: the figure's data lack it | 20 "
        f"percent | {place} |"
    ) in text
    quantities = [
        row.coordinates["quantity"] for row in table(experiment, "tiny", [], tmp_path).page_rows
    ]
    assert len(quantities) == len(set(quantities)), "none is also a published number without a cell"
    [experiment] = find_experiments("roe/figure5")
    not_run = markdown(experiment, "tiny", [], tmp_path)
    assert "| equivalent size of OLMoE-7B | - | not run | 10.5 billion parameters |" in not_run


SOURCE = {"title": "OpenBookQA", "tasks": ["openbookqa:train"], "wanted": 2000}
SOURCE |= {"documents": 4957, "dropped": 3, "asked": 2000, "correct": 803}
SCIQ = SOURCE | {"title": "SciQ", "asked": 1234, "data": ["x"]}
del SCIQ["correct"]


def cell_of_sources(sources: list[dict]) -> TableCell:
    c3po = {"core_experts": 20, "reference": {"set": {"sources": sources} if sources else None}}
    place = {"model": "olmoe", "task": "arc_challenge"}
    return TableCell(coordinates=place, run_id="r", results=[c3po_results(c3po=c3po)])


def test_sets_stand_beside_the_papers_sizes(tmp_path):
    """Without a set nothing is written."""
    experiment = find_experiments("c3po/table7")[0]

    def figure(cells):
        return make_figure(experiment, "paper", cells, ModelPool(), tmp_path, NO_COMPARISONS)

    assert figure([cell_of_sources([])]) == [] == list(tmp_path.iterdir())
    missing = TableCell(coordinates={"task": "piqa"}, run_id=None, problem="no data")
    cells = [cell_of_sources([SOURCE, SCIQ]), missing]
    first, second = reference_rows(experiment, cells)
    assert (first["documents"], first["published_documents"]) == (4, 1172)
    assert (first["asked"], first["published_asked"], first["kept"]) == (2000, 2000, 803)
    assert (second["reference"], second["kept"], second["published_asked"]) == ("SciQ", None, 2000)
    written, numbers = figure(cells)
    text = written.read_text()
    assert (
        "| tiny | arc_challenge | 4 | 1,172 | OpenBookQA | 4,957 | 3 | 2,000 | 2,000 | 803 | - |"
        in text
    )
    assert "- piqa: no data" in text
    assert len(numbers.read_text().splitlines()) == 3
