"""Table 7 of C3PO. Broken by a paper's number beside another set, and by a set that is left out."""

from moe_lab.models.memory import ModelPool
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import find_experiments
from moe_lab.reports.papers.files import reference_rows
from moe_lab.results.score_table import NO_COMPARISONS
from moe_lab.runs.experiments.runner import make_figure
from tests.support.stored_traces import c3po_results

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
