"""The documentation as a site.

Broken by: a link or anchor that leads nowhere, a page outside the navigation, a page that requests
something from outside, a file of the repository that a page names and that is not there,
a search that needs a server.
"""

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lxml import html

import moe_lab

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")])
NAMED = r"`((?:moe_lab|tests|conf|experiments|examples|benchmarks|docs)/[\w./-]+\.\w+)`"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A warning would end the build with an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(folder),
    ]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return folder


@pytest.mark.slow
def test_the_reference_has_every_public_name(site):
    """With its signature, its arguments as a list, its errors, and its examples as code."""
    page = html.parse(site / "reference.html")
    anchors = set(page.xpath("//@id"))
    assert {name.lower() for name in moe_lab.__all__} <= anchors
    assert "resultsexamples" in anchors
    text = " ".join(page.getroot().text_content().split())
    for name in moe_lab.__all__:
        first = inspect.getdoc(getattr(moe_lab, name)).split("\n\n")[0]
        assert " ".join(first.replace("`", "").split()) in text, name
    listed = {" ".join(item.text_content().split()) for item in page.xpath("//article//li")}
    assert any(item.startswith("temperature: of the noise (equation 1)") for item in listed)
    code = [block.text_content() for block in page.xpath("//article//code")]
    assert any("n: int = 32,\n" in block for block in code), (
        "arguments have their types and defaults"
    )
    assert any("with override(model, second_best):" in block for block in code)
    assert "Raises ConfigError" in text
    assert "Args:" not in text


@pytest.mark.slow
def test_pages_of_the_site_request_nothing_from_outside(site):
    for file in site.glob("*.html"):
        page = html.parse(file)
        requested = page.xpath("//@src | //link/@href | //form/@action | //object/@data")
        assert requested
        assert not [address for address in requested if re.match(r"(https?:)?//", address)]
    for style in site.rglob("*.css"):
        assert not re.search(
            r"(@import|url\()\s*['\"]?(https?:)?//", style.read_text(encoding="utf-8")
        )


@pytest.mark.slow
def test_the_site_is_searched_from_disk(site):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    seen: list[str] = []

    def note_request(request: Any) -> None:
        if not request.url.startswith(("file:", "data:")):
            seen.append(request.url)

    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.on("console", lambda message: seen.append(message.text))
        tab.on("pageerror", lambda error: seen.append(str(error)))
        tab.on("request", note_request)
        tab.goto((site / "index.html").as_uri())
        tab.fill("input.md-search__input", "Gumbel")
        tab.wait_for_selector(".md-search-result__item a", timeout=10_000)
        results = tab.locator(".md-search-result__link").all()
        links = [result.get_attribute("href") for result in results]
        browser.close()
    assert any("glossary.html" in link for link in links)
    assert seen == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page):
    text = page.read_text(encoding="utf-8")
    missing = [
        file_name for file_name in re.findall(NAMED, text) if not (ROOT / file_name).exists()
    ]
    links = re.findall(r"\]\(((?!https?:)[^)#]+)", text)
    missing += [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_comments_ask_for_data_dir_where_the_hub_has_no_data():
    """Only tasks with `local_only` data need it; other tasks fall back to the hub."""
    local = []
    for file in (ROOT / "moe_lab" / "tasks").rglob("*.yaml"):
        if "local_only" in file.read_text(encoding="utf-8"):
            local.append(file.stem)
    asking = []
    for folder in ("conf", "experiments"):
        for file in (ROOT / folder).rglob("*.yaml"):
            text = file.read_text(encoding="utf-8")
            if re.search(r"#.*\bneeds\b[^.\n]*\bdata_dir\b", text, re.IGNORECASE):
                asking.append(file.stem)
    assert "bigbench_choice" in local
    assert sorted(asking) == sorted(local), "the comment of conf/task/<name>.yaml: (needs data_dir)"
