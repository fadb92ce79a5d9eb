"""The list of what is stored. Broken by a row without its data, and by text that becomes markup."""

from __future__ import annotations

import json
import os

from moe_lab.reports.pages.listing_page import write_listing_page
from tests.support.pages import HOSTILE, foreign_urls, texts, tree
from tests.support.stored_runs import pair_of_runs


def test_every_run_has_a_row_with_what_filters_it(tmp_path):
    pair_of_runs(
        tmp_path, [("1", 0.0)], [("2", 1.0)], overrides=["method=roe", f"system_instruction={HOSTILE}"]
    )
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "index.html").touch()
    page = write_listing_page(tmp_path)
    root = tree(page)
    rows = root.xpath("//tr[@data-row]")
    assert {(row.get("data-kind"), row.get("data-method"), row.get("data-state")) for row in rows} == {
        ("run", "base", "done"),
        ("run", "roe", "done"),
    }
    assert sorted(float(row.xpath("td[9]/@data-value")[0]) for row in rows) == [0.0, 1.0]
    assert texts(root.xpath("//select[@name='method']/option")) == ["all", "base", "roe"]
    assert "2 runs, 0 studies, 0 trainings" in root.text_content()
    assert len(root.xpath("//script")) == 1 and not root.xpath("//*[@onerror]")
    assert foreign_urls(page) == [] and root.xpath("//a[@href='tables/index.html']")


def test_every_finished_entry_has_its_page(tmp_path):
    """Broken by a page without the baseline's answers, and by pages that are made again for nothing."""
    for run in pair_of_runs(tmp_path, [("1", 0.0)], [("2", 1.0)]):
        (run.folder / "status.json").write_text("{}")
    study = tmp_path / "studies" / "s"
    study.mkdir(parents=True)
    (study / "study.json").write_text('{"model": "tiny", "task": "t", "tuning": "tpe", "metric": "accuracy"}')
    (study / "status.json").write_text('{"status": "success"}')
    root = tree(write_listing_page(tmp_path))
    links = root.xpath("//tr[@data-row]/td[1]/a/@href")
    assert len(links) == 3 and all((tmp_path / link).is_file() for link in links)
    [own] = (tmp_path / link for link in links if "roe" in link)
    assert "1 of 1 answers differ" in tree(own).text_content()
    before = own.stat().st_mtime_ns
    write_listing_page(tmp_path)
    assert own.stat().st_mtime_ns == before
    status = own.parent / "status.json"
    os.utime(status, (own.stat().st_mtime + 10,) * 2)
    write_listing_page(tmp_path)
    assert own.stat().st_mtime_ns != before, "the run was made again"


def test_a_run_of_an_older_identity_is_marked(tmp_path):
    """Its id may be that of another model, and no command asks for it any more."""
    for run in pair_of_runs(tmp_path, [("1", 0.0)], [("2", 1.0)]):
        results = json.loads((run.folder / "results.json").read_text())
        del results["moe_lab"]["model"]["identified_by"]
        (run.folder / "results.json").write_text(json.dumps(results))
    rows = tree(write_listing_page(tmp_path)).xpath("//tr[@data-row]")
    assert ["sampled-weights" in row.text_content() for row in rows] == [True, True]


def test_an_empty_folder_has_no_page(tmp_path):
    assert write_listing_page(tmp_path) is None and not list(tmp_path.iterdir())
