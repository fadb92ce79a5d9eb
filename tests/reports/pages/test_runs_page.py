"""The page of a grid. Broken by a number that is not the stored one, an answer that becomes markup, a request, layers out of
order, and a study that is not shown or is shown twice."""

import json
from itertools import pairwise

import pytest

from moe_lab.reports.pages.runs_page import (
    RunRouting,
    metrics_of,
    origin_of,
    origins_of,
    profiles_of,
    routing_of,
    write_origin_page,
)
from moe_lab.results.model import RunResult
from moe_lab.results.score_table import SeedGroup
from tests.support.pages import HOSTILE, foreign_urls, rows_of, texts, tree
from tests.support.stored_runs import generated_line, pair_of_runs, stored_run
from tests.support.views import write_runs_page

PAIRED = {"n": 2, "difference": 0.5, "ci95": [-0.2, 0.9], "p_mcnemar": 1.0, "to_right": 1, "to_wrong": 0}
CHANGES = {
    "paired": {"t": {"exact_match,none": PAIRED}},
    "untuned": True,
    "config_dirs": ["own"],
    "roe": {"n": 8, "temperatures": [0.0, 0.1], "changed_fraction": 0.25},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return pair_of_runs(
        tmp_path_factory.mktemp("outputs"), [("1", 0.0), ("x", 1.0)], [(HOSTILE, 1.0), ("x", 1.0)], **CHANGES
    )


@pytest.fixture(scope="module")
def page(runs):
    return write_runs_page(runs, runs[0].folder.parents[1] / "report.html")


def test_the_verdict_stands_first(page):
    root = tree(page)
    [text] = texts(root.xpath("//p[contains(@class, 'lead')]"))
    assert text.startswith(
        "roe on t does not differ significantly from the base model: exact_match,none +0.5000"
    )
    assert texts(root.xpath("//h2"))[0] == "Verdict"


def test_price_and_bound_are_below_the_verdict(tmp_path):
    changes = CHANGES | {"cost": {"tokens_in": 400}, "tuning": {"model": "tiny", "at_bound": ["logit_scale"]}}
    runs = pair_of_runs(tmp_path, [("1", 0.0)], [("x", 1.0)], **changes)
    root = tree(write_runs_page(runs, tmp_path / "page"))
    price = "roe reads 4 times the tokens of the base model and has a tuned logit scale at the bound of its search."
    assert price in texts(root.xpath("//header/p"))
    assert not root.xpath("//p[contains(., 'McNemar')][not(ancestor::details)]")


def test_hostile_answers_are_data(page):
    root = tree(page)
    assert len(root.xpath("//script")) == 2 and not root.xpath("//*[@onerror]") and not root.xpath("//img")
    data = json.loads(root.xpath("//script[@id='answer-data']/text()")[0])["answers"]
    assert [each["own"] for each in data] == [HOSTILE, "x"] and data[0]["kind"] == "wrong to right"
    assert foreign_urls(page) == [] and "python -m moe_lab --config-dir own method=" in root.text_content()


def test_headings_are_in_order_and_tables_have_captions(page):
    root = tree(page)
    levels = [int(heading.tag[1]) for heading in root.xpath("//h1|//h2|//h3|//h4")]
    assert levels[0] == 1 and all(later - earlier <= 1 for earlier, later in pairwise(levels))
    assert all(table.xpath("caption") for table in root.xpath("//table"))


def test_runs_without_a_comparison_have_a_page_without_empty_sections(runs, tmp_path):
    root = tree(write_runs_page(runs[:1], tmp_path / "base.html"))
    assert "No stored run is compared with the base model." in root.text_content()
    data = json.loads(root.xpath("//script[@id='answer-data']/text()")[0])
    assert [each["kind"] for each in data["answers"]] == ["wrong", "right"]
    sections = ["Scores", "Answers", "Cost", "Provenance"]
    assert texts(root.xpath("//h2")) == sections == texts(root.xpath("//nav//a"))


def test_a_mean_over_seeds_has_a_row_of_its_own(runs, tmp_path):
    """Two seeds of the second run, 0.5 apart."""
    block = runs[1]["moe_lab"]
    one = {"t": {"exact_match,none": block["paired"]["t"]["exact_match,none"] | {"difference": 0.0}}}
    content = {"results": {"t": {"exact_match,none": 0.5}}}
    other = RunResult(
        content | {"moe_lab": block | {"run_id": "other", "seed": 1, "paired": one}}, runs[1].folder
    )
    score = {"ci95_documents": [0.25, 1.0], "difference_p_documents": 0.5}
    summary = {"seeds": [0, 1], "overrides": [], "scores": {"t": {"exact_match,none": score}}}
    group = SeedGroup([runs[1], other], summary)
    root = tree(write_runs_page(runs, tmp_path / "seeds.html", [group]))
    *_, row = rows_of(root.xpath("//table[.//@data-run]")[0])
    shown = [float(row[name]) for name in ("seeds", "value", "std", "difference", "95% over documents", "p")]
    assert shown == pytest.approx([2, 0.75, 0.5**0.5 / 2, 0.25, 0.25, 0.5], abs=1e-4)
    [verdict] = texts(root.xpath("//p[contains(@class, 'lead')]"))
    assert "does not differ significantly" in verdict and verdict.endswith(
        "+0.2500, 95% over seeds [-2.9266, +3.4266], p 0.5."
    )


def test_all_metrics_are_shown_where_a_task_has_several(tmp_path):
    base, own = pair_of_runs(tmp_path, [("1", 0.0)], [("2", 1.0)])
    assert metrics_of([base, own], ["base", "roe"]) == []
    content = json.loads((own.folder / "results.json").read_text())
    more = {"f1,none": 0.25, "f1_stderr,none": 0.125, "bleu,strict": 3.0, "bleu_stderr,strict": "N/A"}
    content["results"]["t"] |= more
    own = RunResult(content, own.folder)
    page = tree(write_runs_page([base, own], tmp_path / "report.html"))
    [table] = page.xpath("//summary[contains(., 'All metrics')]/..//table")
    found = {(row["run"], row["metric"]): (row["value"], row["standard error"]) for row in rows_of(table)}
    assert len(found) == 4 and found["roe on t", "f1,none"] == ("0.25", "0.125")
    assert found["roe on t", "bleu,strict"] == ("3.0", "")


@pytest.mark.parametrize(("temperatures", "heights"), [((0.0, 0.1, 0.2), [0, 35, 70]), ((0.0, 0.1, 0.1), [])])
def test_temperatures_by_layer_and_the_share_of_changed_decisions(temperatures, heights, tmp_path):
    roe = {"n": 8, "temperatures": list(temperatures), "cache": "clean", "changed_fraction": 0.25}
    base, own = pair_of_runs(tmp_path, [("a", 1.0)], [("a", 1.0)], roe=roe)
    found = routing_of(own, "roe")
    assert found.temperatures == temperatures and profiles_of([found]) == {temperatures: ["roe"]}
    root = tree(write_runs_page([base, own], tmp_path / "page.html"))
    assert [float(bar.get("height")) for bar in root.xpath("//*[@class='bar']")] == heights
    assert ("Temperature 0.1 in 2 of 3 MoE layers." in root.text_content()) == (not heights), "one number"
    assert found.facts == {"n": 8, "cache": "clean", "changed_fraction": 0.25}
    assert found.layers == [] and found.pictures == [] and routing_of(base, "base") is None
    (base.folder / "figures").mkdir()
    (base.folder / "figures" / "selections.png").write_bytes(b"png")
    assert routing_of(base, "base").pictures == [("selections", "data:image/png;base64,cG5n")]


def test_runs_with_the_same_temperatures_share_a_figure():
    routing = [
        RunRouting(label, {}, temperatures, [], [])
        for label, temperatures in {"a": (0.1,), "c3po": (), "b": (0.2,), "c": (0.1,)}.items()
    ]
    assert profiles_of(routing) == {(0.1,): ["a", "c"], (0.2,): ["b"]}


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
        "1,1.5,2026-01-01 00:00:00,,0.0,,PRUNED\n2,1."
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
    shown = {column.heading: list(column.cells) for column in origin.trials}
    assert shown == {
        "number": ["0", "1", "2"],
        "value": ["1.75123", "1.5", "1."],
        "seconds": ["64.1", "", ""],
        "temperature 2": ["0.05", "0", ""],
        "state": ["COMPLETE", "PRUNED", ""],
    }, "without Optuna's own columns, and empty where the row was cut"


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
    assert trials == ["01.7512364.10.05COMPLETE", "11.50PRUNED", "21."] and len(root.xpath("//img")) == 1


def test_a_folder_without_a_record_has_none(tmp_path):
    assert origin_of(tmp_path / "studies" / "gone") is None
    assert write_origin_page(tmp_path / "models" / "gone") is None
