"""Finds the files of a stored evaluation: a run's folder, or what lm-eval's own tracker writes.

lm-eval writes `<output_path>/<model>/results_<date>.json` and `samples_<task>_<date>.jsonl` beside it, or for an
`output_path` that ends in .json `<its name>_<date>.json`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from moe_lab.config.terminal import one_line
from moe_lab.errors import ConfigError

DATED = re.compile(r".+_(?P<date>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(\.\d+)?)\.json")
"""The name of a results file of lm-eval."""
OWN = "results.json"
SHOWN = 5
"""Folders that an error names."""


def results_file(key: str, path: Path) -> Path:
    """The results file that `<key>=<path>` means: the file itself, or that of a folder.

    A folder is a run's, lm-eval's `output_path`, or a model's folder in it. Of several results in one folder the newest
    is taken, with a line on stderr. Raises ConfigError where there is none, or several folders have one.
    """
    if path.is_file():
        if path.suffix != ".json":
            raise ConfigError(
                f"{key}={one_line(path)} is no results file. Give its results_*.json, or the folder."
            )
        return path
    if not path.is_dir():
        raise ConfigError(f"{key}={one_line(path)}: there is no such file or folder.")
    folders = {folder: found for folder in (path, *sorted(path.iterdir())) if (found := _results_in(folder))}
    if path in folders:
        folders = {path: folders[path]}
    if not folders:
        raise ConfigError(
            f"{key}={one_line(path)} has no results. Give a run's folder, a results_*.json of lm-eval, or its folder."
        )
    if len(folders) > 1:
        named = "".join(f"\n  {key}={one_line(folder)}" for folder in list(folders)[:SHOWN])
        raise ConfigError(
            f"{key}={one_line(path)} has results in {len(folders)} folders. Name one of them:{named}"
        )
    [found] = folders.values()
    if len(found) > 1:
        print(f"{key}={one_line(found[-1])} is the newest of {len(found)} results there.", file=sys.stderr)
    return found[-1]


def _results_in(folder: Path) -> list[Path]:
    """The results of a folder without its subfolders, the newest last."""
    if not folder.is_dir():
        return []
    if (folder / OWN).is_file():
        return [folder / OWN]
    dated = [(match["date"], file) for file in folder.iterdir() if (match := DATED.fullmatch(file.name))]
    return [file for _, file in sorted(dated)]


def lm_eval_samples(results: Path, task: str) -> Path:
    """The sample log of a task that belongs to a results file of lm-eval.

    Raises ConfigError for a name without lm-eval's date, and where the log is missing.
    """
    match = DATED.fullmatch(results.name)
    if match is None:
        raise ConfigError(
            f"{one_line(results)}: its samples are not known, as its name does not end in lm-eval's date. Give it the "
            "name that lm-eval gave it (results_<date>.json)."
        )
    file = results.with_name(f"samples_{task}_{match['date']}.jsonl")
    if not file.is_file():
        raise ConfigError(
            f"{one_line(file)} is missing. Evaluate again with --log_samples; lm-eval then writes it."
        )
    return file
