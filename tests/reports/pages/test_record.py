"""Tables as data. Broken by a number that differs from the stored one, and by a published number that gets lost."""

from __future__ import annotations

import json

from moe_lab.reports.pages.record import command, has_numbers, ranges, read_records
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Published
from moe_lab.reports.papers.stated import Stated
from tests.support.pretrained_cells import trained_results
from tests.support.stored_results import cell_table, results_of
from tests.support.views import table_record, write_record

PAPER = [
    Published(cell={"task": "t"}, value=55.5, unit="percent", place="Table 9", mark="(?)"),
    Published(cell={"task": "gsm8k"}, value=0.5, place="Section 3"),
]


def record():
    cells = [
        TableCell(coordinates={"task": "t"}, run_id="r", results=[results_of(value=0.625)]),
        TableCell(coordinates={"task": "u"}, run_id="q", problem="the disk is full"),
    ]
    table = cell_table(*cells, rows=["task"], paper=PAPER, name="roe/table9")
    return table.experiment, table_record(table.experiment, "tiny", cells), cells


def test_cells_have_the_stored_numbers_and_the_published_ones():
    _, made, _ = record()
    first, second = made.cells
    assert first.score.value == 0.625 and first.score.interval == (0.525, 0.725)
    assert first.published.fraction == 0.555 and first.runs == ["r"]
    assert second.score is None and second.problem == "the disk is full"
    assert [each.cell for each in made.unmatched] == [{"task": "gsm8k"}]
    assert made.runs["r"].documents == {"t": "0-3"}


def test_a_number_that_a_design_does_not_have_is_no_empty_cell():
    """Expert choice has a leak, token choice has none."""
    cells = [
        TableCell(coordinates={"task": router}, run_id="r", metric="training.leak", results=[results])
        for router, results in (
            ("expert", trained_results([1.0, 2.0], leak=0.5)),
            ("token", trained_results([1.0, 2.0])),
        )
    ]
    made = table_record(cell_table(rows=["task"]).experiment, "tiny", cells)
    assert [(cell.coordinates["task"], cell.score.value) for cell in made.cells] == [("expert", 0.5)]


def test_what_is_written_is_read_again(tmp_path, capsys):
    experiment, made, cells = record()
    path = write_record(experiment, "tiny", cells, tmp_path / "tables")
    (tmp_path / "tables" / "other.json").write_text('{"version": 0}')
    (tmp_path / "tables" / "torn.json").write_text("{")
    assert read_records(path.parent) == [made]
    cell = json.loads(path.read_text())["cells"][0]
    assert cell["published"]["fraction"] == 0.555 and "absent" not in cell
    assert "other.json is of another version" in capsys.readouterr().err


def test_documents_and_commands_are_short_and_exact():
    assert ranges([7, 0, 1, 2, 4, 3]) == "0-4, 7" and ranges([]) == ""
    assert command(["task=a b", "limit=5"]) == "python -m moe_lab 'task=a b' limit=5"
    own = command(["experiment=mine"], ["/my conf"])
    assert own == "python -m moe_lab --config-dir '/my conf' experiment=mine"


def test_a_record_without_a_measured_cell_is_known(tmp_path):
    experiment, _, cells = record()
    assert has_numbers(write_record(experiment, "tiny", cells, tmp_path))
    assert not has_numbers(write_record(experiment, "tiny", cells[1:], tmp_path))
    assert not has_numbers(tmp_path / "gone.json")


def test_what_the_text_states_stands_beside_the_measured_quantity():
    published = Published(
        cell={"quantity": "memory", "model": "olmoe"}, value=12, unit="percent", place="Figure 4"
    )
    table = cell_table(rows=["model"], paper=[published])
    stated = [
        Stated(published=published, where="tiny, toy_math", measured=0.25),
        Stated(published=published, where="", measured=None),
    ]
    made = table_record(table.experiment, "tiny", [], stated)
    first, second = made.cells
    assert first.coordinates == {"model": "tiny", "task": "toy_math", "quantity": "memory"}
    assert (first.score.value, first.published.fraction) == (0.25, 0.12)
    assert second.coordinates["model"] == "olmoe" and second.score is None
    assert made.unmatched == []
