"""The list of what is stored. Broken by a row without its data, and by text that becomes markup."""

from __future__ import annotations

import json
import os

import pytest

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
    assert sorted(float(row.xpath("td[5]/@data-value")[0]) for row in rows) == [0.0, 1.0]
    assert texts(root.xpath("//select[@name='method']/option")) == ["all", "base", "roe"]
    assert "2 runs, 0 studies, 0 trainings" in root.text_content()
    assert len(root.xpath("//script")) == 2 and not root.xpath("//*[@onerror]")
    assert foreign_urls(page) == [] and root.xpath("//a[@href='tables/index.html']")


def test_every_finished_entry_has_its_page(tmp_path):
    """Broken by a page without the baseline's answers, and by pages that are made again for nothing."""
    pair_of_runs(tmp_path, [("1", 0.0)], [("2", 1.0)])
    study = tmp_path / "studies" / "s"
    study.mkdir(parents=True)
    (study / "study.json").write_text(
        '{"model": "tiny", "task": "t", "tuning": "tpe", "metric": "accuracy", "finished": 1}'
    )
    root = tree(write_listing_page(tmp_path))
    links = root.xpath("//tr[@data-row]/td[2]/a/@href")
    assert len(links) == 3 and all((tmp_path / link).is_file() for link in links)
    [own] = (tmp_path / link for link in links if "roe" in link)
    assert "1 of 1 answers differ" in tree(own).text_content()
    before = own.stat().st_mtime_ns
    write_listing_page(tmp_path)
    assert own.stat().st_mtime_ns == before
    os.utime(own.parent / "results.json", (own.stat().st_mtime + 10,) * 2)
    write_listing_page(tmp_path)
    assert own.stat().st_mtime_ns != before, "the run was made again"


def test_an_empty_folder_has_no_page(tmp_path):
    assert write_listing_page(tmp_path) is None and not list(tmp_path.iterdir())


@pytest.mark.parametrize("odd", ["null block", "wrong type", "no name", "odd samples"])
def test_an_odd_result_is_named_and_the_others_are_shown(tmp_path, capsys, odd):
    """Broken by a list that ends at it, and by one that leaves it out in silence."""
    base, roe = pair_of_runs(tmp_path, [("1", 0.0)], [("2", 1.0)])
    file = roe.folder / "results.json"
    results = json.loads(file.read_text())
    if odd == "odd samples":
        (roe.folder / "samples_t.jsonl").write_text(json.dumps({"doc_id": "x"}))
    else:
        block = results["moe_lab"]
        changed = {
            "null block": None,
            "wrong type": block | {"samples": [1]},
            "no name": block | {"model": {}},
        }
        file.write_text(json.dumps(results | {"moe_lab": changed[odd]}))
    root = tree(write_listing_page(tmp_path))
    rows = {row.get("data-method") for row in root.xpath("//tr[@data-row]")}
    named = "samples_t.jsonl" if odd == "odd samples" else "results.json"
    if odd == "odd samples":  # its own page says so
        assert rows == {"base", "roe"}
        assert named in tree(roe.folder / "report.html").text_content()
        return
    assert rows == {"base"}
    assert f"{roe.folder.name}/{named} is damaged" in root.text_content()
    assert capsys.readouterr().err.count(f"{roe.folder.name}/{named} is damaged") == 1


def test_a_page_that_cannot_be_made_is_named(tmp_path, capsys, monkeypatch):
    """Broken by a traceback of content that no shape knows of, and by its silence under HYDRA_FULL_ERROR."""
    pair_of_runs(tmp_path, [("1", 0.0)], [("2", 1.0)], cost={"wall_seconds": {"a": 1}})
    root = tree(write_listing_page(tmp_path))
    assert len(root.xpath("//tr[@data-row]")) == 2
    assert "has unexpected content (TypeError" in root.text_content()
    assert "has unexpected content" in capsys.readouterr().err
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(TypeError):
        write_listing_page(tmp_path)
