"""Studies and trainings. Broken by a run whose study is not shown or is shown twice, and a PNG where there is an SVG."""

from __future__ import annotations

import json

from moe_lab.reports.pages.runs_page import origin_of, origins_of, write_origin_page
from tests.support.pages import foreign_urls, texts, tree
from tests.support.stored_runs import generated_line, stored_run

LINES = [generated_line(0, ("1", 1.0))]


def study(output):
    folder = output / "studies" / "s"
    (folder / "figures").mkdir(parents=True)
    (folder / "figures" / "history.png").write_bytes(b"png")
    (folder / "study.json").write_text(
        json.dumps({"study_id": "x", "metric": "perplexity", "samples": {"t": [0]}})
    )
    (folder / "best.yaml").write_text("{score: 1.5, untuned_score: 1.75, temperature: [0, 1]}")
    (folder / "trials.csv").write_text(
        "number,value,datetime_start,duration,params_temperature_2,system_attrs_x,state\n"
        "0,1.7512345678,2026-01-01 00:00:00,0 days 00:01:04.063077,0.05,y,COMPLETE\n"
        "1,1.5,2026-01-01 00:00:00,,0.0,,PRUNED\n"
    )
    return folder


def test_a_figure_is_shown_as_svg_unless_there_is_none(tmp_path):
    folder = study(tmp_path)
    assert origin_of(folder).pictures == [("history", "data:image/png;base64,cG5n")]
    (folder / "figures" / "history.svg").write_bytes(b"svg")
    assert origin_of(folder).pictures == [("history", "data:image/svg+xml;base64,c3Zn")]


def test_the_study_of_tuned_runs_is_shown_once(tmp_path):
    study(tmp_path)
    runs = [stored_run(tmp_path, name * 64, LINES, tuning={"study": "s"}) for name in "ab"]
    [origin] = origins_of(runs)
    assert origin.facts == {"metric": "perplexity", "score": 1.5, "untuned_score": 1.75}
    assert [name for name, _ in origin.pictures] == ["history"]
    shown = {
        "number": "0",
        "value": "1.75123",
        "seconds": "64.1",
        "temperature_2": "0.05",
        "state": "COMPLETE",
    }
    assert origin.trials[0] == shown, "without Optuna's own columns"
    assert origin.trials[1]["seconds"] == "" and origin.trials[1]["value"] == "1.5"


def test_the_training_of_a_run(tmp_path):
    folder = tmp_path / "models" / "m"
    folder.mkdir(parents=True)
    training = {"id": "x", "steps": 5, "recipe": {"experts": 8}, "validation": {"loss": 1.25}}
    (folder / "training.json").write_text(json.dumps(training))
    run = stored_run(tmp_path, "a" * 64, LINES, "pretrain", pretrain={"model": "m", "training": {}})
    [origin] = origins_of([run])
    assert origin.title == "Training m" and origin.facts == {"steps": 5, "experts": 8, "held-out loss": 1.25}
    assert origins_of([stored_run(tmp_path, "b" * 64, LINES)]) == []


def test_its_page(tmp_path):
    page = write_origin_page(study(tmp_path))
    root = tree(page)
    facts = {row[0].text: row[1].text for row in root.xpath("//table[@class='facts']//tr")}
    assert facts["metric"] == "perplexity" and facts["untuned score"] == "1.75"
    assert texts(root.xpath("//h1")) == ["Study s"] and foreign_urls(page) == []
    trials = texts(root.xpath("//table[@class='sortable']/tbody/tr"))
    assert trials == ["01.7512364.10.05COMPLETE", "11.50PRUNED"] and len(root.xpath("//img")) == 1


def test_a_folder_without_a_record_has_none(tmp_path):
    assert (
        origin_of(tmp_path / "studies" / "gone") is None
        and write_origin_page(tmp_path / "models" / "gone") is None
    )
