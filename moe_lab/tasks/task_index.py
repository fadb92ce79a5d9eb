"""Finds lm-eval's tasks, groups and tags by name, without reading its whole index where that is not
needed."""

import os
import re
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import lm_eval
from lm_eval.tasks import TaskManager

from moe_lab.config.validators import did_you_mean
from moe_lab.errors import TaskError
from moe_lab.tasks.yaml_checks import check_readable

OWN_TASKS = Path(__file__).resolve().parent


class FoundTasks(NamedTuple):
    """Tasks that can be loaded."""

    manager: TaskManager
    """Loads them."""
    specs: list[str]
    """What it takes: the name or the YAML file of each."""


def find_tasks(names: list[str], include_path: str | None) -> FoundTasks:
    """The tasks, groups and tags of these names. Raises TaskError for an unknown one.

    lm-eval's whole index takes seconds to read. Only groups, tags and tasks with an unusual YAML
    need it.
    """
    _refuse_paths(names, include_path)
    manager = TaskManager(include_path=include_path, include_defaults=False)
    files = _task_files() | {name: name for name in manager.all_subtasks}
    own_groups = {*manager.all_groups, *manager.all_tags}
    are_tasks = all(name in files and name not in own_groups for name in names)
    if are_tasks:
        are_own = all(name in manager.all_subtasks for name in names)
        if include_path is not None and not are_own:
            # the user may mean a task of lm-eval's name in a file that cannot be read
            check_readable(include_path, names, files)
        return FoundTasks(manager, [files[name] for name in names])
    if include_path is not None:
        check_readable(include_path, names, files.keys() - own_groups)
    manager = _full_index(include_path)
    for name in names:
        if name not in manager.all_tasks:
            close = did_you_mean(name, manager.all_tasks)
            raise TaskError(
                f"task.name={name} is no lm-eval task, group or tag.{close}\nAll names: lm-eval ls "
                "tasks."
            )
    return FoundTasks(manager, names)


def _refuse_paths(names: list[str], include_path: str | None) -> None:
    """Raise TaskError for a folder that does not exist, and for a file in the place of a name."""
    if include_path is not None and not os.path.isdir(include_path):
        raise TaskError(
            f"task.include_path={include_path} is no folder. Name the folder of the task YAMLs."
        )
    for name in names:
        if name.endswith(".yaml"):
            file = Path(name)
            raise TaskError(
                f"task.name={file} is a file. Give its folder, and the name that is in it after "
                "`task:`:\n"
                f"task.include_path={file.parent} task.name={file.stem}"
            )


@cache
def _task_files() -> dict[str, str]:
    """The YAML file of each task of lm-eval and of this package that has a line `task: <name>` of
    its own."""
    line = re.compile(
        rb"""^["']?task["']?:[ ]*["']?([^"'#\s\[]+)["']?[ ]*(?:#.*)?\r?$""", re.MULTILINE
    )
    files: dict[str, str] = {}
    for root in (OWN_TASKS, Path(lm_eval.__file__).parent / "tasks"):
        for file in sorted(root.rglob("*.yaml")):  # of several files lm-eval, too, takes the first
            for name in line.findall(file.read_bytes()):
                files.setdefault(name.decode(errors="replace"), str(file))
    return files


@lru_cache(maxsize=2)
def _full_index(include_path: str | None) -> TaskManager:
    """lm-eval's manager of all tasks: its own, this package's, and those of `include_path`."""
    folders = [str(OWN_TASKS)]
    if include_path:
        folders.append(include_path)
    return TaskManager(include_path=folders)
