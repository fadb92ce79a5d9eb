"""The page of tables.

Broken by a number that is not the stored one, an empty cell without a reason, and text
of a run that becomes markup.
"""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from moe_lab.reports.pages.tables_page import write_tables_page
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.experiment import Scale
from moe_lab.reports.papers.published import Published
from tests.support.pages import HOSTILE, foreign_urls, rows_of, texts, tree
from tests.support.stored_results import cell_table, results_of
from tests.support.views import write_record

PAPER = [
    Published(cell={"task": "t"}, value=57.5, unit="percent", place="Table 9", mark="(?)"),
    Published(cell={"task": "gsm8k"}, value=0.5, place="Section 3"),
]
COMPARED = {
    "baseline": {"run_id": "b", "results": {"t": {"acc,none": 0.5}}},
    "paired": {
        "t": {
            "acc,none": {
                "n": 4,
                "difference": 0.125,
                "ci95": [0.05, 0.2],
                "p_mcnemar": 0.01,
                "to_right": 9,
                "to_wrong": 1,
            }
        }
    },
}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """One table with a measured, a failed and an absent cell, at two scales."""
    cells = [
        TableCell(
            coordinates={"task": "t"}, run_id="r", results=[results_of(value=0.625, **COMPARED)]
        ),
        TableCell(coordinates={"task": "u"}, run_id="q", problem=HOSTILE),
        TableCell(coordinates={"task": "v"}, run_id="p"),
    ]
    table = cell_table(rows=["task"], paper=PAPER, name="roe/table9", title=f"Table 9 {HOSTILE}")
    scales = {"tiny": Scale(), "paper": Scale()}
    folder = tmp_path_factory.mktemp("tables")
    for scale in scales:
        write_record(replace(table.experiment, scales=scales), scale, cells, folder)
    return write_tables_page(folder)


def rows(page):
    """The cells by heading, of the row of each scale and task."""
    rows_by_table = {}
    for table_node in tree(page).xpath("//table[.//@data-row]"):
        scale = "paper" if "scale paper" in table_node.text_content() else "tiny"
        rows_by_table |= {(scale, row["task"]): row for row in rows_of(table_node)}
    return rows_by_table


def test_numbers_are_the_stored_ones(page):
    row = rows(page)["paper", "t"]
    expected = {
        "value": 0.625,
        "95% over documents": 0.525,
        "documents": 4,
        "difference": 0.125,
        "95% over documents ": 0.05,
        "p": 0.01,
        "changed": 9,
        "published": 0.575,
        "value - published": 0.05,
    }
    assert {name: float(row[name]) for name in expected} == pytest.approx(expected)
    assert row["place"] == "57.5%, Table 9 (?)"


def test_every_cell_has_a_state_and_every_empty_one_a_reason(page):
    states = {place: row["state"].partition(":")[0] for place, row in rows(page).items()}
    assert states == {
        ("paper", "t"): "agrees",
        ("paper", "u"): "failed",
        ("paper", "v"): "not run",
        ("paper", "gsm8k"): "not at this scale",
        ("tiny", "t"): "not comparable",
        ("tiny", "u"): "failed",
        ("tiny", "v"): "not run",
        ("tiny", "gsm8k"): "not at this scale",
    }
    assert (
        "scale tiny uses the embedded model and the toy tasks" in rows(page)["tiny", "t"]["state"]
    )
    assert tree(page).xpath("//tr/@data-state") == list(states.values())
    assert all(row["state"] == "agrees: (?)" or ": " in row["state"] for row in rows(page).values())


def test_an_experiment_of_ones_own_speaks_of_no_paper(tmp_path):
    cells = [
        TableCell(
            coordinates={"task": "t"}, run_id="r", results=[results_of(value=0.625, **COMPARED)]
        )
    ]
    write_record(cell_table(rows=["task"], name="mine/first").experiment, "small", cells, tmp_path)
    root = tree(write_tables_page(tmp_path))
    page_text = " ".join(texts(root.xpath("//main"))).lower()
    assert "paper" not in page_text
    assert "publish" not in page_text
    [row] = rows_of(root.xpath("//table[.//@data-row]")[0])
    assert row["state"] == "measured"
    [counts] = rows_of(root.xpath("//section[@aria-labelledby='summary']//table")[0])
    assert counts == {"experiment": "mine", "measured": "1"}


def test_hostile_text_stays_text_headings_are_in_order_and_tables_have_captions(page):
    root = tree(page)
    assert len(root.xpath("//script")) == 1
    assert not root.xpath("//*[@onerror]")
    assert texts(root.xpath("//h3"))[-1].startswith(
        "Table 9 </script><script>alert(1)</script><!--"
    )
    assert foreign_urls(page) == []
    assert root.xpath("//a[@download='roe-table9-paper.tex']/@href")[0].startswith(
        "data:text/x-tex"
    )
    assert "python -m moe_lab experiment=roe/table9 scale=paper" in root.text_content()
    levels = [int(heading.tag[1]) for heading in root.xpath("//h1|//h2|//h3|//h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    for earlier, later in pairwise(levels):
        assert later - earlier <= 1
    for table in root.xpath("//table"):
        assert table.xpath("caption")
        assert table.xpath(".//th[@scope]")


@pytest.mark.parametrize(
    "forged",
    [
        {"rows": [1]},
        {"rows": None},
        {"stem": "../../secret"},
        {"axes": 0},
        {"scale": None, "runs": 1},
    ],
)
def test_an_odd_record_is_named_and_the_others_are_shown(tmp_path, capsys, forged):
    """Broken by a traceback, and by a record that puts files of other folders into the page."""
    cells = [
        TableCell(
            coordinates={"task": "t"}, run_id="r", results=[results_of(value=0.625, **COMPARED)]
        )
    ]
    names = ("roe/table8", "roe/table9")
    experiments = [cell_table(rows=["task"], paper=PAPER, name=name).experiment for name in names]
    paths = [write_record(experiment, "tiny", cells, tmp_path) for experiment in experiments]
    record = json.loads(paths[0].read_text())
    paths[0].write_text(json.dumps(record | forged))
    page = write_tables_page(tmp_path)
    assert len(tree(page).xpath("//table[.//@data-row]")) == 1
    assert capsys.readouterr().err.count(paths[0].stem) == 1
