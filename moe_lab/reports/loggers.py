"""What a command logs besides its files: nothing (`logger=none`), or W&B runs (`logger=wandb`).

W&B has one run per evaluated run, study, experiment and command with several runs. The files in the
output folder remain the primary record. The first failure is printed on stderr and ends the
logging.
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
from moe_lab.reports.confidence import confidence_of
from moe_lab.reports.confidence import logged_values as logged_confidence
from moe_lab.reports.example_frame import example_rows
from moe_lab.reports.expert import expert_metrics_of, logged_values
from moe_lab.reports.run_values import by_layer, scores, training_lines
from moe_lab.results.atomic import plain, write_json
from moe_lab.results.locks import acquire
from moe_lab.results.marks import marks_of
from moe_lab.results.model import RunResult
from moe_lab.results.samples import read_samples
from moe_lab.results.stored_files import read_mapping, warn_once, whole_mapping

if TYPE_CHECKING:
    import pandas as pd

PROJECT = "moe_lab"
RECORD = "wandb.json"
"""In a run's folder: the W&B run that has its result."""
LOCK = ".wandb.lock"
"""In a study's folder: held by the process that logs to the study's W&B run."""
MOST_OF_AN_ID = 64
"""Characters of a W&B run's id, the last ones of the folder's name."""


OF_BEST_TRIAL = ("score", "untuned_score", "trial", "trials", "temperature")
"""Keys of a study's best.yaml that are logged."""


class Logger:
    """The interface of loggers. This base class logs nothing."""

    logged = False
    """Whether the run's result was logged to the same place before."""

    def begin(self) -> None:
        """Show the run as running.

        Without this call it begins with the first value that is logged.
        """

    def log_results(self, result: RunResult) -> None:
        """A run ended. Its sample logs are in its folder."""

    def log_trial(
        self, number: int, value: float | None, temperatures: Sequence[float], state: str
    ) -> None:
        """A trial of a study ended.

        `temperatures` has one entry per MoE layer; `value` is None for a pruned trial.
        """

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

    It is the base class `Logger`, which logs nothing, with logger=none and where W&B is disabled.
    A logger that fails costs no result. A W&B run finishes when the block ends, as failed if the
    block raises.

    Args:
        name: the W&B run's name. For a run or a study, it is the name of its folder.
        group: the command's name, which the W&B runs of a command share.
        folder: the folder of a run, where the logger stores what it has logged, or of a study,
            where it locks the study's W&B run.
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
    """The value of WANDB_MODE, None if it is not set; "disabled" if WANDB_DISABLED, the older
    variable of wandb and transformers, is true."""
    if os.environ.get("WANDB_DISABLED", "").lower() in ("1", "true", "yes", "on"):
        return "disabled"
    return os.environ.get("WANDB_MODE")


def _guarded(log: Callable[..., None]) -> Callable[..., None]:
    """Make a method of WandbLogger print its failure instead of raising it.

    A logger that fails costs no result.
    """

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

    The W&B run begins when the run's computation begins, so that W&B shows it running and, after an
    error, as failed. A refused or stored run begins none.
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
        self._config = config
        self._kind = kind
        self._name = name
        self._mode = mode
        self._group = config.logger.group or os.environ.get("WANDB_RUN_GROUP") or group
        project = config.logger.project or os.environ.get("WANDB_PROJECT", PROJECT)
        # a run or study that is continued continues its W&B run
        self._id = os.environ.get("WANDB_RUN_ID") or name[-MOST_OF_AN_ID:]
        self._place: dict[str, Any] = {
            "entity": config.logger.entity,
            "project": project,
            "id": self._id,
        }
        self._record: Path | None = None
        self._lock_file: Path | None = None
        if folder is not None and kind == "run":
            self._record = folder / RECORD
        if folder is not None and kind == "study":
            self._lock_file = folder / LOCK
        self._lock: FileLock | None = None
        self._failed = False

    @property
    def logged(self) -> bool:  # type: ignore[override]
        """Whether the run's record names this W&B run."""
        return self._record is not None and whole_mapping(self._record) == self._place

    @_guarded
    def begin(self) -> None:
        self._run  # noqa: B018

    @_guarded
    def log_results(self, result: RunResult) -> None:
        import pandas as pd

        run = self._run
        run.config.update({"run_id": result.run_id})
        tags = [*(run.tags or ()), *(mark.lower() for mark in marks_of(result))]
        run.tags = tuple(dict.fromkeys(tags))
        run.log(scores(result))
        if result.tuning:
            run.summary.update(by_layer(result.report.get("temperatures") or []))
        for task, samples in read_samples(result).items():
            examples = pd.DataFrame(example_rows(result, task, samples))
            run.log({f"samples/{task}": _table(examples)})
        run.define_metric("training/*", step_metric="training/step")
        for line in training_lines(result):
            run.log(line)
        expert_metrics = expert_metrics_of(result)
        if expert_metrics is not None:
            run.log(logged_values(expert_metrics))
        confidence = confidence_of(result)
        if confidence is not None:
            run.log(logged_confidence(confidence))
        if self._record is not None:
            write_json(self._record, self._place)

    @_guarded
    def log_trial(
        self, number: int, value: float | None, temperatures: Sequence[float], state: str
    ) -> None:
        for metric in ("value", "temperature/*"):
            self._run.define_metric(metric, step_metric="trial")
        trial: dict[str, object] = {"trial": number, "state": state}
        if value is not None:
            trial["value"] = value
        self._run.log(trial | by_layer(temperatures))

    @_guarded
    def log_study(self, folder: Path) -> None:
        import pandas as pd

        study = read_mapping(folder / "study.json") or {}
        self._run.config.update({"study": study})

        profile = read_mapping(folder / "best.yaml") or {}
        best = {name: profile[name] for name in OF_BEST_TRIAL}
        best |= profile.get("settings") or {}
        self._run.summary.update({f"best/{name}": value for name, value in best.items()})

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
        self._lock_study()
        folder = Path(os.environ.get("WANDB_DIR") or self._config.output_dir).absolute()
        _keep_files_in(folder)

        mode = self._mode or "online"
        if mode == "online" and not has_key():
            return self._offline(folder, " (no API key: wandb login, or WANDB_API_KEY)")
        if mode == "online" and not WandbLogger.unreached:
            try:
                run = self._init(mode, folder)
                print_message(f"W&B: {run.url}")
                return run
            except Exception as error:  # the run is logged offline
                WandbLogger.unreached = f" ({_reason(error)})"
        return self._offline(folder, WandbLogger.unreached)

    def _lock_study(self) -> None:
        """Take the W&B run of the study's id.

        Several processes may work on one study, and W&B takes the run of an id from one of them.
        Without the lock, this process logs to a W&B run of its own.
        """
        if self._lock_file is None:
            return
        self._lock = acquire(self._lock_file)
        if self._lock is None:
            self._place["id"] = None

    def _offline(self, folder: Path, reason: str) -> Any:
        """A W&B run whose files stay in `folder` until the user uploads them.

        `reason` follows "logged offline" in the message: a text such as " (no API key)", or empty.
        """
        run = self._init("offline", folder)
        command = f"wandb sync {folder}/wandb/offline-run-*"
        warn_once(f"W&B: logged offline{reason}. To upload: {command}")
        return run

    def _init(self, mode: Any, folder: Path) -> Any:
        """Begin the W&B run in `mode` ("online", "offline"), with its files in `folder`."""
        import wandb

        given = dict(self._config.logger.init)
        settings = {
            "silent": True,
            "console": "off",
            "disable_git": True,
            "disable_code": not given.get("save_code", False),
            "init_timeout": 30,  # seconds; after it the run is logged offline
            "finish_timeout": 300,  # `wandb sync` uploads the rest
            "finish_timeout_raises": True,
        }
        settings |= given.pop("settings", {})
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
            settings=wandb.Settings(**settings),
            **given,
        )


def _keep_files_in(folder: Path) -> None:
    """Make W&B write below `folder` alone and send no error reports."""
    (folder / "wandb").mkdir(parents=True, exist_ok=True)
    variables = {
        "WANDB_DATA_DIR": str(folder / "wandb" / "data"),
        "WANDB_CACHE_DIR": str(folder / "wandb" / "cache"),
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_SILENT": "true",
    }
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def _table(frame: pd.DataFrame) -> Any:
    """A frame as W&B's table; missing values are None."""
    import wandb

    values = frame.astype(object).where(frame.notna(), None)
    return wandb.Table(dataframe=values, allow_mixed_types=True)


def has_key() -> bool:
    """Whether W&B finds an API key, in its environment variables or its files.

    No network, no prompt.
    """
    import wandb
    from wandb.sdk.lib.wbauth import authenticate_session

    host = wandb.setup().settings.base_url
    return bool(authenticate_session(host=host, source=PROJECT, prompt=False, update_session=False))


def _reason(error: Exception) -> str:
    """An error in one short line, without the key."""
    line = without_passwords(" ".join(f"{type(error).__name__}: {error}".split()))[:300]
    key = os.environ.get("WANDB_API_KEY")
    if not key:
        return line
    return line.replace(key, "...")
