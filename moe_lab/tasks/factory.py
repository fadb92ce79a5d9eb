"""lm-eval's tasks by name, with the documents and the form that a run gives them.

Documents come from `<data_dir>/<folder>/<split>.jsonl` where there is such a folder, with the columns of the hub's data
set (`local_data.py`).
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import lm_eval
from datasets import Dataset, load_dataset
from huggingface_hub.errors import LocalEntryNotFoundError
from lm_eval.api.group import Group
from lm_eval.tasks import TaskManager
from lm_eval.tasks._factory import TaskFactory
from lm_eval.tasks._index import Entry, Kind
from lm_eval.tasks._yaml_loader import load_yaml
from lm_eval.tasks.manager import TaskDict
from lm_eval.utils import create_iterator

from moe_lab.config.schema import Config
from moe_lab.config.validators import did_you_mean
from moe_lab.errors import TaskError, first_line
from moe_lab.models.hub import commit_of, explain
from moe_lab.results.code import version_of
from moe_lab.results.code_digest import code_digest, module_digest
from moe_lab.results.identity import UNNAMED
from moe_lab.tasks.documents import SPLIT, HeldOutDataset, Holdout
from moe_lab.tasks.hub_data import hub_id
from moe_lab.tasks.judges import JUDGES, judge_class, score
from moe_lab.tasks.letters import in_letters
from moe_lab.tasks.lm_eval_tasks import (
    as_installed,
    choices_as_prompts,
    error_of_template,
    evaluated_documents,
    keep_given_form,
    read_first_document,
    without_group,
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
from moe_lab.tasks.yaml_checks import YamlChecks, check_readable

OWN_TASKS = Path(__file__).resolve().parent


def build_tasks(
    names: list[str], config: Config, holdout: Holdout | None, splits: tuple[str, ...]
) -> TaskDict:
    """Load tasks, groups or tags by name, as `load_tasks` describes. Raises TaskError."""
    manager, specs = _find(names, config.task.include_path)
    factory = manager._factory = _Factory(config, holdout, splits)
    try:
        tasks = manager.load(specs)
        for task in tasks["tasks"].values():
            # in 0.5 tasks that a group defines pass no method of the factory
            read_first_document(task)
    except TaskError:
        raise
    except Exception as error:
        # jinja2, datasets and the tasks' own code raise many kinds of errors
        raise TaskError(factory.reason(error)) from error
    for task in tasks["tasks"].values():
        name = task.task_name
        if name in factory.checks:
            factory.checks[name].check_filters(task)
        if name not in factory.facts:  # defined inside a group
            factory.facts[name] = _source(vars(task.config), None), {}
        task.data_source, task.code = factory.facts[name]  # type: ignore[attr-defined]
        task.doc_iterator = partial(_chosen_documents, task)  # type: ignore[method-assign]
        task.build_all_requests = partial(build_all_requests, task)  # type: ignore[method-assign]
    for group in tasks.get("groups", {}).values():
        file = factory.group_files.get(group.name)  # none: a group inside of another one
        group.code = _code(file, config.task.include_path) if file else {}  # type: ignore[attr-defined]
        if file:
            checks = _yaml_checks(group.name, file)
            reported = {metric for task in group.get_all_tasks() for metric in task.aggregation()}
            metrics = [score.metric for score in group.aggregate_metric_list or []]
            if checks.strict:
                checks.check_group_metrics(metrics, reported)
    return tasks


def _yaml_checks(name: str, file: Path) -> YamlChecks:
    packaged = {OWN_TASKS, Path(lm_eval.__file__).parent}
    return YamlChecks(name, file, strict=not packaged & {*file.resolve().parents})


def _chosen_documents(
    task: Any, *, samples: Iterable[int] | None = None, **options: Any
) -> Iterator[Any]:
    """lm-eval's `doc_iterator`, which converts every document of the split, twice, to take those of `samples`.

    Chosen documents are numbered from 0, as lm-eval's log expects them.
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


def _find(names: list[str], include_path: str | None) -> tuple[TaskManager, list[str]]:
    """A task manager, and the tasks to load by name or YAML file.

    lm-eval's whole index takes seconds to read. Only groups, tags and tasks with an unusual YAML need it.
    """
    if include_path is not None and not os.path.isdir(include_path):
        raise TaskError(
            f"task.include_path={include_path} is no folder. Name the folder of the task YAMLs."
        )
    for file in (Path(name) for name in names if name.endswith(".yaml")):
        raise TaskError(
            f"task.name={file} is a file. Give its folder, and the name that is in it after `task:`:\n"
            f"task.include_path={file.parent} task.name={file.stem}"
        )
    manager = TaskManager(include_path=include_path, include_defaults=False)
    files = _task_files() | {name: name for name in manager.all_subtasks}
    own_groups = {*manager.all_groups, *manager.all_tags}
    if all(name in files and name not in own_groups for name in names):
        if include_path is not None and not all(name in manager.all_subtasks for name in names):
            # lm-eval's task may stand for one that cannot be read
            check_readable(include_path, names, files)
        return manager, [files[name] for name in names]
    if include_path is not None:
        check_readable(include_path, names, files.keys() - own_groups)
    manager = _full_index(include_path)
    for name in names:
        if name not in manager.all_tasks:
            close = did_you_mean(name, manager.all_tasks)
            raise TaskError(
                f"task.name={name} is no lm-eval task, group or tag.{close}\nAll names: lm-eval ls tasks."
            )
    return manager, names


@cache
def _task_files() -> dict[str, str]:
    """The YAML file of each task of lm-eval and of this package that has a line `task: <name>` of its own."""
    line = re.compile(
        rb"""^["']?task["']?:[ ]*["']?([^"'#\s\[]+)["']?[ ]*(?:#.*)?\r?$""", re.MULTILINE
    )
    found: dict[str, str] = {}
    for root in (OWN_TASKS, Path(lm_eval.__file__).parent / "tasks"):
        for file in sorted(root.rglob("*.yaml")):  # of several files lm-eval, too, takes the first
            for name in line.findall(file.read_bytes()):
                found.setdefault(name.decode(errors="replace"), str(file))
    return found


@lru_cache(maxsize=2)
def _full_index(include_path: str | None) -> TaskManager:
    return TaskManager(include_path=[str(OWN_TASKS), *([include_path] if include_path else [])])


class _Factory(TaskFactory):
    """lm-eval's factory with one step more.

    Here alone every task passes with its whole configuration, overrides of its groups included, before its data is
    loaded.
    """

    def __init__(self, config: Config, holdout: Holdout | None, splits: tuple[str, ...]):
        super().__init__()
        self._run, self._holdout, self._splits = config, holdout, splits
        self._read = cache(read_json_lines)  # the tasks of a group may share a file: MMLU has 57
        self._config: dict[str, Any] = {}
        """The configuration of the task that is loaded now, for errors."""
        self.checks: dict[str, YamlChecks] = {}
        """By task."""
        self.facts: dict[str, tuple[str, dict[str, Any]]] = {}
        """The source of each task's documents, in words, and its code."""
        self.group_files: dict[str, Path] = {}
        """The YAML of each group."""

    def _load_full_config(
        self, entry: Entry, overrides: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        self._config = {"task": entry.name}
        assert entry.yaml_path is not None, "each task is found by its file"
        checks = _yaml_checks(entry.name, entry.yaml_path)
        unsafe = load_yaml(entry.yaml_path, resolve_func=False).get("unsafe_code")
        if unsafe and OWN_TASKS not in entry.yaml_path.parents:  # before its functions are imported
            raise TaskError(
                f"Task {entry.name} executes code that the model wrote, outside of moe_lab's sandbox: not supported.\n"
                "The tasks that are: humaneval, humaneval_plus."
            )
        try:
            config = without_group(super()._load_full_config(entry, overrides))
        except Exception:
            checks.check_functions()
            raise
        if entry.kind is Kind.GROUP:
            self.group_files[entry.name] = entry.yaml_path
            return config
        if "class" not in config:  # a class reads keys of its own
            checks.check_settings(config)
        self.checks[config["task"]] = checks
        self._config = config = self._in_form(config)
        folder = self._folder(config)
        config = self._with_documents(config, folder)
        code = _code(entry.yaml_path, self._run.task.include_path)
        if "class" in config:  # the class decides what it reads of its configuration
            code["given"] = {key: config[key] for key in config if key not in UNNAMED}
        self.facts[config["task"]] = _source(config, folder), code
        return as_installed(config)

    def _build_task(self, entry: Entry, overrides: dict[str, Any] | None) -> Any:
        task = super()._build_task(entry, overrides)
        read_first_document(task)
        if "class" not in self._config:
            keep_given_form(task, self._config)
        return task

    def _build_group(
        self, group_name: str, raw_cfg: dict[str, Any], overrides: Any, registry: Any, *place: Any
    ) -> Group:
        file = self.group_files.get(group_name)
        if file is not None:  # none: a group inside of another one
            self.checks |= _yaml_checks(group_name, file).check_group(raw_cfg, registry)
        return super()._build_group(group_name, raw_cfg, overrides, registry, *place)

    def _in_form(self, config: dict[str, Any]) -> dict[str, Any]:
        """The configuration with the run's form of prompts and answers."""
        settings = self._run.task
        if (split := settings.fewshot_split) is not None:
            fewshot = {**(config.get("fewshot_config") or {}), "split": split, "samples": None}
            config |= {"fewshot_split": split, "fewshot_config": fewshot}
        if settings.answer == "letters":
            config = in_letters(choices_as_prompts(config))
        if self._run.apply_chat_template and config.get("unsafe_code"):
            config = in_chat(config)
        if settings.self_consistency is not None and not (self._holdout or self._splits):
            config = voted(config, settings.self_consistency)
        if config.get("process_results") is score:
            metrics = [metric for name in JUDGES for metric in judge_class(name).metrics]
            shared = {"aggregation": "mean", "higher_is_better": False}
            config["metric_list"] = [{"metric": metric, **shared} for metric in metrics]
        if callable(process := config.get("process_docs")):
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

        def exists(split: str | None) -> bool:
            # a hub data set is assumed to have all splits of the task
            return bool(split) and (folder is None or (folder / f"{split}.jsonl").exists())

        if self._splits:  # names of splits, or keys that name one (`training_split`)
            named = (config.get(one) if one.endswith("_split") else one for one in self._splits)
            if (found := next(filter(exists, named), None)) is None:
                kinds = " or ".join(one.removesuffix("_split") for one in self._splits)
                raise TaskError(
                    f"Task {config['task']} has no {kinds} split in {folder or 'its data set'}."
                )
            config["test_split"] = found
        evaluated = config.get("test_split") or config.get("validation_split")
        if self._holdout is not None:  # of a split that is not evaluated, if there is one
            others = (config.get("validation_split"), config.get("training_split"))
            evaluated = next((one for one in others if one != evaluated and exists(one)), evaluated)
        options, path = config.get("dataset_kwargs") or {}, hub_id(config)
        given = {key: value for key, value in options.items() if key != "trust_remote_code"}
        if folder is not None:
            column, shots = self._run.task.data_filter, self._run.num_fewshot
            local = LocalSplits(
                folder=folder,
                read=self._read,
                evaluated=evaluated,
                shots=config.get("num_fewshot") if shots is None else shots,
                only=(column, config.get("dataset_name")) if column else None,
            )
            config["custom_dataset"] = lambda **_: local
        elif path is not None and is_local(path):
            if config.get("custom_dataset") is None and has_only_local_files(options):
                config["custom_dataset"] = LocalFiles(path, config.get("dataset_name"), given)
        elif path is not None:  # before the retries of `datasets`
            with suppress(LocalEntryNotFoundError):  # offline, `datasets` has a cache of its own
                commit_of(path, "dataset", options.get("revision"))
        if self._holdout is None:
            return config
        load = config.get("custom_dataset") or (
            lambda **_: load_dataset(config["dataset_path"], config.get("dataset_name"), **given)
        )
        held_out = HeldOutDataset(
            task=config["task"], source=str(evaluated), holdout=self._holdout, load=load
        )
        if not any(
            config.get(key) for key in ("fewshot_split", "training_split", "validation_split")
        ):
            config["fewshot_split"] = (
                evaluated  # lm-eval would draw from the evaluated documents themselves
            )
        return config | {"custom_dataset": held_out, "test_split": SPLIT}

    def _place(self, error: Exception) -> str | None:
        """The file and, if it is known, the line that an error of a task of the user's own comes from."""
        checks = self.checks.get(self._config["task"])
        if checks is None or not checks.strict:
            return None
        variable = re.search(r"^'(\w+)' is undefined", str(error))
        return (variable and checks.undefined(variable[1])) or checks.place()

    def reason(self, error: Exception) -> str:
        """The message for an error of lm-eval, `datasets` or the hub while a task is loaded."""
        error = error_of_template(error)
        config, path = self._config, hub_id(self._config)
        name, source = config["task"], _source(config, self._folder(config))
        if path is None or not source.startswith("data set"):
            what = f"{type(error).__name__}: {first_line(error)}"
            reason = f"Task {name} cannot be loaded: {what}.\nIts documents: {source}."
            place = self._place(error)
            return f"{reason} Its YAML: {place}." if place else reason
        root = f"{self._run.data_dir}/" if self._run.data_dir else "data_dir=<folder> with "
        columns = ", ".join((config.get("dataset_kwargs") or {}).get("columns", ()))
        file = f"{root}{self._run.task.data_folder or name}/<split>.jsonl"
        said = explain(error, path, "data set")
        return f"Task {name}: {said}\nOr give {file}{columns and f' with the columns {columns}'}."


def _source(config: dict[str, Any], folder: Path | None) -> str:
    """Where a task's documents are from, in words."""
    path = hub_id(config)
    if folder is not None:
        return f"files in {folder}"
    if path is None:
        return "generated"
    return "files that its YAML names" if is_local(path) else f"data set {path} of the hub"


def _code(file: str | Path, include_path: str | None) -> dict[str, Any]:
    """The functions that a YAML names, by key: name and digest of the module, or `versioned` name and number.

    A decorated function or one that another function returned has the module of that one, and the name, too.
    """
    functions, names = load_yaml(file), load_yaml(file, resolve_func=False)
    code = {}
    for key in names.keys() - UNNAMED:
        for place, named, function in _functions(functions[key], names[key], key):
            version = version_of(function)
            if version is not None:
                code[place] = list(version)
                continue
            # lm-eval's order: a file next to the YAML, then a module
            module, _, name = Path(named).name.rpartition(".")
            source = Path(named).parent / f"{module.replace('.', '/')}.py"
            folder = Path(include_path) if include_path else None
            code[place] = [
                name,
                code_digest(source, folder) if source.is_file() else module_digest(module),
            ]
    return code


def _functions(value: Any, named: Any, key: str) -> Iterator[tuple[str, str, Any]]:
    """(key, `<folder>/module.function`, function) of a YAML, from it with functions and with their names."""
    if isinstance(named, dict | list):
        for each in named if isinstance(named, dict) else range(len(named)):
            yield from _functions(value[each], named[each], f"{key}.{each}")
    elif isinstance(named, str) and not (isinstance(value, str) and value == named):
        yield key, named, value
