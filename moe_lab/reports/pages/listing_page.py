"""`outputs/index.html`: every stored run, study and training."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from moe_lab.progress import Progress
from moe_lab.reports.pages.origins import write_origin_page
from moe_lab.reports.pages.page import UNEXPECTED, left_out, write_page
from moe_lab.reports.pages.runs_page import write_runs_page
from moe_lab.reports.pages.stored_entries import DONE, RUN, Entry, stored_entries, texts
from moe_lab.reports.pages.stored_run import StoredRun
from moe_lab.results.stored_files import DamagedError, parsed_once, warn_once

FILTERS = ("kind", "model", "method", "task", "state")


def write_listing_page(output: Path) -> Path | None:
    """Write `index.html` into an output folder, and `report.html` into each finished entry's; return the first.

    Returns None if nothing is stored there. Raises ResultsError.
    """
    entries, problems = stored_entries(output)
    done = [entry for entry in entries if entry.state == DONE]
    with Progress(len(done), "pages", "page", shown=bool(done)) as progress:
        for entry in done:
            if (problem := _page_problem(output / entry.folder, entry)) is not None:
                problems.append(problem)
            progress.update()
    for problem in problems:
        warn_once(f"{problem}. It is left out.")
    if not entries:
        return None
    tables = output / "tables" / "index.html"
    return write_page(
        output / "index.html",
        "listing.html.j2",
        folder=output.absolute().name,
        entries=[_line(output, entry) for entry in entries],
        counts=Counter(entry.kind for entry in entries),
        choices={name: _values(name, entries) for name in FILTERS},
        problems=problems,
        tables="tables/index.html" if tables.is_file() else None,
        pages=[f"pages/{page.name}" for page in sorted((output / "pages").glob("*.html"))],
    )


def _line(output: Path, entry: Entry) -> tuple[Entry, str, str, bool]:
    """An entry, its settings and state as texts, and whether it has a page."""
    has_page = (output / entry.folder / "report.html").is_file()
    return entry, "; ".join(texts(entry.settings)), state_word(entry), has_page


def _page_problem(folder: Path, entry: Entry) -> str | None:
    """Write an entry's page; why that is impossible, if it is."""
    try:
        _write_entry_page(folder, entry)
    except DamagedError as error:
        return error.problem
    except UNEXPECTED as error:
        return left_out(folder, error)
    return None


def _write_entry_page(folder: Path, entry: Entry) -> None:
    """Write the page of a run, with the run that it is compared with, or of a study or training.

    A page that is newer than the status of its folder stays.
    """
    page, status = folder / "report.html", folder / "status.json"
    if page.is_file() and status.is_file() and page.stat().st_mtime > status.stat().st_mtime:
        return
    if entry.kind != RUN:
        write_origin_page(folder)
        return
    run = StoredRun(folder, parsed_once(folder / "results.json") or {})
    baseline = run.baseline()
    write_runs_page([run] if baseline is None else [baseline, run], page)


def state_word(entry: Entry) -> str:
    """`done`, `running`, `stopped` or `error`."""
    return entry.state if entry.state in ("done", "running", "stopped") else "error"


def _values(name: str, entries: list[Entry]) -> list[str]:
    shown = (state_word(entry) if name == "state" else getattr(entry, name) for entry in entries)
    return sorted({value for value in shown if value})
