"""Designs ranked by their held-out loss.

Broken by an order by accuracy, by a difference that is not paired, by chance of another task, by a ranking where there
is nothing to rank.

Breaks if a difference that is not significant is bold, or p is corrected for other comparisons than the command's.
"""

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Scale
from moe_lab.reports.papers.markdown import correction_note
from moe_lab.reports.papers.ranking import chance_of
from moe_lab.results.significance import holm
from tests.support.pretrained_cells import design_cells, experiment
from tests.support.stored_results import cell_table, results_of
from tests.support.views import family_of, markdown, ranking

ROWS = np.random.default_rng(0).normal(3, 1, 40)
"""Held-out rows differ far more than designs do."""


def ranking_lines(cells: list[TableCell]) -> list[str]:
    """The lines of the ranking in the Markdown of a table."""
    lines = markdown(experiment(), "paper", cells).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| rank |"))
    return [line for line in lines[start:] if line.startswith("| ")]


def test_the_lowest_loss_comes_first_with_paired_differences():
    worse = (ROWS + 0.1 + 0.01 * np.arange(40) / 40).tolist()
    cells = [
        *design_cells("16/64", [worse], accuracy=0.9),
        *design_cells("2/8", [ROWS.tolist()], accuracy=0.4),
    ]
    first, second = ranking(experiment(), cells)
    assert (first.design, second.design) == ("2/8", "16/64"), "both are token choice"
    assert first.loss.difference is None and second.loss.difference == pytest.approx(0.1 + 0.01 * 19.5 / 40)
    assert (
        second.loss.tested_interval is not None
        and 0.1 < min(second.loss.tested_interval)
        and max(second.loss.tested_interval) < 0.11
    )
    assert second.loss.interval is not None and second.loss.interval[0] < first.loss.value, "they overlap"
    assert second.accuracy is not None and second.accuracy.value == pytest.approx(0.9)
    assert second.chance == pytest.approx(0.375)
    _, _, one, two = ranking_lines(cells)
    assert one.startswith("| 1 | 2/8 | ") and two.endswith(" | 0.375 |")


def test_seeds_are_paired_by_number_and_not_by_place():
    """Their spread is large, that of the difference is not."""
    first = design_cells("2/8", [[2.0, 2.0], [2.5, 2.5], [3.0, 3.0]])
    second = design_cells("4/16", [[2.1, 2.1], [2.7, 2.7], [3.3, 3.3]])
    for reverse in (False, True):
        for cell in second if reverse else ():
            cell.results.reverse()
        _, found = ranking(experiment(), [*first, *second])
        assert found.loss.difference == pytest.approx(0.2)
        assert found.loss.tested_interval == pytest.approx((0.2 - 0.2484, 0.2 + 0.2484), abs=1e-4)
    for cell in second:
        cell.results[0] = cell.results[0].model_copy(update={"seed": 7})
    _, found = ranking(experiment(), [*first, *second])
    assert (found.loss.difference, found.loss.tested_interval, found.loss.p_holm) == (None, None, None)


def test_only_designs_that_are_told_from_the_first_have_a_lower_rank():
    """Broken by a rank by the order of the means, or by p without correction: 0.016 of three comparisons is 0.03."""
    seeds = [[2.0, 2.0], [2.5, 2.5], [3.0, 3.0]]

    def design(label: str, more: tuple[float, float, float]) -> list[TableCell]:
        rows = [[loss + extra for loss in each] for each, extra in zip(seeds, more, strict=True)]
        return design_cells(label, rows)

    cells = [
        *design_cells("2/8", seeds),
        *design("4/16", (0.3, -0.1, 0.2)),
        *design("8/32", (0.4, 0.41, 0.42)),
    ]
    found = ranking(experiment(), cells)
    assert [one.design for one in found] == ["2/8", "4/16", "8/32"]
    assert [one.rank for one in found] == [1, 1, 3]
    assert [one.loss.significant for one in found] == [False, False, True]
    assert found[2].loss.p_holm == pytest.approx(2 * ttest_1samp([0.4, 0.41, 0.42], 0).pvalue)
    lines = ranking_lines(cells)
    assert [line.split(" | ")[:2] for line in lines[2:]] == [["| 1", "2/8"], ["| 1", "4/16"], ["| 3", "8/32"]]
    assert " | +0.4100 | [+0.3852, +0.4348] | " in lines[4]


@pytest.mark.parametrize("other", [[9.0, 9.0], [3.0, 3.0, 3.0]], ids=["one seed", "other rows"])
def test_one_seed_ranks_nothing_and_other_rows_are_not_subtracted(other):
    found = ranking(experiment(), [*design_cells("2/8", [[2.0, 2.0]]), *design_cells("4/16", [other])])
    assert [one.rank for one in found] == [1, 1]
    assert (found[1].loss.difference is None) == (len(other) == 3)


def test_expert_choice_is_named_as_what_it_is():
    cells = design_cells("2/8", [[2.0, 2.0]], router="expert", leak=0.2)
    cells += design_cells("2/8", [[3.0, 3.0]])
    assert [one.design for one in ranking(experiment(), cells)] == ["expert (reads later tokens)", "token"]


def test_without_accuracy_there_is_no_column_of_it():
    losses = [one for one in design_cells("2/8", [[2.0, 2.0]]) if one.of_training]
    assert "accuracy" not in ranking_lines(losses)[0]


def test_chance_is_known_for_all_tasks_or_not_at_all():
    cells = [one for one in design_cells("2/8", [[2.0, 2.0]]) if one.metric == "headline"]
    assert chance_of(experiment(), cells) == pytest.approx(0.375)
    assert chance_of(experiment(chance={"a": 0.25}), cells) is None


def test_a_table_without_trainings_has_no_ranking():
    assert ranking(experiment(), design_cells("2/8", [[2.0, 2.0]])[:1]) == []


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
