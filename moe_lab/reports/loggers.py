"""What a command logs besides its files: nothing (`logger=none`), or W&B runs (`logger=wandb`).

W&B has one run per evaluated run, study, experiment and command with several runs. The files in the output folder
remain the primary record. The first failure is printed on stderr and ends the logging.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from moe_lab.config.schema import Config
from moe_lab.config.terminal import print_message, without_passwords
from moe_lab.reports.expert import expert_metrics_of, logged_values
from moe_lab.reports.frames import example_rows
from moe_lab.reports.papers.metrics import model_folder
from moe_lab.results.atomic import plain, write_json
from moe_lab.results.locks import acquire
from moe_lab.results.marks import marks_of
from moe_lab.results.model import RunResult
from moe_lab.results.samples import read_samples
from moe_lab.results.scores import scores_of
from moe_lab.results.stored_files import read_lines, read_mapping, warn_once, whole_mapping
from moe_lab.results.task_scores import reported

if TYPE_CHECKING:
    import pandas as pd

PROJECT = "moe_lab"
RECORD = "wandb.json"
"""In a run's folder: the W&B run that has its result."""
LOCK = ".wandb.lock"
"""In a study's folder: held by the process that logs to the study's W&B run."""
MOST_OF_AN_ID = 64
"""Characters of a W&B run's id, the last ones of the folder's name."""


class Logger:
    """The interface of loggers. This base class logs nothing."""

    logged = False
    """Whether the run's result was logged to the same place before."""

    def begin(self) -> None:
        """Show the run as running. Without this call it begins with the first value that is logged."""

    def log_results(self, result: RunResult) -> None:
        """A run ended. Its sample logs are in its folder."""

    def log_trial(
        self, number: int, value: float | None, temperatures: Sequence[float], state: str
    ) -> None:
        """A trial of a study ended. `temperatures` has one entry per MoE layer; `value` is None for a pruned trial."""

    def log_study(self, folder: Path) -> None:
        """A study ended: its trials.csv, best.yaml and study.json lie in `folder`."""

    def log_table(self, name: str, frame: pd.DataFrame) -> None:
        """The table of a command, or of an experiment."""

    def log_figure(self, path: Path) -> None:
        """A figure was drawn: a PNG, perhaps with its CSV next to it."""


@contextmanager
def open_logger(
    config: Config, *, kind: str, name: str, group: str | None, folder: Path | None = None
) -> Iterator[Logger]:
    """The logger of `logger=` for one run, study, experiment or command (`kind`).

    No logger costs a result. A W&B run finishes when the block ends, as failed if the block raises.

    Args:
        name: of a run or study its folder's.
        group: the command's name.
        folder: of a run, where the logger stores what it has logged; of a study, where it locks the study's W&B run.
    """
    mode = config.logger.mode or _mode_of_environment()
    if config.logger.name == "none" or mode == "disabled":
        yield Logger()
        return
    logger = WandbLogger(config, kind, name, group, mode, folder)
    try:
        yield logger
    except BaseException:
        logger.finish(exit_code=1)
        raise
    logger.finish(exit_code=0)


def _mode_of_environment() -> str | None:
    """WANDB_MODE, and `disabled` with WANDB_DISABLED, the older variable of wandb and transformers."""
    if os.environ.get("WANDB_DISABLED", "").lower() in ("1", "true", "yes", "on"):
        return "disabled"
    return os.environ.get("WANDB_MODE")


def _guarded(log: Callable[..., None]) -> Callable[..., None]:
    """A method of WandbLogger that never raises: no failure of a logger may cost a result. It is printed."""

    @wraps(log)
    def method(self: WandbLogger, *args: Any, **options: Any) -> None:
        if self._failed:
            return
        try:
            log(self, *args, **options)
        except Exception as error:
            self._failed = True
            warn_once(f"W&B: logs no further ({_reason(error)}). Results are not affected.")

    return method


class WandbLogger(Logger):
    """Logs to one W&B run. No method raises.

    The W&B run begins when the run's computation begins, so that W&B shows it running and, after an error, as failed.
    A refused or stored run begins none.
    """

    unreached = ""
    """Why this process did not reach the server, which it waits for once."""

    def __init__(
        self,
        config: Config,
        kind: str,
        name: str,
        group: str | None,
        mode: str | None,
        folder: Path | None,
    ):
        self._config, self._kind, self._name, self._mode = config, kind, name, mode
        self._group = config.logger.group or os.environ.get("WANDB_RUN_GROUP") or group
        project = config.logger.project or os.environ.get("WANDB_PROJECT", PROJECT)
        # a run or study that is continued continues its W&B run
        self._id = os.environ.get("WANDB_RUN_ID") or name[-MOST_OF_AN_ID:]
        self._place: dict[str, Any] = {
            "entity": config.logger.entity,
            "project": project,
            "id": self._id,
        }
        self._record = folder / RECORD if folder is not None and kind == "run" else None
        self._shared = folder / LOCK if folder is not None and kind == "study" else None
        self._lock: FileLock | None = None
        self._failed = False

    @property
    def logged(self) -> bool:  # type: ignore[override]
        return self._record is not None and whole_mapping(self._record) == self._place

    @_guarded
    def begin(self) -> None:
        self._run  # noqa: B018

    @_guarded
    def log_results(self, result: RunResult) -> None:
        import pandas as pd

        run = self._run
        run.config.update({"run_id": result.run_id})
        notes = map(str.lower, marks_of(result))
        run.tags = tuple(dict.fromkeys((*(run.tags or ()), *notes)))
        run.log(scores(result))
        if result.tuning:
            run.summary.update(by_layer(result.report.get("temperatures") or []))
        for task, samples in read_samples(result).items():
            run.log({f"samples/{task}": _table(pd.DataFrame(example_rows(result, task, samples)))})
        run.define_metric("training/*", step_metric="training/step")
        for line in training_lines(result):
            run.log(line)
        if (content := expert_metrics_of(result)) is not None:
            run.log(logged_values(content))
        if self._record is not None:
            write_json(self._record, self._place)

    @_guarded
    def log_trial(
        self, number: int, value: float | None, temperatures: Sequence[float], state: str
    ) -> None:
        for metric in ("value", "temperature/*"):
            self._run.define_metric(metric, step_metric="trial")
        scored = {} if value is None else {"value": value}
        self._run.log({"trial": number, "state": state} | scored | by_layer(temperatures))

    @_guarded
    def log_study(self, folder: Path) -> None:
        import pandas as pd

        study, best = (read_mapping(folder / name) or {} for name in ("study.json", "best.yaml"))
        self._run.config.update({"study": study})
        names = ("score", "untuned_score", "trial", "trials", "temperature")
        found = {name: best[name] for name in names} | (best.get("settings") or {})
        self._run.summary.update({f"best/{name}": value for name, value in found.items()})
        self._run.log({"trials": _table(pd.read_csv(folder / "trials.csv"))})
        self._run.log_artifact(folder / "best.yaml", name=self._name, type="profile")

    @_guarded
    def log_table(self, name: str, frame: pd.DataFrame) -> None:
        self._run.log({f"tables/{name}": _table(frame)})

    @_guarded
    def log_figure(self, path: Path) -> None:
        import pandas as pd
        import wandb

        if path.suffix == ".csv":
            self._run.log({f"tables/{path.stem}": _table(pd.read_csv(path))})
        else:
            self._run.log({f"figures/{path.stem}": wandb.Image(str(path))})

    @_guarded
    def finish(self, exit_code: int) -> None:
        """End the W&B run, if one was begun."""
        if "_run" in self.__dict__:
            self._run.finish(exit_code=exit_code)
        if self._lock is not None:
            self._lock.release()

    @cached_property
    def _run(self) -> Any:
        """The W&B run; offline without a key, or without a connection to the server."""
        if self._shared is not None:
            # several processes may work on one study, and W&B takes the run of an id from one of them
            self._lock = acquire(self._shared)
            if self._lock is None:
                self._place["id"] = None
        folder = Path(os.environ.get("WANDB_DIR") or self._config.output_dir).absolute()
        # W&B is to write under `folder` alone, and to send no error reports
        (folder / "wandb").mkdir(parents=True, exist_ok=True)
        folders = {
            f"WANDB_{name}_DIR": str(folder / "wandb" / name.lower()) for name in ("DATA", "CACHE")
        }
        for name, value in folders.items() | {
            ("WANDB_ERROR_REPORTING", "false"),
            ("WANDB_SILENT", "true"),
        }:
            os.environ.setdefault(name, value)
        mode, why = self._mode or "online", WandbLogger.unreached
        if mode == "online" and not has_key():
            mode, why = "offline", " (no API key: wandb login, or WANDB_API_KEY)"
        if mode == "online" and not why:
            try:
                run = self._init(mode, folder)
                print_message(f"W&B: {run.url}")
                return run
            except Exception as error:  # the run is logged offline
                why = WandbLogger.unreached = f" ({_reason(error)})"
        run = self._init("offline", folder)
        warn_once(f"W&B: logged offline{why}. To upload: wandb sync {folder}/wandb/offline-run-*")
        return run

    def _init(self, mode: Any, folder: Path) -> Any:
        import wandb

        return wandb.init(
            mode=mode,
            **self._place,
            resume="allow",
            name=self._name,
            group=self._group,
            job_type=self._kind,
            tags=self._config.logger.tags or None,
            config=plain(asdict(self._config)),
            allow_val_change=True,
            dir=str(folder),
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                init_timeout=30,  # seconds; after it the run is logged offline
                finish_timeout=300,  # `wandb sync` uploads the rest
                finish_timeout_raises=True,
            ),
        )


def scores(result: RunResult) -> dict[str, object]:
    """Every score as `<task>/<metric,filter>` with its standard error; the headline as `score`; the costs.

    The headline of a group is the group's own score. `difference` is the difference to the base model, if it was
    evaluated, with the p of its test (not corrected) and its 95% interval over documents.
    """
    values: dict[str, object] = {
        f"{task}/{key}": found.get(key)
        for task, found in result.lm_eval.results.items()
        for metric in reported(found)
        for key in (metric, metric.replace(",", "_stderr,", 1))
    }
    first, *others = result.task.names
    task = first if not others and result.lm_eval.scores(first) else result.task.tasks[0]
    if result.metric is not None:
        score = next(score for score in scores_of(result) if score.task == task)
        low, high = score.difference_interval or (None, None)
        values |= {"score": score.value, "difference": score.difference, "p": score.p}
        values |= {"difference_low": low, "difference_high": high}
    values |= {
        f"baseline/{task}/{key}": value
        for task in result.task.tasks
        for key, value in result.other_scores(task).items()
    }
    values |= {f"cost/{key}": value for key, value in result.cost.known().items()}
    return {
        k: v for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)
    }


def training_lines(result: RunResult) -> list[dict[str, object]]:
    """The log of the training of a run's model: keys `training/<name>`, by layer `training/<name>/layer_<i>`.

    Empty if the method trained no model, or if the model's folder is gone.
    """
    folder, lines = model_folder(result), list[dict[str, object]]()
    for line in (folder and read_lines(folder / "log.jsonl")) or []:
        flat = {
            f"training/{name}": value for name, value in line.items() if not isinstance(value, list)
        }
        by_layer = {name: value for name, value in line.items() if isinstance(value, list)}
        flat |= {
            f"training/{name}/layer_{i}": n
            for name, own in by_layer.items()
            for i, n in enumerate(own)
        }
        lines.append(flat)
    return lines


def by_layer(temperatures: Sequence[float]) -> dict[str, float]:
    """The temperature of every MoE layer, by a key that sorts as the layers do."""
    width = len(str(max(len(temperatures) - 1, 0)))
    return {f"temperature/layer_{layer:0{width}d}": t for layer, t in enumerate(temperatures)}


def _table(frame: pd.DataFrame) -> Any:
    import wandb

    return wandb.Table(
        dataframe=frame.astype(object).where(frame.notna(), None), allow_mixed_types=True
    )


def has_key() -> bool:
    """Whether W&B finds an API key, in its environment variables or its files. No network, no prompt."""
    import wandb
    from wandb.sdk.lib.wbauth import authenticate_session

    host = wandb.setup().settings.base_url
    return bool(authenticate_session(host=host, source=PROJECT, prompt=False, update_session=False))


def _reason(error: Exception) -> str:
    """An error in one short line, without the key."""
    line = without_passwords(" ".join(f"{type(error).__name__}: {error}".split()))[:300]
    key = os.environ.get("WANDB_API_KEY")
    return line.replace(key, "...") if key else line
