"""The list of what is stored. Broken by a row without its data, an entry in another state, and text that becomes markup."""

import json
import os
from pathlib import Path

import pytest

from moe_lab.reports.pages.listing_page import setting_texts, stored_entries, write_listing_page
from moe_lab.results.folder import RunFolder
from tests.support.pages import HOSTILE, foreign_urls, texts, tree
from tests.support.stored_runs import generated_line, pair_of_runs, stored_run


def test_every_run_has_a_row_with_what_filters_it(tmp_path):
    pair_of_runs(
        tmp_path, [("1", 0.0)], [("2", 1.0)], overrides=["method=roe", f"system_instruction={HOSTILE}"]
    )
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "index.html").touch()
    page = write_listing_page(tmp_path)
    root = tree(page)
    rows = root.xpath("//tr[@data-row]")
    expected = {("run", "base", "done"), ("run", "roe", "done")}
    assert {(row.get("data-kind"), row.get("data-method"), row.get("data-state")) for row in rows} == expected
    assert sorted(float(row.xpath("td[5]/@data-value")[0]) for row in rows) == [0.0, 1.0]
    assert texts(root.xpath("//select[@name='method']/option")) == ["all", "base", "roe"]
    assert "2 runs, 0 studies, 0 trainings" in root.text_content()
    assert len(root.xpath("//script")) == 2 and not root.xpath("//*[@onerror]")
    assert foreign_urls(page) == [] and root.xpath("//a[@href='tables/index.html']")


def test_every_finished_entry_has_its_page(tmp_path):
    """Broken by a page without the baseline's answers, and by pages that are made again for nothing."""
    pair_of_runs(tmp_path, [("1", 0.0)], [("2", 1.0)])
    study = {"model": "tiny", "task": "t", "tuning": "tpe", "metric": "accuracy", "finished": 1}
    write(tmp_path / "studies" / "s" / "study.json", study)
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


LINES = [generated_line(0, ("1", 1.0)), generated_line(1, ("2", 0.0))]


def roe(output: Path, run_id: str, n: int, *typed: str):
    config = {"name": "roe", "n": n, "cache": "clean"}
    changes = {"overrides": ["method=roe", f"method.n={n}", *typed], "config_dirs": ["own"]}
    return stored_run(output, run_id, LINES, config=config, **changes)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def started(output, name, **status):
    """The folder of a run without a result."""
    folder = output / "runs" / name
    method = {"name": "c3po", "k": 3}
    write(
        folder / "config.yaml",
        {"model": {"name": "tiny"}, "method": method, "task": {"name": ["t", "u"]}, "seed": 1}
        | {"config_dirs": ["own"]},
    )
    write(folder / "overrides.yaml", ["method=c3po", "task=t,u"])
    if status:
        write(folder / "status.json", status)
    return folder


def test_runs_differ_by_the_settings_that_are_shown(tmp_path):
    for number, (n, typed) in enumerate(
        [(4, ["limit=2"]), (8, ["limit=2", "num_fewshot=3"]), (8, ["device=cpu"])]
    ):
        roe(tmp_path, f"{number}" * 64, n, *typed)
    found = {entry.folder[-1]: entry for entry in stored_entries(tmp_path)[0]}
    expected = {"0": ["n=4"], "1": ["n=8", "num_fewshot=3"], "2": ["n=8"]}
    assert {place: list(setting_texts(entry.settings)) for place, entry in found.items()} == expected
    first = found["0"]
    assert (first.kind, first.model, first.method, first.task, first.n) == ("run", "tiny", "roe", "t", 2)
    assert (first.score, first.metric, first.state) == (0.5, "exact_match,none", "done")
    assert first.command == "python -m moe_lab --config-dir own method=roe method.n=4 limit=2"


def test_what_has_no_result_says_why(tmp_path):
    started(tmp_path, "broken", reason="RuntimeError: the disk is full")
    os.utime(started(tmp_path, "killed"), (1767323045,) * 2)
    folder = started(tmp_path, "alive")
    (tmp_path / "runs" / "empty").mkdir()
    with RunFolder(folder, "x").held():
        found = {entry.folder: entry for entry in stored_entries(tmp_path)[0]}
    assert {place: entry.state for place, entry in found.items()} == {
        "runs/broken": "RuntimeError: the disk is full",
        "runs/killed": "stopped",
        "runs/alive": "running",
    }
    one = found["runs/killed"]
    assert (one.task, one.seed, one.n, one.changed) == ("t, u", 1, None, "2026-01-02 03:04")
    assert one.command == "python -m moe_lab --config-dir own method=c3po task=t,u"


def test_studies_and_trainings_are_listed(tmp_path):
    study = {"model": "tiny", "task": "t", "tuning": "tpe", "metric": "perplexity", "n": 8, "seed": 0}
    write(tmp_path / "studies" / "s" / "study.json", study | {"finished": 12})
    (tmp_path / "studies" / "s" / "best.yaml").write_text("{trials: 12, score: 1.5}")
    training = {
        "method": "pretrain",
        "recipe": {"experts": 8},
        "seed": 2,
        "steps": 250,
        "validation": {"loss": 1.25},
    }
    whole, stopped = "models/tiny-pretrain-01234567", "models/tiny-pretrain-76543210"
    write(tmp_path / whole / "training.json", training)
    write(tmp_path / stopped / "identity.json", {"method": "pretrain", "recipe": {"experts": 9}})
    found = {entry.folder: entry for entry in stored_entries(tmp_path)[0]}
    one, made, cut = (found[place] for place in ("studies/s", whole, stopped))
    assert (one.method, one.n, one.score, one.state) == ("tuning=tpe", 12, 1.5, "done")
    expected = ("tiny", 250, 1.25, {"experts": 8}, "done")
    assert (made.model, made.n, made.score, made.settings, made.state) == expected
    assert (cut.score, cut.settings, cut.state) == (None, {"experts": 9}, "stopped")


def test_paths_are_short():
    given = {
        "temperature": "/a/b/studies/s/best.yaml",
        "data": "/a/b",
        "layers": [1, 2],
        "samples": "0," * 60,
    }
    expected = ["temperature=…/s/best.yaml", "data=/a/b", "layers=[1, 2]", "samples=" + "0," * 30 + "…"]
    assert list(setting_texts(given)) == expected
