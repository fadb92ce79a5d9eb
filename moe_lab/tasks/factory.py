"""lm-eval's tasks by name, with the documents and the form that a run gives them.

Documents come from `<data_dir>/<folder>/<split>.jsonl` where there is such a folder, with the
columns of the hub's data set (`local_data.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import lm_eval
from datasets import Dataset, load_dataset
from huggingface_hub.errors import LocalEntryNotFoundError
from lm_eval.api.group import Group
from lm_eval.tasks._factory import TaskFactory
from lm_eval.tasks._index import Entry, Kind
from lm_eval.tasks._yaml_loader import load_yaml
from lm_eval.tasks.manager import TaskDict
from lm_eval.utils import create_iterator

from moe_lab.config.schema import Config
from moe_lab.errors import TaskError, first_line
from moe_lab.models.hub import commit_of, explain
from moe_lab.results.identity import UNNAMED
from moe_lab.tasks.holdout import SPLIT, HeldOutDataset, Holdout
from moe_lab.tasks.hub_data import hub_id
from moe_lab.tasks.judges import JUDGES, judge_class, score
from moe_lab.tasks.letters import in_letters
from moe_lab.tasks.lm_eval_versions.configurations import (
    as_installed,
    choices_as_prompts,
    keep_given_form,
    without_group,
)
from moe_lab.tasks.lm_eval_versions.documents import (
    error_of_template,
    evaluated_documents,
    read_first_document,
)
from moe_lab.tasks.local_data import (
    LocalFiles,
    LocalSplits,
    has_only_local_files,
    is_local,
    read_json_lines,
)
from moe_lab.tasks.prompt_errors import build_all_requests
from moe_lab.tasks.sandbox.replies import in_chat
from moe_lab.tasks.self_consistency import voted
from moe_lab.tasks.task_index import OWN_TASKS, find_tasks
from moe_lab.tasks.task_sources import functions_of_yaml, source_of
from moe_lab.tasks.yaml_checks import YamlChecks


def build_tasks(
    names: list[str], config: Config, holdout: Holdout | None, splits: tuple[str, ...]
) -> TaskDict:
    """Load tasks, groups or tags by name, as `load_tasks` describes. Raises TaskError."""
    found = find_tasks(names, config.task.include_path)
    factory = _Factory(config, holdout, splits)
    found.manager._factory = factory
    try:
        tasks = found.manager.load(found.specs)
        for task in tasks["tasks"].values():
            # in 0.5 tasks that a group defines pass no method of the factory
            read_first_document(task)
    except TaskError:
        raise
    except Exception as error:
        # jinja2, datasets and the tasks' own code raise many kinds of errors
        raise TaskError(factory.reason(error)) from error
    for task in tasks["tasks"].values():
        _finish_task(task, factory, config)
    for group in tasks.get("groups", {}).values():
        _finish_group(group, factory, config.task.include_path)
    return tasks


def _finish_task(task: Any, factory: _Factory, config: Config) -> None:
    """Check a loaded task, and give it what a run asks of it: the source of its documents, its
    code, its requests."""
    name = task.task_name
    if name in factory.checks:
        factory.checks[name].check_filters(task)
    if name in factory.origins:
        origin = factory.origins[name]
    else:  # defined inside a group
        origin = TaskOrigin(source_of(vars(task.config), None), {})
    task.data_source = origin.data_source
    task.code = origin.code
    task.doc_iterator = partial(_chosen_documents, task)
    check_golds = factory.has_own_rows(name) and not config.predict_only
    task.build_all_requests = partial(build_all_requests, task, check_golds=check_golds)


def _finish_group(group: Any, factory: _Factory, include_path: str | None) -> None:
    """Check a loaded group, and give it the code that its YAML names."""
    group.code = {}
    file = factory.group_files.get(group.name)
    if file is None:  # a group inside of another one
        return
    group.code = functions_of_yaml(file, include_path)
    checks = _yaml_checks(group.name, file)
    if checks.strict:
        reported: set[str] = set()
        for task in group.get_all_tasks():
            reported.update(task.aggregation())
        metrics = [score.metric for score in group.aggregate_metric_list or []]
        checks.check_group_metrics(metrics, reported)


def _yaml_checks(name: str, file: Path) -> YamlChecks:
    """The checks of a task or group; strict for files of the user's own."""
    packaged = {OWN_TASKS, Path(lm_eval.__file__).parent}
    is_packaged = not packaged.isdisjoint(file.resolve().parents)
    return YamlChecks(name, file, strict=not is_packaged)


def _chosen_documents(
    task: Any, *, samples: Iterable[int] | None = None, **options: Any
) -> Iterator[Any]:
    """lm-eval's `doc_iterator` of a task: (number, document) of those with the numbers `samples`;
    None: of all.

    Chosen documents are numbered from 0, as lm-eval's log expects them. lm-eval's own would convert
    every document of the split, twice, to take these.
    """
    if not samples:
        return type(task).doc_iterator(task, **options)
    documents = evaluated_documents(task)
    numbers = sorted(samples)
    if isinstance(documents, Dataset):
        chosen = documents.select(numbers)
    else:
        chosen = [documents[number] for number in numbers]
    return create_iterator(enumerate(chosen), **options | {"limit": None})


class TaskOrigin(NamedTuple):
    """Where a task comes from."""

    data_source: str
    """The source of its documents, in words (`source_of`)."""
    code: dict[str, Any]
    """The functions that its YAML names (`functions_of_yaml`)."""


class _Factory(TaskFactory):
    """lm-eval's factory with one step more.

    Here alone every task passes with its whole configuration, overrides of its groups included,
    before its data is loaded.
    """

    def __init__(self, config: Config, holdout: Holdout | None, splits: tuple[str, ...]):
        super().__init__()
        self._run = config
        self._holdout = holdout
        self._splits = splits
        self._read = cache(read_json_lines)  # the tasks of a group may share a file: MMLU has 57
        self._config: dict[str, Any] = {}
        """The configuration of the task that is loaded now, for errors."""
        self.checks: dict[str, YamlChecks] = {}
        """By task."""
        self.origins: dict[str, TaskOrigin] = {}
        """By task."""
        self.group_files: dict[str, Path] = {}
        """The YAML of each group."""

    def _load_full_config(
        self, entry: Entry, overrides: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The configuration of a task or group, checked; a task's with the run's documents and
        form."""
        self._config = {"task": entry.name}
        file = entry.yaml_path
        assert file is not None, "each task is found by its file"
        checks = _yaml_checks(entry.name, file)
        unsafe = load_yaml(file, resolve_func=False).get("unsafe_code")
        if unsafe and OWN_TASKS not in file.parents:  # before its functions are imported
            raise TaskError(
                f"Task {entry.name} executes code that the model wrote, outside of moe_lab's "
                "sandbox: not supported.\n"
                "The tasks that are: humaneval, humaneval_plus."
            )
        try:
            config = without_group(super()._load_full_config(entry, overrides))
        except Exception:
            checks.check_functions()
            raise
        if entry.kind is Kind.GROUP:
            self.group_files[entry.name] = file
            return config

        name = config["task"]
        has_class = "class" in config  # which reads keys of its own
        if not has_class:
            checks.check_settings(config)
        self.checks[name] = checks
        config = self._in_form(config)
        self._config = config
        folder = self._folder(config)
        config = self._with_documents(config, folder)
        code = functions_of_yaml(file, self._run.task.include_path)
        if has_class:
            code["given"] = {key: value for key, value in config.items() if key not in UNNAMED}
        self.origins[name] = TaskOrigin(source_of(config, folder), code)
        return as_installed(config)

    def _build_task(self, entry: Entry, overrides: dict[str, Any] | None) -> Any:
        """lm-eval's task, whose documents are read and whose templates work with the first one."""
        task = super()._build_task(entry, overrides)
        read_first_document(task)
        if "class" not in self._config:
            keep_given_form(task, self._config)
        return task

    def _build_group(
        self, group_name: str, raw_cfg: dict[str, Any], overrides: Any, registry: Any, *place: Any
    ) -> Group:
        """lm-eval's group, checked."""
        file = self.group_files.get(group_name)
        if file is not None:  # none: a group inside of another one
            self.checks |= _yaml_checks(group_name, file).check_group(raw_cfg, registry)
        return super()._build_group(group_name, raw_cfg, overrides, registry, *place)

    def _in_form(self, config: dict[str, Any]) -> dict[str, Any]:
        """The configuration with the run's form of prompts and answers."""
        settings = self._run.task
        split = settings.fewshot_split
        if split is not None:
            fewshot = {**(config.get("fewshot_config") or {}), "split": split, "samples": None}
            config |= {"fewshot_split": split, "fewshot_config": fewshot}
        if settings.answer == "letters":
            config = in_letters(choices_as_prompts(config))
        if self._run.apply_chat_template and config.get("unsafe_code"):
            config = in_chat(config)
        if settings.self_consistency is not None and not (self._holdout or self._splits):
            config = voted(config, settings.self_consistency)
        if config.get("process_results") is score:
            config["metric_list"] = _metrics_of_judges()
        process = config.get("process_docs")
        if callable(process):
            process_once = cache(process)  # called twice, and some tasks shuffle their choices
            config["process_docs"] = process_once
            examples = config.get("fewshot_config") or {}
            if examples.get("process_docs") is process:
                config["fewshot_config"] = {**examples, "process_docs": process_once}
        return config

    def _folder(self, config: dict[str, Any]) -> Path | None:
        """The folder of the task's local files; None: `data_dir` has none."""
        if self._run.data_dir is None or "class" in config:  # a class loads its own data
            return None
        folder = Path(self._run.data_dir, self._run.task.data_folder or config["task"])
        return folder if folder.is_dir() else None

    def _with_documents(self, config: dict[str, Any], folder: Path | None) -> dict[str, Any]:
        """The configuration with the run's documents."""
        if self._splits:
            config["test_split"] = self._first_split(config, folder)
        source_split = config.get("test_split") or config.get("validation_split")
        if self._holdout is not None:
            source_split = _not_evaluated(config, folder) or source_split

        name = config.get("dataset_name")
        options = config.get("dataset_kwargs") or {}
        path = hub_id(config)
        if folder is not None:
            local = self._local_splits(config, folder, source_split)
            config["custom_dataset"] = lambda **_: local
        elif path is not None and is_local(path):
            if config.get("custom_dataset") is None and has_only_local_files(options):
                config["custom_dataset"] = LocalFiles(path, name, _load_options(config))
        elif path is not None:  # before the retries of `datasets`
            with suppress(LocalEntryNotFoundError):  # offline, `datasets` has a cache of its own
                commit_of(path, "dataset", options.get("revision"))
        if self._holdout is None:
            return config
        return _with_held_out(config, self._holdout, source_split)

    def _local_splits(
        self, config: dict[str, Any], folder: Path, evaluated: str | None
    ) -> LocalSplits:
        """The files of a folder as the data set of a task.

        Args:
            evaluated: the split that is evaluated, or that documents are held out from.
        """
        column = self._run.task.data_filter
        shots = self._run.num_fewshot
        if shots is None:
            shots = config.get("num_fewshot")
        return LocalSplits(
            folder=folder,
            read=self._read,
            evaluated=evaluated,
            shots=shots,
            only=(column, config.get("dataset_name")) if column else None,
        )

    def _first_split(self, config: dict[str, Any], folder: Path | None) -> str:
        """The first existing split of `self._splits`: names of splits, or keys that name one
        (`training_split`)."""
        for split in self._splits:
            name = config.get(split) if split.endswith("_split") else split
            if name and _has_split(folder, name):
                return name
        kinds = " or ".join(split.removesuffix("_split") for split in self._splits)
        raise TaskError(
            f"Task {config['task']} has no {kinds} split in {folder or 'its data set'}."
        )

    def _place(self, error: Exception) -> str | None:
        """The file and, if it is known, the line that an error comes from; None for a task that is
        not the user's own."""
        checks = self.checks.get(self._config["task"])
        if checks is None or not checks.strict:
            return None
        variable = re.search(r"^'(\w+)' is undefined", str(error))
        if variable is not None:
            return checks.undefined(variable[1]) or checks.place()
        return checks.place()

    def has_own_rows(self, name: str) -> bool:
        """Whether the YAML or the files of a task are the user's, who can correct them."""
        origin = self.origins.get(name)
        checks = self.checks.get(name)
        has_files = origin is not None and not origin.data_source.startswith("data set")
        return has_files or (checks is not None and checks.strict)

    def reason(self, error: Exception) -> str:
        """The message for an error of lm-eval, `datasets` or the hub while a task is loaded."""
        error = error_of_template(error)
        config = self._config
        name = config["task"]
        path = hub_id(config)
        source = source_of(config, self._folder(config))
        if path is None or not source.startswith("data set"):
            what = f"{type(error).__name__}: {first_line(error)}"
            reason = f"Task {name} cannot be loaded: {what}.\nIts documents: {source}."
            place = self._place(error)
            return f"{reason} Its YAML: {place}." if place else reason

        root = f"{self._run.data_dir}/" if self._run.data_dir else "data_dir=<folder> with "
        file = f"{root}{self._run.task.data_folder or name}/<split>.jsonl"
        columns = (config.get("dataset_kwargs") or {}).get("columns", ())
        if columns:
            file = f"{file} with the columns {', '.join(columns)}"
        return f"Task {name}: {explain(error, path, 'data set')}\nOr give {file}."


def _has_split(folder: Path | None, split: str) -> bool:
    """Whether the local files have a split. A hub data set is assumed to have all splits of the
    task."""
    return folder is None or (folder / f"{split}.jsonl").exists()


def _not_evaluated(config: dict[str, Any], folder: Path | None) -> str | None:
    """The validation or training split, where it exists and is not the one that is evaluated."""
    evaluated = config.get("test_split") or config.get("validation_split")
    for split in (config.get("validation_split"), config.get("training_split")):
        if split and split != evaluated and _has_split(folder, split):
            return split
    return None


def _with_held_out(
    config: dict[str, Any], holdout: Holdout, source_split: str | None
) -> dict[str, Any]:
    """The configuration that evaluates documents held out from a split."""
    load = config.get("custom_dataset")
    if load is None:
        name = config.get("dataset_name")
        load = partial(_load_hub_dataset, config["dataset_path"], name, _load_options(config))
    held_out = HeldOutDataset(
        task=config["task"], source=str(source_split), holdout=holdout, load=load
    )
    example_splits = ("fewshot_split", "training_split", "validation_split")
    if not any(config.get(key) for key in example_splits):
        # lm-eval would draw from the evaluated documents themselves
        config["fewshot_split"] = source_split
    return config | {"custom_dataset": held_out, "test_split": SPLIT}


def _load_options(config: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `load_dataset` that a task's YAML gives, without leave to run code."""
    options = config.get("dataset_kwargs") or {}
    return {key: value for key, value in options.items() if key != "trust_remote_code"}


def _load_hub_dataset(path: str, name: str | None, options: dict[str, Any], **_: Any) -> Any:
    return load_dataset(path, name, **options)


def _metrics_of_judges() -> list[dict[str, Any]]:
    """lm-eval's entries of the metrics of all judges: means, of which lower ones are better."""
    entries = []
    for name in JUDGES:
        for metric in judge_class(name).metrics:
            entries.append({"metric": metric, "aggregation": "mean", "higher_is_better": False})
    return entries
