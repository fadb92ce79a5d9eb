"""lm-eval's task factory with local files instead of hub data sets, and errors that name the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_eval.tasks._factory import TaskFactory
from lm_eval.tasks._yaml_loader import load_yaml

from moe_lab.errors import TaskError
from moe_lab.tasks.judges.lm_eval_hooks import score
from moe_lab.tasks.judges.registry import judge_metrics
from moe_lab.tasks.letters import in_letters
from moe_lab.tasks.local_data import LocalData, needed_splits, shown_columns
from moe_lab.tasks.own_files import has_own_files
from moe_lab.tasks.self_consistency import voted
from moe_lab.tasks.tuning_split import HeldOutDataset, Holdout, first_split, held_out_config, source_split

if TYPE_CHECKING:
    from lm_eval.api.task import Task
    from lm_eval.tasks._index import Entry
    from lm_eval.tasks.manager import TaskDict, TaskManager

    from moe_lab.config.schema import Config

OWN_TASKS = Path(__file__).resolve().parent


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """Changes to an lm-eval task's configuration, made before its documents are loaded."""

    data_dir: str | None
    folder: str | None
    """Folder under `data_dir` for all tasks; None: each task's name."""
    filter_column: str | None
    """Column of a shared file whose value is the task's `dataset_name`; None: files are not shared."""
    fewshot_split: str | None
    num_fewshot: int | None
    letters: bool
    """Whether answers are letters (`letters.py`)."""
    self_consistency: int | None
    """Number of samples that vote (`self_consistency.py`); None: one answer, and no vote."""
    holdout: Holdout | None
    """Evaluate held-out tuning documents instead of the test; None: the test."""
    splits: tuple[str, ...]
    """Evaluate the first available one instead of the test; empty: the test. See `load_tasks`."""

    @classmethod
    def of(
        cls, config: Config, names: list[str], holdout: Holdout | None = None, splits: tuple[str, ...] = ()
    ) -> TaskSettings:
        folder = config.task.data_folder
        if folder is None and config.task.data_filter and len(names) == 1:
            folder = names[0]
        return cls(
            data_dir=config.data_dir,
            folder=folder,
            filter_column=config.task.data_filter,
            fewshot_split=config.task.fewshot_split,
            num_fewshot=config.num_fewshot,
            letters=config.task.answer == "letters",
            self_consistency=None if holdout or splits else config.task.self_consistency,
            holdout=holdout,
            splits=splits,
        )


def build_tasks(manager: TaskManager, specs: list[str], settings: TaskSettings) -> TaskDict:
    """Load tasks, groups or tags by name or YAML file. Raises TaskError."""
    factory = manager._factory = _Factory(settings)  # lm-eval builds every task with its factory
    try:
        tasks = manager.load(specs)
    except ImportError as error:
        raise TaskError(
            f"task.name={', '.join(specs)} needs a package that is not installed: {error}"
        ) from error
    for name, task in tasks["tasks"].items():
        source = _source(task.get_config("custom_dataset"))
        has_data = name in factory.with_own_files or _generated(source)
        if settings.data_dir is not None and not isinstance(source, LocalData) and not has_data:
            raise TaskError(f"Task {name} is defined inside its group: data_dir cannot replace its data.")
    return tasks


class _Factory(TaskFactory):
    def __init__(self, settings: TaskSettings):
        super().__init__()
        self._settings = settings
        self._datasets: dict[str, Any] = {}
        """`custom_dataset` by task."""
        self.with_own_files: set[str] = set()
        """Tasks of the user whose data `data_dir` does not replace (`own_files.py`)."""

    def _load_full_config(self, entry: Entry, overrides: dict[str, Any] | None = None) -> dict[str, Any]:
        config = super()._load_full_config(entry, overrides)
        if "task" not in config or isinstance(config["task"], list):
            return config
        if has_own_files(entry.yaml_path, config):
            self.with_own_files.add(config["task"])
        split = self._settings.fewshot_split
        if split is not None:
            fewshot = {**(config.get("fewshot_config") or {}), "split": split, "samples": None}
            config = {**config, "fewshot_split": split, "fewshot_config": fewshot}
        config = in_letters(config) if self._settings.letters else dict(config)
        if self._settings.self_consistency is not None:
            config = voted(config, self._settings.self_consistency)
        if config.get("process_results") is score:
            config["metric_list"] = judge_metrics()
        if callable(config.get("process_docs")):
            config["process_docs"] = _once(config["process_docs"])
        if self._settings.data_dir is None and not config.get("custom_dataset"):
            _check_hub(config)
        holdout = self._settings.holdout
        if self._settings.splits:
            place = str(self._folder(config)) if self._from_data_dir(config) else "its data set"
            config["test_split"] = first_split(config, self._settings.splits, self._exists(config), place)
        if holdout is not None:
            config["test_split"] = source_split(config, self._exists(config))
        if self._from_data_dir(config):
            config["custom_dataset"] = self._local_data(config)
        if holdout is not None:
            load = config.get("custom_dataset") or partial(_from_hub, config)
            config = held_out_config(config, config["test_split"], load, holdout)
        self._datasets[entry.name] = config.get("custom_dataset")
        return config

    def _from_data_dir(self, config: dict[str, Any]) -> bool:
        """Whether the documents are files in `data_dir`."""
        has_data = config["task"] in self.with_own_files or _generated(config.get("custom_dataset"))
        return self._settings.data_dir is not None and not has_data

    def _exists(self, config: dict[str, Any]) -> Callable[[str], bool]:
        """A function that tells whether a split exists. A hub data set is assumed to have all splits of its task."""
        if not self._from_data_dir(config):
            return lambda split: True
        folder = self._folder(config)
        return lambda split: (folder / f"{split}.jsonl").exists()

    def _folder(self, config: dict[str, Any]) -> Path:
        return Path(self._settings.data_dir or "") / (self._settings.folder or config["task"])

    def _local_data(self, config: dict[str, Any]) -> LocalData:
        settings = self._settings
        assert settings.data_dir is not None
        name = config["task"]
        if "class" in config:
            raise TaskError(
                f"Task {name} is a Python class that loads its own data: data_dir cannot replace it."
            )
        return LocalData(
            task=name,
            data_dir=settings.data_dir,
            folder=settings.folder or name,
            column=settings.filter_column,
            value=config.get("dataset_name") if settings.filter_column else None,
            needed=needed_splits(config, settings.num_fewshot),
            shown=shown_columns(config),
        )

    def _build_task(self, entry: Entry, overrides: dict[str, Any] | None) -> Task:
        unresolved = load_yaml(entry.yaml_path, resolve_func=False) if entry.yaml_path else entry.cfg or {}
        if unresolved.get("unsafe_code") and OWN_TASKS not in Path(entry.yaml_path or "").parents:
            raise TaskError(
                f"Task {entry.name} executes code that the model wrote, outside of moe_lab's cage: not supported.\n"
                "The tasks that are: humaneval, humaneval_plus."
            )
        try:
            return super()._build_task(entry, overrides)
        except (TaskError, ImportError):
            raise
        except Exception as error:  # jinja2, datasets and the tasks' own code raise many kinds of errors
            dataset: Any = self._datasets.get(entry.name)
            if isinstance(error, KeyError) and error.args[0] in self._named_splits:
                splits = f" Its splits: {', '.join(sorted(dataset()))}." if _generated(dataset) else ""
                raise TaskError(
                    f"{self._named_splits[error.args[0]]} is no split of {entry.name}.{splits}"
                ) from error
            if _generated(dataset):
                raise
            raise TaskError(self._cannot_load(entry.name, unresolved, error)) from error

    @property
    def _named_splits(self) -> dict[str | None, str]:
        """The splits that the user named, with the overrides that name them."""
        split = self._settings.fewshot_split
        return {name: name for name in self._settings.splits} | {split: f"task.fewshot_split={split}"}

    def _cannot_load(self, name: str, config: dict[str, Any], error: Exception) -> str:
        from moe_lab.models.hub.failures import known_reason

        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        if name in self.with_own_files:
            return f"Task {name} cannot use the data that its own YAML names: {reason}"
        if self._settings.data_dir is not None:
            folder = self._folder({"task": name})
            return f"Task {name} cannot use the files in {folder}: {reason}\nThey need the hub data set's columns."
        dataset = " ".join(str(config[key]) for key in ("dataset_path", "dataset_name") if config.get(key))
        files = f"data_dir=<folder> with {self._settings.folder or name}/<split>.jsonl"
        known = known_reason(error, str(config.get("dataset_path")), "data set", False)
        if known:
            return f"Task {name}: {known}\nOr give {files}."
        if isinstance(error, KeyError):
            reason = f"It has no split {error}, which the task names."
        return (
            f"Task {name}: its data set {dataset or '(its own)'} could not be loaded.\n{reason}\n"
            f"Connect to the hub once, or give {files}."
        )


def _once(process_docs: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A `process_docs` that processes each split once: lm-eval calls it twice, and some tasks shuffle their choices."""
    done: dict[int, tuple[Any, Any]] = {}

    @wraps(process_docs)
    def processed(split: Any) -> Any:
        if id(split) not in done:
            done[id(split)] = (split, process_docs(split))
        return done[id(split)][1]

    return processed


def _check_hub(config: dict[str, Any]) -> None:
    """Raise TaskError if the hub lacks the data set, before the retries of `datasets`."""
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES as FORMATS
    from httpx2 import HTTPError

    from moe_lab.models.hub.failures import explain
    from moe_lab.models.hub.repository import check_data_set

    path = config.get("dataset_path")
    if path is None or path in FORMATS or Path(path).exists():
        return
    try:
        check_data_set(path, (config.get("dataset_kwargs") or {}).get("revision"))
    except (OSError, ValueError, HTTPError) as error:
        raise TaskError(f"Task {config['task']}: {explain(error, path, 'data set', False)}") from error


def _from_hub(config: dict[str, Any], **_: Any) -> Any:
    """The data set that lm-eval loads for a task without a `custom_dataset`."""
    from datasets import load_dataset

    options = {k: v for k, v in (config.get("dataset_kwargs") or {}).items() if k != "trust_remote_code"}
    return load_dataset(path=config["dataset_path"], name=config.get("dataset_name"), **options)


def _source(custom_dataset: Any) -> Any:
    """The data set behind a view with held-out documents."""
    return custom_dataset.load if isinstance(custom_dataset, HeldOutDataset) else custom_dataset


def _generated(custom_dataset: Any) -> bool:
    """Whether this package generates the documents, without hub and files."""
    return str(getattr(_source(custom_dataset), "__module__", "")).startswith("moe_lab.tasks.toy.")
