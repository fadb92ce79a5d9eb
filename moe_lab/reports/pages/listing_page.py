"""`outputs/index.html`: the list of all runs, studies and trainings in an output folder, finished or not."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from moe_lab.config.progress import Progress
from moe_lab.reports.pages.answers import baseline_of
from moe_lab.reports.pages.page import collecting, write_page
from moe_lab.reports.pages.runs_page import write_origin_page, write_runs_page
from moe_lab.reports.papers.files import typed_settings
from moe_lab.reports.provenance import command, not_shared
from moe_lab.reports.scores import CommandTable
from moe_lab.results.folder import RunFolder
from moe_lab.results.model import read_run
from moe_lab.results.score_table import SeedGroup, family_of
from moe_lab.results.scores import scores_of
from moe_lab.results.stored_files import read_mapping, warn_once, whole_mapping

RUN, STUDY, TRAINING = "run", "study", "training"
DONE, RUNNING, STOPPED = "done", "running", "stopped"
ELSEWHERE = ("name", "seed")
"""Settings with a column of their own."""
NAMED_ELSEWHERE = ("model=", "method=", "method.", "task=", "seed=", "limit=")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A stored run, study or training."""

    kind: str
    folder: str
    """Below the output folder."""
    model: str
    method: str
    task: str = ""
    settings: Mapping[str, Any]
    """All settings. After `own_settings` those that other entries of its kind and method do not share."""
    seed: int | None
    n: int | None = None
    """Documents, finished trials, or optimizer steps."""
    metric: str = ""
    score: float | None = None
    interval: tuple[float, float] | None = None
    """At 95%, over documents."""
    changed: str
    """The UTC time at which it ended or was last written."""
    state: str
    """DONE, RUNNING, STOPPED, or the error that ended it."""
    command: str = ""
    marks: tuple[str, ...] = ()
    """The notes of its score."""

    @property
    def state_word(self) -> str:
        """`done`, `running`, `stopped` or `error`."""
        return self.state if self.state in (DONE, RUNNING, STOPPED) else "error"


def stored_entries(output: Path) -> tuple[list[Entry], list[str]]:
    """All entries of an output folder, the newest first, with the settings in which they differ.

    The second value has a sentence for each folder that cannot be read.
    """
    readers = {"runs": _run, "studies": _study, "models": _training}
    found, problems = [], list[str]()
    for part, read in readers.items():
        for folder in sorted((output / part).glob("*/")):
            with collecting(problems, folder):
                if (entry := read(folder)) is not None:
                    found.append(entry)
    return sorted(own_settings(found), key=lambda entry: entry.changed, reverse=True), problems


def own_settings(entries: Sequence[Entry]) -> list[Entry]:
    """The entries without the settings that all of their kind and method share."""
    settings = [
        [(key, json.dumps(value, sort_keys=True)) for key, value in one.settings.items()] for one in entries
    ]
    own = not_shared(settings, [(entry.kind, entry.method) for entry in entries])
    return [
        replace(entry, settings={key: entry.settings[key] for key, _ in shown})
        for entry, shown in zip(entries, own, strict=True)
    ]


def _run(folder: Path) -> Entry | None:
    """A run, finished or not; None for a folder without a configuration."""
    read_mapping(folder / "results.json")  # raises DamagedError
    run = read_run(folder)
    place: dict[str, Any] = {"kind": RUN, "folder": f"runs/{folder.name}", "changed": _changed(folder)}
    if run is not None:
        for score in scores_of(run)[:1]:
            place |= {
                "metric": score.metric,
                "score": score.value,
                "interval": score.interval,
                "marks": score.marks,
            }
        return Entry(
            **place,
            model=run.model,
            method=run.method,
            task=", ".join(run.requested),
            settings=_settings(run.method_config, run.overrides),
            seed=run.seed,
            n=run.num_documents,
            state=DONE,
            command=command(run.overrides, run.config_dirs),
        )
    config = read_mapping(folder / "config.yaml")
    if config is None:
        return None
    file, task = folder / "overrides.yaml", config["task"]["name"]
    overrides = list(map(str, yaml.safe_load(file.read_text(encoding="utf-8")))) if file.is_file() else []
    return Entry(
        **place,
        model=config["model"]["name"],
        method=config["method"]["name"],
        task=task if isinstance(task, str) else ", ".join(task),
        settings=_settings(config["method"], overrides),
        seed=config.get("seed"),
        state=_state(folder),
        command=command(overrides, config.get("config_dirs", [])),
    )


def _study(folder: Path) -> Entry | None:
    study = read_mapping(folder / "study.json")
    if study is None:
        return None
    best = read_mapping(folder / "best.yaml") or {}
    shown = ("n", "skip_layers", "max_temperature", "cache", "n_trials", "num_samples")
    return Entry(
        kind=STUDY,
        folder=f"studies/{folder.name}",
        model=study["model"],
        method=f"tuning={study['tuning']}",
        task=study["task"],
        settings={key: study.get(key) for key in shown},
        seed=study.get("seed"),
        n=best.get("trials"),
        metric=f"{study['metric']} on tuning documents",
        score=best.get("score"),
        changed=_changed(folder),
        state=DONE if study.get("finished") else _state(folder),
    )


def _training(folder: Path) -> Entry | None:
    identity, training = (read_mapping(folder / name) for name in ("identity.json", "training.json"))
    known = training or identity
    if known is None:
        return None
    method = str(known.get("method", "training"))
    loss = (training or {}).get("validation") or {}
    return Entry(
        kind=TRAINING,
        folder=f"models/{folder.name}",
        model=folder.name.partition(f"-{method}")[0],
        method=method,
        settings=known.get("recipe") or {},
        seed=known.get("seed"),
        n=(training or {}).get("steps"),
        metric="held-out loss" if loss else "",
        score=loss.get("loss", (loss.get("losses") or [{}])[-1].get("loss")),
        changed=_changed(folder),
        state=_state(folder) if training is None else DONE,
    )


def _state(folder: Path) -> str:
    """The state of a folder without a result."""
    if RunFolder(folder, "").is_held():
        return RUNNING
    return str((whole_mapping(folder / "status.json") or {}).get("reason", STOPPED))


def _record(folder: Path) -> Path:
    """The file that was written when it ended; the folder if it has not."""
    names = ("results.json", "training.json", "study.json", "status.json")
    return next((folder / name for name in names if (folder / name).is_file()), folder)


def _changed(folder: Path) -> str:
    """The time at which it ended or was begun."""
    return datetime.fromtimestamp(_record(folder).stat().st_mtime, UTC).isoformat(" ", "minutes")[:16]


def _settings(method: Mapping[str, object], overrides: Sequence[str]) -> dict[str, object]:
    """A method's keys, and the other typed overrides that change numbers."""
    typed = [text for text in typed_settings(overrides) if not text.startswith(NAMED_ELSEWHERE)]
    pairs = (text.partition("=") for text in typed)
    return {k: v for k, v in method.items() if k not in ELSEWHERE} | {key: value for key, _, value in pairs}


LONGEST_VALUE = 60
"""Characters of a setting in the list."""


def setting_texts(settings: Mapping[str, Any]) -> Iterator[str]:
    """Settings as `n=8`. A path is cut to its last two parts, and a list to its beginning."""
    for key, value in settings.items():
        shown = value if isinstance(value, str) else json.dumps(value)
        if shown.startswith("/") and shown.count("/") > 2:
            shown = "…/" + "/".join(shown.rsplit("/", 2)[-2:])
        elif len(shown) > LONGEST_VALUE:
            shown = shown[:LONGEST_VALUE] + "…"
        yield f"{key}={shown}"


# `outputs/index.html`: every stored run, study and training

FILTERS = ("kind", "model", "method", "task", "state_word")


def write_listing_page(output: Path) -> Path | None:
    """Write `index.html` into an output folder, and `report.html` into each finished entry's; return the first.

    Returns None if nothing is stored there. Raises ResultsError.
    """
    entries, problems = stored_entries(output)
    done = [entry for entry in entries if entry.state == DONE]
    with Progress(len(done), "pages", "page", shown=bool(done)) as progress:
        for entry in done:
            with collecting(problems, output / entry.folder):
                _write_entry_page(output / entry.folder, entry)
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
        entries=[
            (one, "; ".join(setting_texts(one.settings)), (output / one.folder / "report.html").is_file())
            for one in entries
        ],
        compared=[_compared(entry) for entry in entries],
        counts=Counter(entry.kind for entry in entries),
        choices={name: sorted({*(getattr(entry, name) for entry in entries)} - {""}) for name in FILTERS},
        problems=problems,
        tables="tables/index.html" if tables.is_file() else None,
        pages=[f"pages/{page.name}" for page in sorted((output / "pages").glob("*.html"))],
    )


def _compared(entry: Entry) -> dict[str, object]:
    """The facts of a ticked entry that the page shows next to those of another one."""
    names = ("kind", "model", "method", "task", "metric", "n", "seed")
    facts = {name: getattr(entry, name) for name in names}
    settings = dict(text.split("=", 1) for text in setting_texts(entry.settings)) | {
        "notes": " ".join(entry.marks)
    }
    return {
        "name": entry.folder,
        "facts": {name: "" if value is None else str(value) for name, value in facts.items()} | settings,
        "score": entry.score,
        "interval": entry.interval,
    }


def _write_entry_page(folder: Path, entry: Entry) -> None:
    """Write the page of a run and its baseline, or of a study or training.

    A page that is newer than what it shows is kept.
    """
    page = folder / "report.html"
    if page.is_file() and page.stat().st_mtime > _record(folder).stat().st_mtime:
        return
    if entry.kind != RUN:
        write_origin_page(folder)
        return
    run = read_run(folder)
    assert run is not None, entry
    baseline = baseline_of(run)
    family = family_of([SeedGroup([run])])  # the page has no other run's comparisons
    write_runs_page(CommandTable([run] if baseline is None else [baseline, run], family=family), page)
