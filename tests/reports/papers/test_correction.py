"""The correction of a command's p in a table. Broken by a difference that is not significant and bold, and by a p that is
corrected for other comparisons than the command's."""

import pytest

from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Scale
from moe_lab.reports.papers.markdown import correction_note
from moe_lab.results.significance import holm
from tests.support.stored_results import cell_table, results_of
from tests.support.views import family_of, markdown

TABLE = cell_table(rows=["row"], scales={"paper": Scale()}).experiment


def cell(row: str, p: float | None, full: float | None = None) -> TableCell:
    """A cell with p against base, and against full fine-tuning."""

    def paired(p: float | None) -> dict:
        return {"t": {"acc,none": {"difference": 0.1, "ci95": [0.05, 0.15], "p_mcnemar": p}}}

    control = {"full": {"run_id": "f", "results": {}, "paired": paired(full)}}
    compared = {} if full is None else {"compared": control}
    results = [results_of(run_id=row, paired=paired(p), **compared)]
    return TableCell(coordinates={"row": row}, run_id=row, results=results)


CELLS = [cell("one", 0.01, full=0.02), cell("two", 0.04), cell("three", None)]
CORRECTED = {"scores": holm([0.01, 0.04]), "controls": [0.02]}


def test_the_comparisons_of_a_question_are_corrected_together():
    """Broken by a control that changes the p of the scores."""
    first, second, third = (cell.scores(family_of(TABLE, CELLS)) for cell in CELLS)
    assert [found["base"].p_holm for found in (first, second)] == pytest.approx(CORRECTED["scores"])
    assert first["full"].p_holm == CORRECTED["controls"][0] and third["base"].p_holm is None
    note = correction_note([*first.values(), *second.values(), *third.values()])
    assert note.endswith("Comparisons: scores: 2, controls: 1.") and "corrected by Holm" in note


def test_bold_is_what_is_significant():
    cells = [cell("one", 0.001), cell("two", 0.04), cell("three", 0.04), cell("four", None)]
    table = [line for line in markdown(TABLE, "paper", cells).splitlines() if line.startswith("| ")]
    lines = {line.split()[1]: line for line in table}
    assert "**+0.1000 [+0.0500, +0.1500]** (p=0.001, Holm 0.003)" in lines["one"]
    assert "| +0.1000 [+0.0500, +0.1500] (p=0.04, Holm 0.08) |" in lines["two"]
    assert "| +0.1000 [+0.0500, +0.1500] |" in lines["four"]


def test_one_comparison_needs_no_correction():
    text = markdown(TABLE, "paper", [cell("one", 0.04)])
    assert "**+0.1000 [+0.0500, +0.1500]** (p=0.04) |" in text
    assert "Bold differences are statistically significant." in text
    assert "Bold" not in markdown(TABLE, "paper", [cell("one", None)])


def test_a_mean_over_seeds_is_bold_where_seeds_and_documents_tell_it():
    """Broken by one of the two tests alone, and by intervals that are mixed."""

    def seeds(differences: list[float], p_documents: float) -> str:
        def one(difference: float) -> dict:
            paired = {"t": {"acc,none": {"difference": difference, "ci95": [0, 1], "p_mcnemar": 0.9}}}
            return results_of(paired=paired)

        numbers = {"difference_ci95_documents": [0.02, 0.18], "difference_p_documents": p_documents}
        told = TableCell(
            coordinates={"row": "one"},
            run_id="r",
            results=[one(each) for each in differences],
            summary={"scores": {"t": {"acc,none": numbers}}},
        )
        return markdown(TABLE, "paper", [told])

    both = seeds([0.1, 0.11, 0.09], 0.02)
    assert "**+0.1000 [+0.0200, +0.1800] over documents** (p=0.02)" in both
    assert "`seeds [...]` is Student's interval over seeds" in both
    assert "**" not in seeds([0.1, 0.11, 0.09], 0.2), "the documents do not tell it"
    assert "**" not in seeds([0.3, 0.2, -0.2], 0.02), "the seeds do not tell it"
