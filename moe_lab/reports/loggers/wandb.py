"""The W&B logger: one W&B run per evaluated run, study, experiment and command with several runs.

The first failure is printed on stderr and ends the logging. A run's W&B run begins when its computation begins, so that
W&B shows it running and, after an error, as failed. A refused or stored run begins none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.config.recorded import recorded
from moe_lab.config.terminal import without_passwords
from moe_lab.reports.expert import expert_metrics_of, layer_frame, logged_values
from moe_lab.reports.loggers import tables
from moe_lab.reports.loggers.logger import Logger
from moe_lab.results.atomic import plain, write_json
from moe_lab.results.model import RunResult
from moe_lab.results.stored_files import whole_mapping

if TYPE_CHECKING:
    import pandas as pd

    from moe_lab.config.schema import Config

PROJECT = "moe_lab"
RECORD = "wandb.json"
"""In a run's folder: the W&B run that has its result."""
MOST_OF_AN_ID = 64
"""Characters of a W&B run's id, the last ones of the folder's name."""
INIT_SECONDS = 30.0
"""Timeout of the server; after it the run is logged offline."""
FINISH_SECONDS = 300.0
"""Timeout of the upload at the end of a run; `wandb sync` uploads the rest."""
_printed: set[str] = set()
"""Messages that this process has printed ("offline", "failed"): each is printed once."""


@contextmanager
def wandb_logger(
    config: Config, *, kind: str, name: str, group: str | None, folder: Path | None
) -> Iterator[Logger]:
    """The W&B logger of a run or study. The W&B run finishes when the block ends, as failed if the block raises."""
    mode = config.logger.mode or os.environ.get("WANDB_MODE")
    if mode == "disabled":
        yield Logger()
        return
    logger = WandbLogger(config, kind, name, group, mode, folder)
    try:
        yield logger
    except BaseException:
        logger.finish(exit_code=1)
        raise
    logger.finish(exit_code=0)


class WandbLogger(Logger):
    """Logs to one W&B run. No method raises: the first failure is printed on stderr and ends the logging."""

    def __init__(
        self, config: Config, kind: str, name: str, group: str | None, mode: str | None, folder: Path | None
    ):
        self._config = config
        self._kind, self._name, self._mode = kind, name, mode
        self._group = config.logger.group or os.environ.get("WANDB_RUN_GROUP") or group
        settings = config.logger
        self._project = settings.project or os.environ.get("WANDB_PROJECT", PROJECT)
        # the same run continues its W&B run; workers share a study, and each has a W&B run of its own
        own = None if kind == "study" else name[-MOST_OF_AN_ID:]
        self._id = os.environ.get("WANDB_RUN_ID") or own
        self._place = {"entity": settings.entity, "project": self._project, "id": self._id}
        self._record = folder and folder / RECORD
        self._failed = False

    @property
    def logged(self) -> bool:  # type: ignore[override]
        stored = None if self._record is None else whole_mapping(self._record)
        if stored is None or {**stored, "mode": None} != {**self._place, "mode": None}:
            return False
        return (
            self._mode != "online" or stored.get("mode") == "online"
        )  # asked for: what was logged offline, again

    def begin(self) -> None:
        self._guarded(lambda run: None)

    def log_results(self, result: RunResult) -> None:
        def log(run: Any) -> None:
            run.config.update({"run_id": result.run_id})
            run.tags = tuple(dict.fromkeys((*(run.tags or ()), *tables.marks(result))))
            run.log(tables.scores(result))
            if result.tuning:
                run.summary.update(tables.by_layer(result.report.get("temperatures") or []))
            for key, table in tables.samples(result).items():
                run.log({key: _table(table)})
            run.define_metric("training/*", step_metric=tables.STEP)
            for line in tables.training_lines(result):
                run.log(line)
            if (content := expert_metrics_of(result)) is not None:
                run.log(logged_values(content) | {"expert/layers": _table(layer_frame(content))})

        self._guarded(log)
        if self._record is not None and not self._failed:
            write_json(self._record, self._place | {"mode": self._run.settings.mode})

    def log_trial(self, number: int, value: float | None, temperatures: Sequence[float], state: str) -> None:
        def log(run: Any) -> None:
            for metric in ("value", "temperature/*"):
                run.define_metric(metric, step_metric="trial")
            run.log(tables.trial(number, value, temperatures, state))

        self._guarded(log)

    def log_study(self, folder: Path) -> None:
        def log(run: Any) -> None:
            study, best = tables.study(folder)
            run.config.update({"study": study})
            run.summary.update(best)
            run.log({"trials": _csv_table(folder / "trials.csv")})
            run.log_artifact(folder / "best.yaml", name=self._name, type="profile")

        self._guarded(log)

    def log_table(self, name: str, frame: pd.DataFrame) -> None:
        self._guarded(lambda run: run.log({f"tables/{name}": _table(frame)}))

    def log_figure(self, path: Path) -> None:
        def log(run: Any) -> None:
            import wandb

            if path.suffix == ".csv":
                run.log({f"tables/{path.stem}": _csv_table(path)})
            else:
                run.log({f"figures/{path.stem}": wandb.Image(str(path))})

        self._guarded(log)

    def finish(self, exit_code: int) -> None:
        """End the W&B run, if one was begun."""
        if "_run" in self.__dict__:
            self._guarded(lambda run: run.finish(exit_code=exit_code))

    def _guarded(self, action: Callable[[Any], None]) -> None:
        if self._failed:
            return
        try:
            action(self._run)
        except Exception as error:  # no failure of a logger may cost a result; it is printed
            self._failed = True
            reason = _reason(error)
            _print_once(
                "failed", f"W&B: {self._name} is logged no further ({reason}). Results are not affected."
            )

    @cached_property
    def _run(self) -> Any:
        """The W&B run; offline without a key, or without a connection to the server."""
        folder = Path(os.environ.get("WANDB_DIR") or self._config.output_dir).absolute()
        prepare_environment(folder)
        mode, why = self._mode or "online", ""
        if mode == "online" and "offline" in _printed:  # wait for the server once per process
            mode = "offline"
        if mode == "online" and not has_key():
            mode, why = "offline", " (no API key: wandb login, or WANDB_API_KEY)"
        if mode == "online":
            try:
                run = self._init(mode, folder)
                print(f"W&B: {run.url}", file=sys.stderr)
                return run
            except Exception as error:  # printed below; the run is logged offline
                mode, why = "offline", f" ({_reason(error)})"
        run = self._init(mode, folder)
        _print_once(
            "offline", f"W&B: logged offline{why}. To upload: wandb sync {folder}/wandb/offline-run-*"
        )
        return run

    def _init(self, mode: Any, folder: Path) -> Any:
        import wandb

        settings = self._config.logger
        return wandb.init(
            mode=mode,
            project=self._project,
            entity=settings.entity,
            id=self._id,
            resume="allow",
            name=self._name,
            group=self._group,
            job_type=self._kind,
            tags=settings.tags or None,
            config=plain(recorded(self._config)),
            allow_val_change=True,
            dir=str(folder),
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                init_timeout=INIT_SECONDS,
                finish_timeout=FINISH_SECONDS,
                finish_timeout_raises=True,
            ),
        )


def _table(frame: pd.DataFrame) -> Any:
    import wandb

    return wandb.Table(dataframe=frame.astype(object).where(frame.notna(), None), allow_mixed_types=True)


def _csv_table(path: Path) -> Any:
    import pandas as pd

    return _table(pd.read_csv(path))


def prepare_environment(folder: Path) -> None:
    """Let W&B write under `folder` alone, and send no error reports."""
    (folder / "wandb").mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("WANDB_DATA_DIR", str(folder / "wandb" / "data"))
    os.environ.setdefault("WANDB_CACHE_DIR", str(folder / "wandb" / "cache"))
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_SILENT", "true")


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


def _print_once(subject: str, line: str) -> None:
    if subject not in _printed:
        _printed.add(subject)
        print(line, file=sys.stderr)
