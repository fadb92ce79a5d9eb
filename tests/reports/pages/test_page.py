"""Rendering. Broken by text that becomes markup or a command of LaTeX, and by a page that needs anything outside of it."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from base64 import b64decode

import pytest
from jinja2 import UndefinedError

from moe_lab.reports.columns import Column, texts
from moe_lab.reports.figures.comparisons import draw_control
from moe_lab.reports.pages.answers import answer_data
from moe_lab.reports.pages.page import (
    TEMPLATES,
    environment,
    latex_of,
    write_page,
)
from tests.support.pages import HOSTILE, contrast, foreign_urls, tree
from tests.support.stored_results import cell_of, cell_table
from tests.support.stored_runs import pair_of_runs
from tests.support.views import write_runs_page


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
    assert "default-src 'none'" in policy and "script-src 'sha256-" in policy and "unsafe-eval" not in policy
    assert "base-uri 'none'" in policy and "form-action 'none'" in policy
    assert len(root.xpath("//script")) == 1 and not root.xpath("//link[@rel='stylesheet']")


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["text", "soft", "accent", "good", "bad"])
def test_text_has_contrast(scheme, name):
    """At least 4.5 to 1 on the page, on panels, and of text on what is marked."""
    rules = re.findall(r":root {(.*?)}", (TEMPLATES / "style.css").read_text(), re.S)[scheme]
    colours = dict(re.findall(r"--(\w+): (#\w{6})", rules))
    for ground in ["page", "panel"] + ["mark"] * (name == "text"):
        assert contrast(colours[name], colours[ground]) >= 4.5, ground


def test_latex_has_booktabs_and_escapes():
    columns = [texts("task", ["a_b", "c"]), texts("value", ["61.0%", "1 & 2"])]
    text = latex_of(columns, "50% of a_b")
    assert all(rule in text for rule in ("\\toprule", "\\midrule", "\\bottomrule"))
    assert "a\\_b & 61.0\\%" in text and "1 \\& 2" in text and "\\caption{50\\% of a\\_b}" in text
    arrow = latex_of([texts("schedule", ["N\u2192R"]), texts("value", ["-0.1"])], "x")
    assert "N$\\rightarrow$R & -0.1" in arrow
    shared = [Column(heading="task", cells=["t_1", "t_1"], name=True), texts("value", ["1", "2"])]
    assert "\\caption{x: task=t\\_1}" in latex_of(shared, "x"), "what all rows share"


def test_the_page_draws_every_difference(tmp_path):
    paired = {"n": 2, "difference": 0.5, "ci95": [0.2, 0.9], "p_mcnemar": 0.01, "to_right": 1, "to_wrong": 0}
    answers = [("1", 0.0), ("x", 1.0)], [("2", 1.0), ("x", 1.0)]
    runs = pair_of_runs(tmp_path, *answers, paired={"t": {"exact_match,none": paired}}, untuned=True)
    page = tree(write_runs_page(runs, tmp_path / "page.html"))
    [drawn] = page.xpath("//section[@aria-labelledby='verdict']//img/@src")
    svg = b64decode(drawn.removeprefix("data:image/svg+xml;base64,")).decode()
    words = {element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")}
    assert {"roe, p = 0.01", "t, 2 examples"} <= words
    alone = pair_of_runs(tmp_path / "alone", *answers)
    assert not tree(write_runs_page(alone, tmp_path / "alone.html")).xpath("//img")


def test_a_figure_is_the_same_file_each_time_and_text_is_text(tmp_path):
    found = []
    for name in "ab":
        png, _ = draw_control(cell_table(cell_of(), cell_of(method="base"))).save(
            tmp_path / name, "f", "a <b> & c"
        )
        found.append((png.read_bytes(), png.with_suffix(".svg").read_text()))
    assert found[0] == found[1]
    text = found[0][1]
    words = {element.text for element in ElementTree.fromstring(text).iter() if element.tag.endswith("text")}
    assert "a <b> & c" in words
    text = re.sub(r'(xmlns(:\w+)?|rdf:\w+)="[^"]*"|<!DOCTYPE[^>]*>', "", text)
    assert "http" not in text, "asks for nothing"
