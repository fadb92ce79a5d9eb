"""The files of a stored evaluation: a run's folder, or what lm-eval's own tracker writes.

lm-eval writes `<output_path>/<model>/results_<date>.json` and `samples_<task>_<date>.jsonl` next to
it, or for an `output_path` that ends in .json `<its name>_<date>.json`.
"""

import re
from pathlib import Path

from moe_lab.config.terminal import one_line, print_message
from moe_lab.errors import ConfigError

DATED = re.compile(r".+_(?P<date>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(\.\d+)?)\.json")
"""The name of a results file of lm-eval."""


def results_file(key: str, path: Path) -> Path:
    """The results file that `<key>=<path>` means: the file itself, or that of a folder.

    A folder is a run's, lm-eval's `output_path`, or a model's folder in it. Of several results in
    one folder the newest is taken, with a line on stderr. Raises ConfigError where there is none,
    or several folders have one.
    """
    if path.is_file() and path.suffix == ".json":
        return path
    candidates = [path]
    if not _results_in(path) and path.is_dir():
        candidates = sorted(folder for folder in path.iterdir() if folder.is_dir())
    with_results = [folder for folder in candidates if _results_in(folder)]
    if not with_results:
        raise ConfigError(
            f"{key}={one_line(path)} has no results. Give a run's folder, a results_*.json of "
            "lm-eval, or its folder."
        )
    if len(with_results) > 1:
        raise ConfigError(
            f"{key}={one_line(path)} has results in {len(with_results)} folders. Name one of them, "
            f"such as {key}={one_line(with_results[0])}."
        )
    results = _results_in(with_results[0])
    newest = results[-1]
    if len(results) > 1:
        print_message(f"{key}={one_line(newest)} is the newest of {len(results)} results there.")
    return newest


def _results_in(folder: Path) -> list[Path]:
    """The results of a folder without its subfolders, the newest last."""
    if (folder / "results.json").is_file():
        return [folder / "results.json"]
    dated = []
    for file in folder.glob("*"):
        match = DATED.fullmatch(file.name)
        if match is not None:
            dated.append((match["date"], file))
    return [file for _, file in sorted(dated)]


def lm_eval_samples(results: Path, task: str) -> Path:
    """The sample log of a task that belongs to a results file of lm-eval.

    Raises ConfigError for a name without lm-eval's date, and where the log is missing.
    """
    match = DATED.fullmatch(results.name)
    if match is None:
        raise ConfigError(
            f"{one_line(results)}: give it lm-eval's name (results_<date>.json), by which its "
            "samples are found."
        )
    file = results.with_name(f"samples_{task}_{match['date']}.jsonl")
    compressed = file.with_name(f"{file.name}.gz")
    if compressed.is_file() and not file.is_file():
        return compressed
    if not file.is_file():
        raise ConfigError(f"{one_line(file)} is missing. Evaluate again with --log_samples.")
    return file
