"""The pages in Chromium: no error, no request, sorting and search. Skipped where
chromium or playwright is missing.

Broken by a script that fails, a page that asks for anything outside of it, an answer
that is executed, and what the keyboard does not reach.
"""

import shutil
import time

import pytest

from moe_lab.reports.figures import write_study_figures
from moe_lab.reports.pages.tables_page import write_tables_page
from moe_lab.reports.papers.cells import TableCell
from moe_lab.reports.papers.published import Published
from tests.support.pages import HOSTILE
from tests.support.stored_results import cell_table, results_of
from tests.support.stored_runs import choice_line, generated_line, pair_of_runs, stored_run
from tests.support.stored_studies import PROFILE, write_study
from tests.support.views import write_record, write_runs_page

pytestmark = pytest.mark.slow
DOCUMENTS = 10_000
PAIRED = {
    "n": 1,
    "difference": 1.0,
    "ci95": [-0.2, 1.0],
    "p_mcnemar": 1.0,
    "to_right": 1,
    "to_wrong": 0,
}
COLUMNS = ["answer", "example", "question", "target", "this run"]
SECONDS = 2.0
"""In which a page of DOCUMENTS opens, and in which it is searched."""


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=[(1280, "light"), (390, "dark")], ids=["laptop", "phone"])
def opened(browser, request):
    """A function that opens a page.

    At the end nothing was logged, requested or wider than the screen.
    """
    width, scheme = request.param
    tab = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    tab.set_default_timeout(5000)
    seen = []

    def note_request(request):
        if not request.url.startswith(("file:", "data:")):
            seen.append(request.url)

    tab.on("console", lambda message: seen.append(message.text))
    tab.on("pageerror", lambda error: seen.append(str(error)))
    tab.on("dialog", lambda dialog: (seen.append("a dialog"), dialog.dismiss()))
    tab.on("request", note_request)

    def open_page(path):
        tab.goto(path.as_uri())
        return tab

    yield open_page
    assert seen == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tab.close()


@pytest.fixture
def opened_run(opened, tmp_path):
    """A function that opens the page of a run with these lines, which is compared with none."""
    return lambda *lines: opened(
        write_runs_page([stored_run(tmp_path, "c" * 64, lines, "base")], tmp_path / "report.html")
    )


@pytest.fixture
def opened_pair(opened, tmp_path):
    """A function that opens the page of RoE's and the base model's answers."""
    return lambda *answers: opened(
        write_runs_page(pair_of_runs(tmp_path, *answers), tmp_path / "report.html")
    )


def visible(tab, cell=0):
    """A cell of each visible row, in their order."""
    return tab.eval_on_selector_all(
        "[data-row]",
        (
            "(rows, cell) => rows.filter(row => row.checkVisibility()).map(row => "
            "row.cells[cell].textContent)"
        ),
        cell,
    )


def test_tables_are_sorted_and_filtered(opened, tmp_path):
    values = {"u": 0.25, "t": 0.75, "v": 0.5}
    cells = [
        TableCell(
            coordinates={"task": task}, run_id=task, results=[results_of(value=value, run_id=task)]
        )
        for task, value in values.items()
    ]
    cells.append(TableCell(coordinates={"task": "w"}, run_id="w", problem=HOSTILE))
    paper = [Published(cell={"task": "t"}, value=74.0, unit="percent", place="Table 9")]
    table = cell_table(rows=["task"], paper=paper, name="roe/table9", title=HOSTILE)
    write_record(table.experiment, "paper", cells, tmp_path)
    write_record(cell_table(name="c3po/table1").experiment, "paper", [], tmp_path)
    tab = opened(write_tables_page(tmp_path))
    box = tab.get_by_role("columnheader", name="value", exact=True).last.bounding_box()
    assert box["x"] + box["width"] <= tab.viewport_size["width"], "the value is in sight"
    assert visible(tab) == ["u", "t", "v", "w"]
    sort = tab.get_by_role("button", name="value", exact=True).last
    sort.focus()
    tab.keyboard.press("Enter")
    assert visible(tab) == ["u", "v", "t", "w"], "by value, the empty cell last"
    sort.click()
    assert visible(tab) == ["t", "v", "u", "w"]
    assert tab.get_attribute("th:has(button:focus)", "aria-sort") == "descending"
    tab.select_option("select[name=state]", "agrees")
    assert visible(tab) == ["t"]
    assert tab.text_content("form [role=status]") == "1 of 4 rows"
    tab.select_option("select[name=state]", "")
    tab.fill("form input", "onerror FAILED")
    assert visible(tab) == ["w"]
    tab.select_option("select[name=paper]", "C3PO")
    assert visible(tab) == []


def test_answers_are_text_and_can_be_searched(opened_pair):
    before = [(f"same {HOSTILE} {i}", float(i % 2)) for i in range(50)]
    after = [(f"same {HOSTILE} other {i}", float(i % 3 == 0)) for i in range(50)]
    tab = opened_pair(before, after)
    assert tab.locator(".answer").count() == 25
    assert tab.locator(".answer[open]").count() == 1
    own_row = after[0 if after[0][1] > before[0][1] else 2][0]
    assert tab.locator(".answer pre").nth(2).text_content() == own_row
    assert tab.locator(".answer pre").nth(2).locator("mark").text_content().strip() == "other"
    assert tab.locator(".answer > summary .short").nth(2).text_content() == f"this run: {own_row}"
    status = tab.locator("#answer-filters [role=status]")
    expected = sum(new[1] > old[1] for old, new in zip(before, after, strict=True))
    tab.select_option("#answer-filters select[name=kind]", "wrong to right")
    assert status.text_content() == f"{expected} of 50 answers"
    for kind, count in {"right": 17, "wrong": 33, "changed": 50}.items():
        tab.select_option("#answer-filters select[name=kind]", kind)
        assert status.text_content() == f"{count} of 50 answers"
    tab.select_option("#answer-filters select[name=kind]", "")
    tab.get_by_role("button", name="Next").click()
    assert tab.input_value(".pager input") == "2"
    assert tab.text_content(".pager span") == "of 2"
    assert tab.locator(".pager [name=on]").is_disabled()
    tab.fill(".pager input", "1")
    tab.keyboard.press("Enter")
    assert tab.locator(".pager [name=back]").is_disabled()
    for opened_lines in (25, 0):
        tab.get_by_role("button", name="Open or close all").click()
        assert tab.locator(".answer[open]").count() == opened_lines
    tab.fill("#answer-filters input", "other 49")
    assert status.text_content() == "1 of 50 answers"
    assert tab.locator(".answer").count() == 1


def test_answers_of_one_run_and_a_long_prompt(opened_run):
    """A run that is not compared; a click shows the whole prompt with its few-shot examples."""
    lines = [
        generated_line(i, (f"answer {i}", float(i % 2)), "Example. " * 200 + HOSTILE)
        for i in range(4)
    ]
    tab = opened_run(*lines)
    tab.select_option("#answer-filters select[name=kind]", "right")
    assert tab.locator(".columns span").all_text_contents() == COLUMNS
    lines = tab.locator(".answer > summary")
    assert [line.locator("> span").all_text_contents() for line in lines.all()] == [
        [
            "right",
            f"t {i}",
            f"{'Example. ' * 200}{HOSTILE} {i}"[:200],
            f"target: target {i}",
            f"this run: answer {i}",
        ]
        for i in (1, 3)
    ]
    first = tab.locator(".answer .content").first
    assert first.locator("h3").all_text_contents() == ["Prompt, its end", "this run", "Target"]
    whole = first.locator("details pre")
    assert not whole.is_visible()
    first.locator("summary").focus()
    tab.keyboard.press("Enter")
    assert whole.is_visible()
    assert whole.text_content() == f"{'Example. ' * 200}{HOSTILE} 1"


def test_choices_with_a_prompt_each_are_told_apart(opened_run):
    """Like WinoGrande: both choices begin with the examples and the sentence, and end alike."""
    line = choice_line(0, ((-1.0, -2.0, -3.0), 1.0)) | {"target": "was big."}
    shots = (
        "An example of another question, long enough.\n\n"
        "The trophy did not fit into the old suitcase because the "
    )
    for request, word in zip(
        line["arguments"].values(), ("trophy", "suitcase", "box"), strict=True
    ):
        request |= {"arg_0": shots + word, "arg_1": "was big."}
    tab = opened_run(line)
    cells = tab.locator(".answer > summary > span").all_text_contents()
    assert cells[2:] == [
        "The trophy did not fit into the old suitcase because the … was big.",
        "target: ",
        "this run: trophy",
    ]


def test_texts_without_a_space_break_and_a_long_prompt_is_scrolled_by_itself(opened_run):
    """400,000 characters of a prompt are no taller than a screen, and the keyboard scrolls them."""
    long = "x" * 500
    prompt = "y" * 400_000
    choices = choice_line(0, ((-3.0, -1.0, -2.0), 1.0)) | {
        "metrics": ["exact_match"],
        "exact_match": 1.0,
    }
    for request in choices["arguments"].values():
        request |= {"arg_0": prompt, "arg_1": f" {long}"}
    lines = [
        choices,
        generated_line(1, (long, 0.0), prompt) | {"target": long, "filtered_resps": [long[1:]]},
    ]
    tab = opened_run(*lines)
    assert tab.locator(".answer").count() == 2
    tab.locator(".answer > summary").last.click()
    for content in tab.locator(".answer .content").all():
        content.locator("summary").click()
        region = content.get_by_role("region", name="The prompt as the model saw it")
        region.wait_for()
        assert region.bounding_box()["height"] < 600
        assert region.get_attribute("tabindex") == "0"


def test_what_the_metric_reads_is_shown(opened_run):
    lines = [generated_line(0, ("5 + 60 = 65 #### 65", 1.0)) | {"filtered_resps": ["65"]}]
    tab = opened_run(*lines)
    assert tab.locator(".answer .box p").text_content() == "The metric reads: 65"


def test_values_are_in_sight_and_the_focus_is_seen(opened, tmp_path):
    """Broken by a table whose score is beyond the right edge of a phone,
    and by controls without outline."""
    runs = pair_of_runs(
        tmp_path, [("1", 0.0)], [("2", 1.0)], paired={"t": {"exact_match,none": PAIRED}}
    )
    tab = opened(write_runs_page(runs, tmp_path / "report.html"))
    box = tab.get_by_role("columnheader", name="value", exact=True).bounding_box()
    assert box["x"] + box["width"] <= tab.viewport_size["width"]
    for _ in range(12):
        tab.keyboard.press("Tab")
        seen = tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert seen != "none" or tab.evaluate("document.activeElement === document.body")


def test_headings_sort_with_both_keys_and_are_large_enough_for_a_finger(opened_pair):
    tab = opened_pair([("1", 0.0)], [("2", 1.0)])
    for index, key in enumerate(["Enter", "Space"]):
        heading = tab.get_by_role("button", name=["method", "value"][index], exact=True)
        heading.focus()
        tab.keyboard.press(key)
        assert tab.get_attribute("th:has(button:focus)", "aria-sort") == "ascending"
    for button in tab.locator("#scores ~ .wide th button").all():
        box = button.bounding_box()
        assert box["width"] >= 24, button.text_content()
        assert box["height"] >= 24, button.text_content()


def test_figures_are_scrolled_with_the_keyboard(opened, tmp_path):
    """As wide as printed, so that a phone shows part of it, in a region with a name."""
    run = stored_run(tmp_path, "c" * 64, [generated_line(0, ("1", 1.0))], "base")
    study = write_study(tmp_path / "studies" / "s", [2.0, 1.0], temperature=PROFILE)
    write_study_figures(study)
    (study / "figures").rename(run.folder / "figures")
    tab = opened(write_runs_page([run], tmp_path / "report.html"))
    region = tab.get_by_role("region", name="heatmap of base on t")
    phone = tab.viewport_size["width"] < 1000
    assert region.count() == phone
    assert not phone or region.get_attribute("tabindex") == "0"


def test_what_is_opened_is_scrolled_with_the_keyboard(opened_pair):
    """A table in a closed part of the page has no width until it is opened."""
    tab = opened_pair([("1", 0.0)], [("2", 1.0)])
    tab.locator("#provenance ~ details summary").first.focus()
    tab.keyboard.press("Enter")
    wide = tab.locator("#provenance ~ details .wide")
    scrolled_if_focusable = (
        "wide => (wide.scrollWidth > wide.clientWidth) === (wide.tabIndex === 0)"
    )
    tab.wait_for_function(scrolled_if_focusable, arg=wide.element_handle())


def test_many_answers_open_and_are_searched_at_once(browser, tmp_path):
    before = [("a wrong answer " * 10 + str(i), 0.0) for i in range(DOCUMENTS)]
    after = [("a right answer " * 10 + str(i), 1.0) for i in range(DOCUMENTS)]
    path = write_runs_page(pair_of_runs(tmp_path, before, after), tmp_path / "report.html")
    tab = browser.new_page()
    began = time.perf_counter()
    tab.goto(path.as_uri())
    tab.wait_for_selector(".answer")
    opened = time.perf_counter()
    tab.fill("#answer-filters input", f"Question {DOCUMENTS - 1}")
    tab.wait_for_function(
        "document.querySelector('#answer-filters [role=status]').textContent.startsWith('1 of')"
    )
    searched = time.perf_counter()
    tab.close()
    assert opened - began < SECONDS
    assert searched - opened < SECONDS


def test_everything_is_printed(browser, tmp_path):
    """In print there are no controls, and tables are whole."""
    tab = browser.new_page()
    runs = pair_of_runs(tmp_path, [("1", 0.0)], [("2", 1.0)])
    tab.goto(write_runs_page(runs, tmp_path / "r.html").as_uri())
    tab.emulate_media(media="print")
    assert not tab.locator(".filters").is_visible()
    assert tab.locator(".answer .content").first.is_visible()
    assert tab.evaluate("getComputedStyle(document.querySelector('.wide')).overflowX") == "visible"
    tab.close()
