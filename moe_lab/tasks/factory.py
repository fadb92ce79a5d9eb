"""lm-eval's task factory with local files instead of hub data sets, and errors that name the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lm_eval
from datasets.fingerprint import get_temporary_cache_files_directory
from lm_eval.tasks._factory import TaskFactory
from lm_eval.tasks._yaml_loader import load_yaml

from moe_lab.config.validators import did_you_mean
from moe_lab.errors import TaskError
from moe_lab.results.code import code_digest
from moe_lab.results.identity import UNNAMED, module_digest
from moe_lab.tasks.answer_forms import in_letters, voted
from moe_lab.tasks.documents import HeldOutDataset, Holdout, first_split, held_out_config, source_split
from moe_lab.tasks.hub_data import hub_id
from moe_lab.tasks.judges import judge_metrics, score
from moe_lab.tasks.local_data import LocalData, needed_splits, shown_columns

if TYPE_CHECKING:
    from lm_eval.api.group import Group
    from lm_eval.api.task import Task
    from lm_eval.tasks._index import Entry
    from lm_eval.tasks.manager import TaskDict, TaskManager

    from moe_lab.config.schema import Config


OWN_TASKS = Path(__file__).resolve().parent


def build_tasks(
    manager: TaskManager, specs: list[str], config: Config, holdout: Holdout | None, splits: tuple[str, ...]
) -> TaskDict:
    """Load tasks, groups or tags by name or YAML file, as `load_tasks` describes. Raises TaskError."""
    factory = manager._factory = _Factory(config, holdout, splits)  # lm-eval builds all tasks with it
    try:
        tasks = manager.load(specs)
    except ImportError as error:
        raise TaskError(
            f"task.name={', '.join(specs)} needs a package that is not installed: {error}"
        ) from error
    except ValueError as error:
        if "Duplicate task" not in str(error):
            raise
        raise TaskError(
            f"task.name=[{','.join(specs)}]: {error}\nLeave one of the two out: a group has all of its tasks."
        ) from error
    for name, task in tasks["tasks"].items():
        source = _source(task.get_config("custom_dataset"))
        own = name in factory.with_own_files
        if not own and not isinstance(source, LocalData) and factory.has_folder(name):
            raise TaskError(f"Task {name} is defined inside its group: data_dir cannot replace its data.")
        task.data_source = "files that its YAML names" if own else _where(vars(task.config), source)
    return tasks


class _Factory(TaskFactory):
    def __init__(self, config: Config, holdout: Holdout | None, splits: tuple[str, ...]):
        super().__init__()
        self._run, self._task = config, config.task
        self._holdout = holdout
        """Evaluate held-out tuning documents instead of the test set; None: the test set."""
        self._splits = splits
        """Evaluate the first available one instead of the test set; empty: the test set."""
        self._configs: dict[str, dict[str, Any]] = {}
        """The configurations of the tasks that were built."""
        self.with_own_files: set[str] = set()
        """Tasks of the user whose data `data_dir` does not replace (`has_own_files`)."""

    def _load_full_config(self, entry: Entry, overrides: dict[str, Any] | None = None) -> dict[str, Any]:
        config = super()._load_full_config(entry, overrides)
        if "task" not in config or isinstance(config["task"], list):
            return config
        if has_own_files(entry.yaml_path, config):
            self.with_own_files.add(config["task"])
            # `datasets` recognizes a file by its modification time: read into a folder of this process, again each time
            fresh = {
                "cache_dir": get_temporary_cache_files_directory(),
                "download_mode": "reuse_cache_if_exists",
            }
            if not config.get("custom_dataset"):
                config["dataset_kwargs"] = {**(config.get("dataset_kwargs") or {}), **fresh}
        split = self._task.fewshot_split
        if split is not None:
            fewshot = {**(config.get("fewshot_config") or {}), "split": split, "samples": None}
            config = {**config, "fewshot_split": split, "fewshot_config": fewshot}
        config = in_letters(config) if self._task.answer == "letters" else dict(config)
        if self._run.apply_chat_template and config.get("unsafe_code"):
            from moe_lab.tasks.sandbox.replies import in_chat

            config = in_chat(config)
        if self._task.self_consistency is not None and not (self._holdout or self._splits):
            config = voted(config, self._task.self_consistency)
        if config.get("process_results") is score:
            config["metric_list"] = judge_metrics()
        if callable(config.get("process_docs")):
            config["process_docs"] = _once(config["process_docs"])
        if not self._from_data_dir(config):
            _check_hub(config, self._files(config))
        holdout = self._holdout
        if self._splits:
            place = str(self._folder(config)) if self._from_data_dir(config) else "its data set"
            config["test_split"] = first_split(config, self._splits, self._exists(config), place)
        if holdout is not None:
            config["test_split"] = source_split(config, self._exists(config))
        if self._from_data_dir(config):
            config["custom_dataset"] = self._local_data(config)
        if holdout is not None:
            load = config.get("custom_dataset") or partial(_from_hub, config)
            config = held_out_config(config, config["test_split"], load, holdout)
        self._configs[entry.name] = config
        _check_metrics(config, entry.yaml_path)
        return config

    def _from_data_dir(self, config: dict[str, Any]) -> bool:
        """Whether the documents are files in `data_dir`, which has a folder for them."""
        has_data = config["task"] in self.with_own_files or _generated(config.get("custom_dataset"))
        return self.has_folder(config["task"]) and not has_data

    def has_folder(self, task: str) -> bool:
        """Whether `data_dir` has the folder of a task."""
        return self._run.data_dir is not None and self._folder({"task": task}).is_dir()

    def _exists(self, config: dict[str, Any]) -> Callable[[str], bool]:
        """A function that returns whether a split exists. A hub data set is assumed to have all splits of the task."""
        if not self._from_data_dir(config):
            return lambda split: True
        folder = self._folder(config)
        return lambda split: (folder / f"{split}.jsonl").exists()

    def _folder(self, config: dict[str, Any]) -> Path:
        return Path(self._run.data_dir or "") / self._folder_name(config["task"])

    def _folder_name(self, task: str) -> str:
        """The folder under `data_dir`: `task.data_folder`, else the group whose tasks share files, else the task."""
        names = [self._task.name] if isinstance(self._task.name, str) else self._task.name
        shared = names[0] if self._task.data_filter and len(names) == 1 else None
        return self._task.data_folder or shared or task

    def _local_data(self, config: dict[str, Any]) -> LocalData:
        assert self._run.data_dir is not None
        name, column = config["task"], self._task.data_filter
        if "class" in config:
            raise TaskError(
                f"Task {name} is a Python class that loads its own data: data_dir cannot replace it."
            )
        return LocalData(
            task=name,
            data_dir=self._run.data_dir,
            folder=self._folder_name(name),
            column=column,
            value=config.get("dataset_name") if column else None,
            needed=needed_splits(config, self._run.num_fewshot),
            shown=shown_columns(config),
        )

    def _build_task(self, entry: Entry, overrides: dict[str, Any] | None) -> Task:
        unresolved = load_yaml(entry.yaml_path, resolve_func=False) if entry.yaml_path else entry.cfg or {}
        if unresolved.get("unsafe_code") and OWN_TASKS not in Path(entry.yaml_path or "").parents:
            raise TaskError(
                f"Task {entry.name} executes code that the model wrote, outside of moe_lab's sandbox: not supported.\n"
                "The tasks that are: humaneval, humaneval_plus."
            )
        try:
            task = super()._build_task(entry, overrides)
            task.code = self._code(entry.yaml_path)  # type: ignore[attr-defined]
            if "class" in (config := self._configs[entry.name]):  # the class decides what it reads of it
                task.code["given"] = {key: config[key] for key in config if key not in UNNAMED}  # type: ignore[attr-defined]
            return task
        except (TaskError, ImportError):
            raise
        except Exception as error:  # jinja2, datasets and the tasks' own code raise many kinds of errors
            dataset: Any = self._configs.get(entry.name, {}).get("custom_dataset")
            if isinstance(error, KeyError) and error.args and error.args[0] in self._named_splits:
                splits = f" Its splits: {', '.join(sorted(dataset()))}." if _generated(dataset) else ""
                raise TaskError(
                    f"{self._named_splits[error.args[0]]} is no split of {entry.name}.{splits}"
                ) from error
            if _generated(dataset):
                raise
            raise TaskError(self._cannot_load(entry.name, unresolved, error)) from error

    def _build_group(self, group_name: str, raw_cfg: dict[str, Any], *given: Any) -> Group:
        group = super()._build_group(group_name, raw_cfg, *given)
        source = (raw_cfg.get("metadata") or {}).get(
            "config_source"
        )  # no YAML: a group inside of another one
        group.code = self._code(Path(source) if source else None)  # type: ignore[attr-defined]
        return group

    def _code(self, yaml_path: Path | None) -> dict[str, Any]:
        """The functions that a YAML names, by key: name and digest of the module.

        A decorated function or one that another function returned has the module of that one, and the name, too.
        """
        if yaml_path is None:
            return {}
        folder = Path(self._task.include_path) if self._task.include_path else None
        with_functions, with_names = load_yaml(yaml_path), load_yaml(yaml_path, resolve_func=False)
        code = {}
        for key in with_names.keys() - UNNAMED:
            for place, named in _functions(with_functions[key], with_names[key], key):
                # lm-eval's order: a file next to the YAML, then a module
                module, _, name = Path(named).name.rpartition(".")
                file = Path(named).parent / f"{module.replace('.', '/')}.py"
                code[place] = [name, code_digest(file, folder) if file.is_file() else module_digest(module)]
        return code

    @property
    def _named_splits(self) -> dict[str, str]:
        """The splits that the user named, with the overrides that name them."""
        split = self._task.fewshot_split
        fewshot = {} if split is None else {split: f"task.fewshot_split={split}"}
        return {name: name for name in self._splits} | fewshot

    def _files(self, config: dict[str, Any]) -> str:
        """The local files that a task of this configuration reads, for messages."""
        file = f"{self._folder_name(config['task'])}/<split>.jsonl"
        columns = (config.get("dataset_kwargs") or {}).get("columns")
        place = f"{self._run.data_dir}/{file}" if self._run.data_dir else f"data_dir=<folder> with {file}"
        return f"{place} with the columns {', '.join(columns)}" if columns else place

    def _cannot_load(self, name: str, config: dict[str, Any], error: Exception) -> str:
        from moe_lab.models.hub import known_reason

        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        if name in self.with_own_files:
            return f"Task {name} cannot use the data that its own YAML names: {reason}"
        if self.has_folder(name):
            folder = self._folder({"task": name})
            return f"Task {name} cannot use the files in {folder}: {reason}\nThey need the hub data set's columns."
        id = hub_id(config)
        dataset = " ".join(filter(None, (id, config.get("dataset_name"))))
        files = self._files({"task": name, **config})
        known = known_reason(error, str(id), "data set")
        if known:
            return f"Task {name}: {known}\nOr give {files}."
        if isinstance(error, KeyError):
            reason = f"It has no split {error}, which the task names."
        return (
            f"Task {name}: its data set {dataset or '(its own)'} could not be loaded.\n{reason}\n"
            f"Connect to the hub once, or give {files}."
        )


def _check_metrics(config: dict[str, Any], yaml_path: Path | None) -> None:
    """Raise TaskError for a metric or aggregation that lm-eval does not have.

    lm-eval itself fails on it with a KeyError that names neither, or only after the last answer.
    """
    import lm_eval.api.metrics  # noqa: F401 (registers the metrics)
    from lm_eval.api.registry import aggregation_registry, get_metric, metric_agg_registry, metric_registry

    for each in config.get("metric_list") or []:
        task = f"Task {config['task']}{f' ({yaml_path})' if yaml_path else ''}"
        if not isinstance(each, dict) or "metric" not in each:
            raise TaskError(f"{task}: metric_list has the entry {each}. Write it as metric: acc")
        metric = str(getattr(each["metric"], "__name__", each["metric"]))
        aggregation = each.get("aggregation")
        place = f"{task}: metric: {metric}"
        by_task = bool(config.get("process_results")) or callable(each["metric"])
        # get_metric also looks in the package evaluate, which asks the hub
        known = by_task or metric in metric_registry or each.get("hf_evaluate")
        if not known and get_metric(metric) is None:
            names = sorted(metric_registry)
            raise TaskError(
                f"{place} is no metric of lm-eval.{did_you_mean(metric, names)}\nMetrics: {', '.join(names)}."
            )
        if isinstance(aggregation, str) and aggregation not in aggregation_registry:
            names = sorted(aggregation_registry)
            raise TaskError(
                f"{place} has aggregation: {aggregation}, which lm-eval does not have."
                f"{did_you_mean(aggregation, names)}\nAggregations: {', '.join(names)}."
            )
        if aggregation is None and metric not in metric_agg_registry:
            raise TaskError(
                f"{place} has no aggregation. Add one to its entry in metric_list: aggregation: mean"
            )


def _functions(value: Any, named: Any, key: str) -> Iterator[tuple[str, str]]:
    """(key, `<folder>/module.function`) of all functions of a YAML, from it with functions and with their names."""
    if isinstance(named, dict):
        for each in named:
            yield from _functions(value[each], named[each], f"{key}.{each}")
    elif isinstance(named, list):
        for number, each in enumerate(named):
            yield from _functions(value[number], each, f"{key}.{number}")
    elif isinstance(named, str) and not (isinstance(value, str) and value == named):
        yield key, named


def _once(process_docs: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A `process_docs` that processes each split once: lm-eval calls it twice, and some tasks shuffle their choices."""
    done: dict[int, tuple[Any, Any]] = {}

    @wraps(process_docs)
    def processed(split: Any) -> Any:
        if id(split) not in done:
            done[id(split)] = (split, process_docs(split))
        return done[id(split)][1]

    return processed


def _check_hub(config: dict[str, Any], files: str) -> None:
    """Raise TaskError if the hub lacks the data set, before the retries of `datasets`.

    Args:
        files: the local files that the task reads otherwise.
    """
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES as FORMATS
    from httpx2 import HTTPError

    from moe_lab.models.hub import check_data_set, explain

    path = hub_id(config)
    if path is None or path in FORMATS or Path(path).exists():
        return
    try:
        check_data_set(path, (config.get("dataset_kwargs") or {}).get("revision"))
    except (OSError, ValueError, HTTPError) as error:
        reason = explain(error, path, "data set")
        raise TaskError(f"Task {config['task']}: {reason}\nOr give {files}.") from error


def _from_hub(config: dict[str, Any], **_: Any) -> Any:
    """The data set that lm-eval loads for a task without a `custom_dataset`."""
    from datasets import load_dataset

    options = {k: v for k, v in (config.get("dataset_kwargs") or {}).items() if k != "trust_remote_code"}
    return load_dataset(path=config["dataset_path"], name=config.get("dataset_name"), **options)


def _source(custom_dataset: Any) -> Any:
    """The function that loads the data set, without the selection of held-out documents."""
    return custom_dataset.load if isinstance(custom_dataset, HeldOutDataset) else custom_dataset


def _where(config: dict[str, Any], source: Any) -> str:
    """Where a task's documents are from, in words, for its results."""
    if isinstance(source, LocalData):
        return f"files in {source.path}"
    path = hub_id(config)
    return "generated" if path is None else f"data set {path} of the hub"


def _generated(custom_dataset: Any) -> bool:
    """Whether this package generates the documents, without hub and files."""
    return getattr(_source(custom_dataset), "__module__", "") == "moe_lab.tasks.toy"


# Tasks of the user whose YAML names its data: files, a folder or a function. `data_dir` does not replace them.

PACKAGES = (OWN_TASKS, Path(lm_eval.__file__).resolve().parent)
"""Folders of packages, whose YAMLs are not the user's."""


def has_own_files(yaml_path: Path | None, config: dict[str, Any]) -> bool:
    """Whether a task configuration comes from a YAML of the user and names local data."""
    if yaml_path is None or any(folder in Path(yaml_path).resolve().parents for folder in PACKAGES):
        return False
    function = config.get("custom_dataset")
    if function is not None:
        # a function of this package comes from a YAML that the user's YAML includes
        return not str(getattr(function, "__module__", "")).startswith("moe_lab.")
    path = config.get("dataset_path")
    if path is None:
        return False
    return _names_files(path, config.get("dataset_kwargs") or {}) or Path(path).is_dir()


def _names_files(path: str, options: dict[str, Any]) -> bool:
    """Whether `path` is a file format of `datasets`, with local files."""
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES as FORMATS

    files = options.get("data_files") or options.get("data_dir")
    return path in FORMATS and files is not None and "://" not in str(files)
