"""Questions of C3PO that had no neighbour, in tables and beside a run's scores.

Broken by: an empty ball that no table tells, a count that an average leaves out, a column that stands where every
question has the k nearest.

Table 7 of C3PO. Broken by a paper's number beside another set, and by a set that is left out.
"""

from pathlib import Path
from typing import Any

import pytest

from moe_lab.methods import get_method
from moe_lab.models.memory import ModelPool
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import find_experiments, load_experiment
from moe_lab.reports.papers.files import reference_rows
from moe_lab.results.score_table import NO_COMPARISONS
from moe_lab.runs.experiments.runner import make_figure
from tests.support.stored_results import results_of
from tests.support.stored_traces import c3po_results
from tests.support.views import markdown

EXPERIMENT = """
title: Table T
source: the paper
scales:
  tiny: {grid: {method: [c3po], method.epsilon: [0.3], task: [a, b]}}
rows: [method.epsilon]
columns: []
average: task
"""


def cell_of(task: str, epsilon: float | None, without: int, **c3po: Any) -> TableCell:
    block = {"core_experts": 20, "epsilon": epsilon, "reference": {"questions_without": without}} | c3po
    coordinates = {"method.epsilon": str(epsilon), "task": task}
    return TableCell(coordinates=coordinates, run_id=task, results=[c3po_results(c3po=block)])


def table_of(tmp_path: Path, cells: list[TableCell], text: str = EXPERIMENT) -> str:
    (tmp_path / "a.yaml").write_text(text)
    return markdown(load_experiment("paper/a", tmp_path / "a.yaml"), "tiny", cells)


@pytest.mark.parametrize("columns", ["[]", "[task]"])
def test_a_line_tells_how_many_had_none(tmp_path, columns):
    cells = [cell_of("a", 0.3, 3), cell_of("b", 0.3, 1), cell_of("a", None, 0), cell_of("b", None, 0)]
    lines = table_of(tmp_path, cells, EXPERIMENT.replace("[]", columns)).splitlines()
    head = next(line for line in lines if line.startswith("| method.epsilon"))
    place = head.split(" | ").index("without a neighbour")
    by_epsilon = {line.split(" | ")[0]: line.split(" | ")[place] for line in lines if line.startswith("| ")}
    assert by_epsilon["| 0.3"] == "4 of 8" and by_epsilon["| None"] == ""
    assert "without a neighbour" not in table_of(tmp_path, cells[2:]), "there are no balls"


def test_without_a_radius_missing_neighbours_count_and_the_oracle_has_none():
    def counts(*args: Any, **c3po: Any) -> tuple[int, int] | None:
        return get_method("c3po").without_neighbour(cell_of("a", *args, **c3po).results[0])

    assert counts(None, 2) == (2, 4) and counts(None, 0) is None and counts(0.5, 0) == (0, 4)
    assert counts(0.5, 0, upper_bound=True) is None
    assert get_method("roe").without_neighbour(results_of()) is None
    told = get_method("c3po").footnotes(cell_of("a", 0.3, 3).results[0]["moe_lab"])
    assert any("epsilon 0.3: 3 of 4 questions had no neighbour" in line for line in told)


SOURCE = {"title": "OpenBookQA", "tasks": ["openbookqa:train"], "wanted": 2000}
SOURCE |= {"documents": 4957, "dropped": 3, "asked": 2000, "correct": 803}
SCIQ = SOURCE | {"title": "SciQ", "asked": 1234, "data": ["x"]}
del SCIQ["correct"]


def cell_of_sources(sources: list[dict]) -> TableCell:
    c3po = {"core_experts": 20, "reference": {"set": {"sources": sources} if sources else None}}
    return TableCell(
        coordinates={"model": "olmoe", "task": "arc_challenge"}, run_id="r", results=[c3po_results(c3po=c3po)]
    )


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
    markdown, table = figure(cells)
    text = markdown.read_text()
    assert "| tiny | arc_challenge | 4 | 1,172 | OpenBookQA | 4,957 | 3 | 2,000 | 2,000 | 803 | - |" in text
    assert "- piqa: no data" in text
    assert len(table.read_text().splitlines()) == 3
