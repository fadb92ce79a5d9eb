"""The W&B logger: one W&B run per evaluated run and one per study.

The first failure is printed on stderr and ends the logging. A W&B run begins with the first logged value, so a refused
run leaves none.
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
from moe_lab.reports.loggers import tables
from moe_lab.reports.loggers.logger import Logger
from moe_lab.reports.measures import views
from moe_lab.results.atomic import plain
from moe_lab.results.model import RunResult

if TYPE_CHECKING:
    from moe_lab.config.schema import Config

PROJECT = "moe_lab"
INIT_SECONDS = 30.0
"""Timeout of the server; after it the run is logged offline."""
FINISH_SECONDS = 300.0
"""Timeout of the upload at the end of a run; `wandb sync` uploads the rest."""
_printed: set[str] = set()
"""Messages that this process has printed ("offline", "failed"): each is printed once."""


@contextmanager
def wandb_logger(config: Config, *, kind: str, name: str, group: str | None) -> Iterator[Logger]:
    """The W&B logger of a run or study. The W&B run finishes when the block ends, as failed if the block raises."""
    mode = config.logger.mode or os.environ.get("WANDB_MODE")
    if mode == "disabled":
        yield Logger()
        return
    logger = WandbLogger(config, kind=kind, name=name, group=group, mode=mode)
    try:
        yield logger
    except BaseException:
        logger.finish(exit_code=1)
        raise
    logger.finish(exit_code=0)


class WandbLogger(Logger):
    """Logs to one W&B run. No method raises: the first failure is printed on stderr and ends the logging."""

    def __init__(self, config: Config, *, kind: str, name: str, group: str | None, mode: str | None):
        self._config = config
        self._kind, self._name = kind, name
        self._group = config.logger.group or group or (name if kind == "study" else None)
        self._mode = mode
        self._failed = False

    def log_results(self, result: RunResult) -> None:
        def log(run: Any) -> None:
            run.config.update({"run_id": result.run_id})
            run.tags = (*(run.tags or ()), *tables.marks(result))
            run.log(tables.scores(result))
            for key, table in tables.samples(result).items():
                run.log({key: self._table(*table)})
            run.define_metric("training/*", step_metric=tables.STEP)
            for line in tables.training_lines(result):
                run.log(line)
            for view in views():
                if (content := view.of(result)) is not None:
                    own = view.tables(content).items()
                    run.log(view.values(content) | {key: self._table(*table) for key, table in own})

        self._guarded(log)

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
            run.log({"trials": self._table(*tables.csv_table(folder / "trials.csv"))})

        self._guarded(log)

    def log_figure(self, path: Path) -> None:
        def log(run: Any) -> None:
            import wandb

            if path.suffix == ".csv":
                run.log({f"tables/{path.stem}": self._table(*tables.csv_table(path))})
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
        folder = Path(self._config.output_dir).absolute()
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
            project=settings.project or os.environ.get("WANDB_PROJECT", PROJECT),
            entity=settings.entity,
            name=self._name,
            group=self._group,
            job_type=self._kind,
            tags=settings.tags or None,
            config=plain(recorded(self._config)),
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

    def _table(self, columns: list[str], rows: list[list[Any]]) -> Any:
        import wandb

        return wandb.Table(columns=columns, data=rows, allow_mixed_types=True)


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
