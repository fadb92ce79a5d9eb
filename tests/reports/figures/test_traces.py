"""Figures from traces.

Broken by traces joined with other documents, weights that are counted instead of selected experts,
a missing factor of the expert work, and another question or layer than the one that is named.
"""

import csv
import json

import pytest

from moe_lab.errors import ResultsError
from moe_lab.methods import get_method
from moe_lab.reports.figures import write_run_figures
from moe_lab.reports.figures.curves import draw_flops
from moe_lab.reports.figures.pathways import draw_activation, draw_sample, frequency_LE
from moe_lab.reports.figures.stored_traces import read_traces
from moe_lab.reports.figures.traces import draw_retained, draw_steps, retained_rows, step_rows
from moe_lab.reports.papers.cells import TableCell
from moe_lab.results.model import RunResult
from tests.support.stored_results import cell_table, results_of
from tests.support.stored_traces import BEFORE, c3po_results, run_of, scores_of, traced_run
from tests.support.tiers import first_fast

KINDS = get_method("c3po").figures


def test_a_run_without_traces_has_no_figures(tmp_path):
    assert write_run_figures(RunResult(c3po_results().content, tmp_path), KINDS) == []


@pytest.mark.parametrize("draw", [draw_steps, draw_activation, draw_sample])
@pytest.mark.parametrize("neighbours", first_fast([True, False]), ids=["neighbours", "oracle"])
def test_each_kind_leaves_a_picture_and_its_numbers(draw, neighbours, tmp_path):
    """A question with $ in it is text, not mathematics; the oracle has no neighbours."""
    changes = {} if neighbours else {"neighbours": [], "losses": [None, None]}
    run = run_of(tmp_path / "run", ["BA", "AA"], before=BEFORE, **changes)
    run.prompts[0] = "Is $x^2 or a% more? " * 100
    png, table = draw([run, run]).save(tmp_path, "f", "T")
    assert png.read_bytes()[:4] == b"\x89PNG"
    assert png.name == "f.png"
    with table.open(newline="") as file:
        assert len(list(csv.DictReader(file))) >= 4


@pytest.mark.slow
def test_a_run_draws_its_own_figures(tmp_path):
    results = traced_run(tmp_path / "run", ["BA", "AA"])
    names = [path.name for path in write_run_figures(results, KINDS)]
    assert names[::2] == ["steps.png", "activation.png", "sample.png", "retained.png"]
    assert (tmp_path / "run" / "figures" / "retained.csv").exists()
    results = traced_run(tmp_path / "part", ["BA"], core_experts=3)
    assert len(write_run_figures(results, KINDS)) == 6, "not all experts were optimized"


def test_questions_are_joined_in_the_order_of_their_documents(tmp_path):
    """Of doubled lines the last counts, and a document without a trace is named."""
    result = traced_run(tmp_path / "run", ["AAA", "BAA", "BBB"])
    run = read_traces(result)
    assert run.right == [[True, True, True], [False, True, True], [False, False, False]]
    assert run.prompts[1] == "Question: 1?\nAnswer:"
    assert run.layers == [3, 4]
    assert run.probabilities("before").shape == (3, 2, 4)
    file = tmp_path / "run" / "traces.jsonl"
    lines = file.read_text().splitlines()  # the last document's comes first
    trace_line = json.loads(lines[0]) | {"scores": scores_of("ABB")}
    file.write_text("\n".join([*lines, json.dumps(trace_line)]))
    assert read_traces(result).right[2] == [True, False, False]
    file.write_text("\n".join(lines[:2]))
    with pytest.raises(ResultsError, match="no trace of document 0"):
        read_traces(result)


def test_activation_counts_the_experts_that_are_taken(tmp_path):
    run = run_of(tmp_path / "run", ["A", "A"])
    assert frequency_LE(run, "before").tolist() == [[1, 1, 0, 0], [1, 1, 0, 0]]
    assert frequency_LE(run, "after").tolist() == [[1, 0, 1, 0], [0, 1, 0, 1]]
    rows = draw_activation([run]).rows
    expected = [(4, 0, 1.0, 0.0), (4, 1, 1.0, 1.0)]
    assert [(row["layer"], row["expert"], row["before"], row["after"]) for row in rows][
        4:6
    ] == expected


def test_cost_is_by_core_experts(tmp_path):
    def cell(core: int | None, flops: float) -> TableCell:
        c3po = {"core_experts": core, "flops_per_sample": flops, "flops_plain_per_sample": 1e9}
        base = {"run_id": "b", "results": {"t": {"acc,none": 0.25}}}
        return TableCell(
            coordinates={}, run_id="r", results=[c3po_results(core, c3po=c3po, baseline=base)]
        )

    missing = TableCell(coordinates={}, run_id=None, problem="no data")
    model = {"name": "tiny", "top_k": 2, "experts": 4}
    untouched = results_of(method="base", value=0.25, model=model)
    base = TableCell(coordinates={}, run_id="b", results=[untouched])
    cells = [cell(None, 3e9), base, cell(2, 2e9), missing]
    drawing = draw_flops(cell_table(*cells))
    value = cells[0].results[0].lm_eval.scores("t")["acc,none"]
    points = [
        [row[name] for name in ("core_experts", "flops", "plain_flops", "gain")]
        for row in drawing.rows
    ]
    assert points[0][:3] == [0, 1e9, 1e9], "base has no gain"
    assert points[0][3] != points[0][3], "base has no gain"
    assert points[1:] == [[2, 2e9, 1e9, value - 0.25], [4, 3e9, 1e9, 0]]
    png, _ = drawing.save(tmp_path, "f", "T")
    assert png.exists()


def test_a_base_model_without_experts_has_no_core_experts():
    """Such as a dense model, which takes part in a table with `method=base`. It was a TypeError."""
    dense = results_of(method="base", value=0.25, model={"name": "tiny", "top_k": None})
    (row,) = draw_flops(cell_table(TableCell(coordinates={}, run_id="b", results=[dense]))).rows
    assert (row["core_experts"], row["experts"], row["flat"]) == (0, None, False)


def test_accuracy_is_flat_where_its_interval_has_that_of_every_larger_number():
    def cell(core: int, value: float) -> TableCell:
        model = {"name": "tiny", "top_k": 2, "experts": 8}
        c3po = {"core_experts": core, "flops_per_sample": 1e9, "flops_plain_per_sample": 1e9}
        # with an interval of 0.1 on each side
        results = results_of("c3po", value=value, model=model, c3po=c3po)
        return TableCell(coordinates={}, run_id=str(core), results=[results])

    rows = draw_flops(cell_table(cell(8, 0.55), cell(1, 0.42), cell(4, 0.5), cell(2, 0.53))).rows
    flat = {row["core_experts"]: row["flat"] for row in rows}
    assert flat == {1: False, 2: True, 4: True, 8: True}
    assert list(flat) == sorted(flat)


def test_retained_experts_are_counted_by_the_routers_rank(tmp_path):
    """The router ranks experts in the order 0, 1, 2, 3.

    The optimized pathways select 0 and 2, and 3 and 1.
    """
    some_experts = run_of(tmp_path / "some", ["A"], core_experts=3)
    all_experts = run_of(tmp_path / "every", ["A", "A"], core_experts=20)
    rows = retained_rows(all_experts)
    assert [row["share"] for row in rows] == [0.25, 0.5, 0.75, 1.0]
    assert rows[0]["questions"] == 2
    assert draw_retained([some_experts]).save(tmp_path, "f") == [], "not all experts were optimized"
    assert len(draw_retained([some_experts, all_experts]).save(tmp_path, "f")) == 2
    assert len((tmp_path / "f.csv").read_text().splitlines()) == 1 + 4


@pytest.mark.slow
def test_the_question_shown_is_the_first_that_became_right(tmp_path):
    for answers, shown_question in (
        (["AB", "BAB", "BA", "BA"], "Question: 2?"),
        (["AA", "AB", "BB"], "Question: 0?"),
    ):
        assert (
            shown_question in draw_sample([run_of(tmp_path / answers[0], answers)]).rows[0]["text"]
        )


def test_a_question_is_shown_with_its_neighbours_in_the_last_layer(tmp_path):
    rows = draw_sample([run_of(tmp_path / "run", ["BA"])]).rows
    expected = ["question, before", "question, after", "neighbour 1", "neighbour 2"]
    assert list(dict.fromkeys(row["of"] for row in rows)) == expected
    assert {row["layer"] for row in rows} == {4}
    first = [row for row in rows if row["of"] == "neighbour 1"]
    assert [row["weight"] for row in first] == [0.05, 0.3, 0.2, 0.45]
    assert [row["expert"] for row in first if row["taken"]] == [1, 3]
    assert (first[0]["distance"], first[0]["kernel_share"]) == (0.5, 0.75)


def test_changed_answers_are_shares_of_those_that_could_change(tmp_path):
    rows = step_rows(run_of(tmp_path / "run", ["AAB", "AAA", "AAA", "ABA", "BAA"]))
    shares = [
        (row["accuracy"], row["became_wrong"], row["became_right"], row["loss"]) for row in rows
    ]
    assert shares == [(0.8, 0.0, 0.0, 2.0), (0.8, 0.25, 1.0, 1.5), (0.8, 0.25, 1.0, 1.0)]
    rows = step_rows(run_of(tmp_path / "right", ["AA", "AB"], losses=[None, None]))
    assert [row["became_right"] for row in rows] == [None, None]
    assert rows[1]["loss"] is None
