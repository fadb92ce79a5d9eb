"""Pages, and the page of a grid.

Broken by text that becomes markup or a command of LaTeX, a page that needs anything outside of it,
a number that is not the stored one, and layers out of order.
"""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from base64 import b64decode
from itertools import pairwise

import pytest
from jinja2 import UndefinedError

from moe_lab.reports.columns import Column
from moe_lab.reports.columns import texts as text_column
from moe_lab.reports.figures.comparisons import draw_control
from moe_lab.reports.pages.latex import latex_of
from moe_lab.reports.pages.page import TEMPLATES, environment, write_page
from moe_lab.reports.pages.run_routing import RunRouting, profiles_of, routing_of
from moe_lab.reports.pages.shown_answers import answer_data
from tests.support.pages import HOSTILE, contrast, foreign_urls, texts, tree
from tests.support.stored_results import cell_of, cell_table
from tests.support.stored_runs import pair_of_runs
from tests.support.views import write_runs_page

PAIRED = {
    "n": 2,
    "difference": 0.5,
    "ci95": [-0.2, 0.9],
    "p_mcnemar": 1.0,
    "to_right": 1,
    "to_wrong": 0,
}
CHANGES = {
    "paired": {"t": {"exact_match,none": PAIRED}},
    "untuned": True,
    "config_dirs": ["own"],
    "roe": {"n": 8, "temperatures": [0.0, 0.1], "changed_fraction": 0.25},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    before = [("1", 0.0), ("x", 1.0)]
    after = [(HOSTILE, 1.0), ("x", 1.0)]
    return pair_of_runs(tmp_path_factory.mktemp("outputs"), before, after, **CHANGES)


@pytest.fixture(scope="module")
def page(runs):
    return write_runs_page(runs, runs[0].folder.parents[1] / "report.html")


def test_the_verdict_stands_first_headings_are_in_order_and_tables_have_captions(page):
    root = tree(page)
    [text] = texts(root.xpath("//p[contains(@class, 'lead')]"))
    assert text.startswith(
        "roe on t does not differ significantly from the base model: exact_match,none +0.5000"
    )
    assert texts(root.xpath("//h2"))[0] == "Verdict"
    levels = [int(heading.tag[1]) for heading in root.xpath("//h1|//h2|//h3|//h4")]
    assert levels[0] == 1
    for earlier, later in pairwise(levels):
        assert later - earlier <= 1
    for table in root.xpath("//table"):
        assert table.xpath("caption")


def test_hostile_answers_are_data(page):
    root = tree(page)
    assert len(root.xpath("//script")) == 2
    assert not root.xpath("//*[@onerror]")
    assert not root.xpath("//img[not(starts-with(@src, 'data:image/svg+xml;'))]")
    data = json.loads(root.xpath("//script[@id='answer-data']/text()")[0])["answers"]
    assert [answer["own"] for answer in data] == [HOSTILE, "x"]
    assert data[0]["kind"] == "wrong to right"
    assert foreign_urls(page) == []
    assert "python -m moe_lab --config-dir own method=" in root.text_content()


def test_runs_without_a_comparison_have_a_page_without_empty_sections(runs, tmp_path):
    root = tree(write_runs_page(runs[:1], tmp_path / "base.html"))
    assert "No stored run is compared with the base model." in root.text_content()
    data = json.loads(root.xpath("//script[@id='answer-data']/text()")[0])
    assert [answer["kind"] for answer in data["answers"]] == ["wrong", "right"]
    sections = ["Scores", "Answers", "Cost", "Provenance"]
    assert texts(root.xpath("//h2")) == sections == texts(root.xpath("//nav//a"))


@pytest.mark.parametrize(
    ("temperatures", "heights"), [((0.0, 0.1, 0.2), [0, 35, 70]), ((0.0, 0.1, 0.1), [])]
)
def test_temperatures_by_layer_and_the_share_of_changed_decisions(temperatures, heights, tmp_path):
    roe = {"n": 8, "temperatures": list(temperatures), "cache": "clean", "changed_fraction": 0.25}
    changes = {"roe": roe, "tuning": {"study": "s", "model": "tiny"}}
    base, roe_run = pair_of_runs(tmp_path, [("a", 1.0)], [("a", 1.0)], **changes)
    routing = routing_of(roe_run, "roe")
    assert routing.temperatures == temperatures
    assert profiles_of([routing]) == {temperatures: ["roe"]}
    root = tree(write_runs_page([base, roe_run], tmp_path / "page.html"))
    assert [float(bar.get("height")) for bar in root.xpath("//*[@class='bar']")] == heights
    assert ("Temperature 0.1 in 2 of 3 MoE layers." in root.text_content()) == (not heights), (
        "one number"
    )
    assert routing.facts == {"study": "s", "n": 8, "cache": "clean", "changed_fraction": 0.25}
    assert routing.pictures == []
    assert routing_of(base, "base") is None
    (base.folder / "figures").mkdir()
    (base.folder / "figures" / "selections.svg").write_bytes(b"svg")
    assert routing_of(base, "base").pictures == [("selections", "data:image/svg+xml;base64,c3Zn")]


def test_runs_with_the_same_temperatures_share_a_figure():
    profiles = {"a": (0.1,), "c3po": (), "b": (0.2,), "c": (0.1,)}
    routing = [RunRouting(label, {}, temperatures, []) for label, temperatures in profiles.items()]
    assert profiles_of(routing) == {(0.1,): ["a", "c"], (0.2,): ["b"]}


def test_json_in_a_script_element_does_not_end_it():
    data = answer_data([{"prompt": HOSTILE, "x": math.nan}])
    text = environment().from_string("{{ data|tojson }}").render(data=data)
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"prompts": [[HOSTILE, 0]], "answers": [{"prompt": 0, "x": None}]}


def test_values_are_escaped_and_unknown_names_refused():
    template = environment().from_string('<p title="{{ text }}">{{ text }}</p>')
    tags = re.findall("<[^>]+>", template.render(text='"><b>x'))
    assert tags == ['<p title="&#34;&gt;&lt;b&gt;x">', "</p>"]
    with pytest.raises(UndefinedError):
        template.render()


def test_a_page_is_whole_in_itself(tmp_path):
    page = write_page(tmp_path / "deep" / "index.html", "base.html.j2")
    root = tree(page)
    assert foreign_urls(page) == []
    policy = root.xpath("//meta[@http-equiv='Content-Security-Policy']/@content")[0]
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert "unsafe-eval" not in policy
    assert "base-uri 'none'" in policy
    assert "form-action 'none'" in policy
    assert len(root.xpath("//script")) == 1
    assert not root.xpath("//link[@rel='stylesheet']")


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["text", "soft", "accent", "good", "bad"])
def test_text_has_contrast(scheme, name):
    """At least 4.5 to 1 on the page, on panels, and of text on what is marked."""
    rules = re.findall(r":root {(.*?)}", (TEMPLATES / "style.css").read_text(), re.S)[scheme]
    colours = dict(re.findall(r"--(\w+): (#\w{6})", rules))
    for ground in ["page", "panel"] + ["mark"] * (name == "text"):
        assert contrast(colours[name], colours[ground]) >= 4.5, ground


def test_latex_has_booktabs_and_escapes():
    columns = [text_column("task", ["a_b", "c"]), text_column("value", ["61.0%", "1 & 2"])]
    text = latex_of(columns, "50% of a_b")
    for rule in ("\\toprule", "\\midrule", "\\bottomrule"):
        assert rule in text
    assert "a\\_b & 61.0\\%" in text
    assert "1 \\& 2" in text
    assert "\\caption{50\\% of a\\_b}" in text
    arrow = latex_of([text_column("schedule", ["N\u2192R"]), text_column("value", ["-0.1"])], "x")
    assert "N$\\rightarrow$R & -0.1" in arrow
    shared = [
        Column(heading="task", cells=["t_1", "t_1"], name=True),
        text_column("value", ["1", "2"]),
    ]
    assert "\\caption{x: task=t\\_1}" in latex_of(shared, "x"), "what all rows share"


@pytest.mark.parametrize(
    ("character", "escaped"),
    [(character, f"\\{character}") for character in "&%$#_{}"]
    + [("^", "\\textasciicircum{}"), ("~", "\\textasciitilde{}"), ("\\", "\\textbackslash{}")],
)
def test_a_caption_escapes_all_of_latexs_special_characters(character, escaped):
    """Broken by a caption in which a character is a command.

    For example, `^` outside mathematics ends LaTeX with an error.
    """
    value = [Column(heading="value", cells=["1"], values=[1])]
    assert f"\\caption{{a{escaped} b}}" in latex_of(value, f"a{character} b")
    shared = Column(heading="model", cells=["x", f"m{character}1"], name=True)
    same_column = Column(heading="data", cells=[f"d{character}1"] * 2, name=True)
    numbered = Column(heading="value", cells=["1", "2"], values=[1, 2])
    assert f"\\caption{{t: data=d{escaped}1}}" in latex_of([shared, same_column, numbered], "t")


def test_the_page_draws_every_difference(tmp_path):
    paired = {
        "n": 2,
        "difference": 0.5,
        "ci95": [0.2, 0.9],
        "p_mcnemar": 0.01,
        "to_right": 1,
        "to_wrong": 0,
    }
    answers = [("1", 0.0), ("x", 1.0)], [("2", 1.0), ("x", 1.0)]
    runs = pair_of_runs(
        tmp_path, *answers, paired={"t": {"exact_match,none": paired}}, untuned=True
    )
    page = tree(write_runs_page(runs, tmp_path / "page.html"))
    [drawn] = page.xpath("//section[@aria-labelledby='verdict']//img/@src")
    svg = b64decode(drawn.removeprefix("data:image/svg+xml;base64,")).decode()
    words = {
        element.text
        for element in ElementTree.fromstring(svg).iter()
        if element.tag.endswith("text")
    }
    assert {"roe, p = 0.01", "t, 2 examples"} <= words
    run_alone = pair_of_runs(tmp_path / "alone", *answers)
    assert not tree(write_runs_page(run_alone, tmp_path / "alone.html")).xpath("//img")


def test_a_figure_is_the_same_file_each_time_and_text_is_text(tmp_path):
    files = []
    for name in "ab":
        drawing = draw_control(cell_table(cell_of(), cell_of(method="base")))
        png, _ = drawing.save(tmp_path / name, "f", "a <b> & c")
        files.append((png.read_bytes(), png.with_suffix(".svg").read_text()))
    assert files[0] == files[1]
    text = files[0][1]
    words = {
        element.text
        for element in ElementTree.fromstring(text).iter()
        if element.tag.endswith("text")
    }
    assert "a <b> & c" in words
    text = re.sub(r'(xmlns(:\w+)?|rdf:\w+)="[^"]*"|<!DOCTYPE[^>]*>', "", text)
    assert "http" not in text, "asks for nothing"
