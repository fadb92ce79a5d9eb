"""One stored evaluation, of this package or of lm-eval: its scores and its sample logs."""

import re
from dataclasses import dataclass
from pathlib import Path

from moe_lab.config.terminal import one_line, print_message, without_secrets
from moe_lab.errors import ConfigError
from moe_lab.results.lm_eval_results import LmEvalResults
from moe_lab.results.model import RunResult
from moe_lab.results.reading import stored_results
from moe_lab.results.rounding import Rounding
from moe_lab.results.samples import Sample, read_samples, samples_file, samples_of
from moe_lab.results.scores import marks_of
from moe_lab.results.stored_files import damaged, read_lines, read_mapping

# The files of a stored evaluation: a run's folder, or what lm-eval's own tracker writes
#
# lm-eval writes `<output_path>/<model>/results_<date>.json` and `samples_<task>_<date>.jsonl` next to it, or for an
# `output_path` that ends in .json `<its name>_<date>.json`.

DATED = re.compile(r".+_(?P<date>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(\.\d+)?)\.json")
"""The name of a results file of lm-eval."""


def results_file(key: str, path: Path) -> Path:
    """The results file that `<key>=<path>` means: the file itself, or that of a folder.

    A folder is a run's, lm-eval's `output_path`, or a model's folder in it. Of several results in one folder the newest
    is taken, with a line on stderr. Raises ConfigError where there is none, or several folders have one.
    """
    named = f"{key}={one_line(path)}"
    if path.is_file() and path.suffix == ".json":
        return path
    below = sorted(folder for folder in path.iterdir() if folder.is_dir()) if path.is_dir() else []
    own = _results_in(path)
    folders = [own] if own else [found for folder in below if (found := _results_in(folder))]
    if not folders:
        raise ConfigError(
            f"{named} has no results. Give a run's folder, a results_*.json of lm-eval, or its folder."
        )
    if len(folders) > 1:
        raise ConfigError(
            f"{named} has results in {len(folders)} folders. Name one of them, such as "
            f"{key}={one_line(folders[0][0].parent)}."
        )
    [found] = folders
    if len(found) > 1:
        print_message(f"{key}={one_line(found[-1])} is the newest of {len(found)} results there.")
    return found[-1]


def _results_in(folder: Path) -> list[Path]:
    """The results of a folder without its subfolders, the newest last."""
    if (folder / "results.json").is_file():
        return [folder / "results.json"]
    dated = [
        (match["date"], file) for file in folder.glob("*") if (match := DATED.fullmatch(file.name))
    ]
    return [file for _, file in sorted(dated)]


def lm_eval_samples(results: Path, task: str) -> Path:
    """The sample log of a task that belongs to a results file of lm-eval.

    Raises ConfigError for a name without lm-eval's date, and where the log is missing.
    """
    match = DATED.fullmatch(results.name)
    if match is None:
        raise ConfigError(
            f"{one_line(results)}: give it lm-eval's name (results_<date>.json), by which its samples are found."
        )
    file = results.with_name(f"samples_{task}_{match['date']}.jsonl")
    compressed = file.with_name(f"{file.name}.gz")
    if compressed.is_file() and not file.is_file():
        return compressed
    if not file.is_file():
        raise ConfigError(f"{one_line(file)} is missing. Evaluate again with --log_samples.")
    return file


# One stored evaluation: its scores and its sample logs, whoever wrote them

MOVED = "Evaluate again, or give another result."
FIELDS = frozenset({"doc_id", "doc_hash", "prompt_hash", "target_hash", "filter", "metrics"})
"""What a line of a sample log needs."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What `results_*.json` and `samples_*.jsonl` hold."""

    key: str
    """The name in tables: `a`, `b`, or `b1`, `b2` where several are compared with `a`."""
    label: str
    """The model's name, and the method's for a run of this package."""
    settings: str
    """The overrides of a run of this package, else lm-eval's `model_args`."""
    file: Path
    """The results file."""
    samples_files: dict[str, Path]
    """The sample log of each task."""
    results: LmEvalResults
    """lm-eval's part of the file."""
    rounding: Rounding
    """Which values of it and of another evaluation are equal within rounding."""
    samples: dict[str, list[Sample]]
    """The lines of each task's sample log."""
    lm_eval_version: str | None
    run_id: str | None = None
    """Of a run of this package."""
    marks: tuple[str, ...] = ()
    """The notes of a run of this package."""

    def to_json(self) -> dict[str, object]:
        """Where it comes from."""
        return {
            "key": self.key,
            "label": self.label,
            "settings": self.settings,
            "file": str(self.file.absolute()),
            "samples": {task: str(file.absolute()) for task, file in self.samples_files.items()},
            "run_id": self.run_id,
            "lm_eval_version": self.lm_eval_version,
            "task_versions": self.results.task_versions,
            "marks": self.marks,
        }


def read_evaluation(key: str, path: Path) -> Evaluation:
    """The evaluation that `<key>=<path>` means.

    Raises ConfigError if there is none or its samples are missing, and DamagedError if a file cannot be read.
    """
    file = results_file(key, path)
    results = read_mapping(file, MOVED) or {}
    if not all(isinstance(results.get(part), dict) for part in ("results", "configs")):
        raise ConfigError(
            f"{key}={one_line(file)} is no result of lm-eval or moe_lab. Give the folder of a run, in runs/."
        )
    if "moe_lab" not in results:
        results = results | {"config": _without_secrets(results.get("config"))}
    stored = stored_results(results, file, MOVED)
    if isinstance(stored, RunResult):
        return _of_run(key, file, stored)
    return _of_lm_eval(key, file, stored)


def _of_run(key: str, file: Path, run: RunResult) -> Evaluation:
    """The evaluation of a run of this package."""
    tasks = [task for task in run.lm_eval.configs if task in run.lm_eval.results]
    return Evaluation(
        key=key,
        label=one_line(f"{run.model.name}-{run.method.name}"),
        settings=one_line(" ".join(run.overrides)),
        file=file,
        samples_files={task: samples_file(file.parent, task) for task in tasks},
        results=run.lm_eval,
        rounding=run.equality,
        samples=read_samples(run),
        lm_eval_version=run.versions.get("lm_eval"),
        run_id=run.run_id,
        marks=marks_of(run),
    )


def _of_lm_eval(key: str, file: Path, results: LmEvalResults) -> Evaluation:
    """An evaluation by lm-eval itself."""
    tasks = [task for task in results.configs if task in results.results]
    files = {task: lm_eval_samples(file, task) for task in tasks}
    settings = (results.config or {}).get("model_args") or ""
    if isinstance(settings, dict):
        settings = ",".join(f"{name}={value}" for name, value in settings.items())
    return Evaluation(
        key=key,
        label=one_line(results.model_name or "lm-eval").rstrip("/").rpartition("/")[2],
        settings=one_line(settings),
        file=file,
        samples_files=files,
        results=results,
        rounding=results.rounding,
        samples={task: _lines(files[task]) for task in tasks},
        lm_eval_version=results.lm_eval_version,
    )


def _without_secrets(config: object) -> object:
    """lm-eval's `config` of a foreign file, whose `model_args` may have keys of an API and passwords in URLs."""
    if not isinstance(config, dict):
        return config
    given = config.get("model_args")
    if isinstance(given, str):
        pairs = [part.partition("=") for part in given.split(",")]
        cleaned = without_secrets({name: value for name, _, value in pairs})
        return config | {
            "model_args": ",".join(f"{name}={value}" for name, value in cleaned.items())
        }
    if isinstance(given, dict):
        return config | {"model_args": without_secrets(given)}
    return config


def _lines(file: Path) -> list[Sample]:
    """The lines of lm-eval's sample log. Raises DamagedError for one without lines, or that lacks fields."""
    lines = read_lines(file, MOVED) or []
    lacking = set().union(*(FIELDS - line.keys() for line in lines))
    if lacking:
        raise damaged(
            file,
            f"lines lack {', '.join(sorted(lacking))}, which lm-eval 0.4.7 and later write",
            MOVED,
        )
    if not lines:
        raise damaged(file, "it is empty", MOVED)
    return samples_of(lines, file, MOVED)
