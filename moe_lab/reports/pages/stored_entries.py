"""Everything that an output folder holds, finished or not: runs, studies, trainings, with what tells them apart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from moe_lab.reports.pages.record import command
from moe_lab.reports.papers.table_files import typed_settings
from moe_lab.reports.scores import scores_of
from moe_lab.results import shapes
from moe_lab.results.folder import RunFolder
from moe_lab.results.stored_files import (
    MOST_YAML_BYTES,
    DamagedError,
    damaged,
    read_bytes,
    read_mapping,
    whole_mapping,
)

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
    task: str
    settings: Mapping[str, Any]
    """All settings, and after `tell_apart` those in which it differs from others of its kind and method."""
    seed: int | None
    n: int | None
    """Documents, finished trials, or optimizer steps."""
    metric: str
    score: float | None
    changed: str
    """When it ended or was written last, in UTC."""
    state: str
    """DONE, RUNNING, STOPPED, or the error that ended it."""
    command: str
    marks: tuple[str, ...] = ()
    """Of its score."""


def stored_entries(output: Path) -> tuple[list[Entry], list[str]]:
    """All entries of an output folder, the newest first, with the settings that tell them apart.

    The second value says what cannot be read, and why: a sentence for each folder that is left out.
    """
    readers: dict[str, Callable[[Path], Entry | None]] = {
        "runs": _run,
        "studies": _study,
        "models": _training,
    }
    found, problems = [], []
    for part, read in readers.items():
        for folder in sorted((output / part).glob("*/")):
            try:
                entry = read(folder)
            except DamagedError as error:
                problems.append(error.problem)
                continue
            if entry is not None:
                found.append(entry)
    return sorted(tell_apart(found), key=lambda entry: entry.changed, reverse=True), problems


def tell_apart(entries: Sequence[Entry]) -> list[Entry]:
    """The entries without the settings that all of their kind and method share."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.kind, entry.method), []).append(entry)
    shared = {place: _shared([one.settings for one in group]) for place, group in groups.items()}
    return [
        replace(
            entry,
            settings={k: v for k, v in entry.settings.items() if k not in shared[entry.kind, entry.method]},
        )
        for entry in entries
    ]


def _shared(settings: Sequence[Mapping[str, Any]]) -> set[str]:
    texts = [{key: json.dumps(value, sort_keys=True) for key, value in one.items()} for one in settings]
    return {key for key in texts[0] if all(one.get(key) == texts[0][key] for one in texts)}


def _run(folder: Path) -> Entry | None:
    file = folder / "results.json"
    results = read_mapping(file) or {}
    if "moe_lab" not in results:
        return _unfinished(folder)
    if (problem := shapes.results_misfit(results)) is not None:
        raise damaged(file, problem)
    block = results["moe_lab"]
    score = next(iter(scores_of(results)), None)
    overrides = block.get("overrides", [])
    return Entry(
        kind=RUN,
        folder=f"runs/{folder.name}",
        model=block["model"]["name"],
        method=block["method"]["name"],
        task=_joined(block["task"]["name"]),
        settings=_settings(block["method"].get("config", {}), overrides),
        seed=block.get("seed"),
        n=sum(map(len, block["samples"].values())),
        metric="" if score is None else score.metric,
        score=None if score is None else score.value,
        changed=_changed(folder),
        state=DONE,
        command=command(overrides),
        marks=() if score is None else score.marks,
    )


def _unfinished(folder: Path) -> Entry | None:
    """A run without a result; None for a folder without a configuration."""
    config = read_mapping(folder / "config.yaml", shape=shapes.CONFIG)
    if config is None:
        return None
    listed = folder / "overrides.yaml"
    overrides = _lines(listed) if listed.is_file() else []
    return Entry(
        kind=RUN,
        folder=f"runs/{folder.name}",
        model=config["model"]["name"],
        method=config["method"]["name"],
        task=_joined(config["task"]["name"]),
        settings=_settings(config["method"], overrides),
        seed=config.get("seed"),
        n=None,
        metric="",
        score=None,
        changed=_changed(folder),
        state=_state(folder),
        command=command(overrides),
    )


def _study(folder: Path) -> Entry | None:
    study = read_mapping(folder / "study.json", shape=shapes.STUDY)
    if study is None:
        return None
    best = read_mapping(folder / "best.yaml", shape=shapes.PROFILE) or {}
    status = whole_mapping(folder / "status.json") or {}
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
        state=DONE if status.get("status") == "success" else _state(folder),
        command="",
    )


def _training(folder: Path) -> Entry | None:
    identity, training = (
        read_mapping(folder / name, shape=shapes.TRAINING) for name in ("identity.json", "training.json")
    )
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
        task="",
        settings=known.get("recipe") or {},
        seed=known.get("seed"),
        n=(training or {}).get("steps"),
        metric="held-out loss" if loss else "",
        score=loss.get("loss", (loss.get("losses") or [{}])[-1].get("loss")),
        changed=_changed(folder),
        state=_state(folder) if training is None else DONE,
        command="",
    )


def _state(folder: Path) -> str:
    """The state of what has no result."""
    status = whole_mapping(folder / "status.json") or {}
    if RunFolder(folder, "").is_held():
        return RUNNING
    return str(status.get("error")) if status.get("status") == "error" else STOPPED


def _changed(folder: Path) -> str:
    """When it ended; else when its status was written."""
    status = folder / "status.json"
    ended = (whole_mapping(status) or {}).get("ended")
    if ended is None:
        place = status if status.is_file() else folder
        ended = datetime.fromtimestamp(place.stat().st_mtime, UTC).isoformat(timespec="seconds")
    return str(ended)[:16].replace("T", " ")


def _settings(method: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A method's keys, and what else was typed that changes numbers."""
    typed = [text for text in typed_settings(overrides) if not text.startswith(NAMED_ELSEWHERE)]
    pairs = (text.partition("=") for text in typed)
    return {k: v for k, v in method.items() if k not in ELSEWHERE} | {key: value for key, _, value in pairs}


def _joined(names: str | Sequence[str]) -> str:
    return names if isinstance(names, str) else ", ".join(names)


def _lines(path: Path) -> list[str]:
    import yaml

    try:
        found = yaml.safe_load(read_bytes(path, MOST_YAML_BYTES).decode("utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise damaged(path, error) from error
    return [str(line) for line in found] if isinstance(found, list) else []


def texts(settings: Mapping[str, Any]) -> Iterator[str]:
    """Settings as `n=8`; of a path its last two parts."""
    for key, value in settings.items():
        shown = value if isinstance(value, str) else json.dumps(value)
        yield f"{key}={'/'.join(shown.rsplit('/', 2)[-2:]) if shown.startswith('/') else shown}"
