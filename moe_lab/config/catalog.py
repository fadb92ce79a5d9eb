"""The options in `conf/` and the experiments in `experiments/`, read from their YAML files without
Hydra.

The folders are next to the package in a checkout and inside it in a wheel. The first comment line
of a file says what an option is. The comment above a key says what the key does.
"""

import re
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from moe_lab.config.validators import did_you_mean
from moe_lab.errors import ConfigError

PACKAGE = Path(__file__).resolve().parents[1]
METHODS = "moe_lab.methods"
"""The entry-point group of plug-ins with methods."""
KEY = re.compile(r"^# (.*)\n(\w+): (.+)$", re.MULTILINE)
"""A key at the top level of a YAML file with its value, below its comment."""


def resource_folder(name: str) -> Path:
    """The folder `conf` or `experiments`. Raises FileNotFoundError if the installation lacks it."""
    for folder in (PACKAGE / name, PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(
        f"{name}/ is neither in {PACKAGE} nor next to it. Install moe-lab again."
    )


def plugin_folders() -> list[Path]:
    """The folder `conf` of every installed plug-in package that has one. No plug-in is imported."""
    return list(_plugin_folders(tuple(sys.path)))


@cache
def _plugin_folders(search_path: tuple[str, ...]) -> tuple[Path, ...]:
    """As `plugin_folders`, looked up once for each `sys.path`."""
    from importlib.metadata import entry_points  # takes a quarter of `--help`

    packages = {entry.module.partition(".")[0] for entry in entry_points(group=METHODS)}
    folders = []
    for package in sorted(packages):
        spec = find_spec(package)
        if spec is None:
            continue
        for place in spec.submodule_search_locations or ():
            folder = Path(place) / "conf"
            if folder.is_dir():
                folders.append(folder)
    return tuple(folders)


def option_text(file: Path) -> str:
    """The text of an option's YAML. Raises ConfigError for one that is not UTF-8."""
    content = file.read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}: line {line} is not UTF-8. Save the file as UTF-8.") from error


def about(file: Path) -> str:
    """What an option is: the first comment of its YAML; empty without one."""
    for line in option_text(file).splitlines():
        if line.startswith("#") and "@package" not in line:
            return line.lstrip("# ")
    return ""


def option_files(group: str, folders: list[Path]) -> dict[str, Path]:
    """The YAML of each option of a group, by name. If two folders have the same option, the earlier
    folder counts, as in Hydra."""
    files = {}
    for folder in reversed(folders):
        for file in (folder / group).glob("*.yaml"):
            files[file.stem] = file
    return dict(sorted(files.items()))


def unknown_option(group: str, option: str, options: Sequence[str]) -> str:
    """The message for an option that a group does not have."""
    lines = [
        f"Unknown {group} {option!r}.{did_you_mean(option, options)}",
        f"Choices: {', '.join(options)}.",
    ]
    if group == "task":
        lines.append(
            f"Any task of lm-eval or of task.include_path=: task=lm_eval task.name={option}"
        )
    elif group == "model":
        lines.append(f"A hub id or a folder: model.path={option}")
    elif group == "method" and ".py" in option:
        lines.append(f"A function of a file: method=policy method.policy={option}")
    return "\n".join(lines)


def experiment_files(config_dirs: Sequence[Path]) -> dict[str, Path]:
    """The YAML of each experiment by folder and name, numbers in a name compared as numbers.

    They are the package's, and those in `experiments/` in each folder of `--config-dir`.

    Raises ConfigError for two files with one name.
    """
    roots = [resource_folder("experiments")]
    for folder in config_dirs:
        roots.append(folder / "experiments")

    files: dict[str, Path] = {}
    for root in roots:
        for file in root.rglob("*.yaml"):
            name = file.relative_to(root).with_suffix("").as_posix()
            if name in files:
                raise ConfigError(
                    f"{file} has the name of another experiment, {files[name]}. Rename it."
                )
            files[name] = file
    return {name: files[name] for name in sorted(files, key=_with_numbers)}


def _with_numbers(name: str) -> list[str | int]:
    """The parts of a name, its numbers as numbers: figure10 comes after figure9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


class TopLevelKey(NamedTuple):
    """A key of `conf/config.yaml`."""

    key: str
    default: str
    """As YAML writes it."""
    comment: str
    """The line above it."""


def top_level_keys() -> list[TopLevelKey]:
    """The keys of `conf/config.yaml`, in its order."""
    text = (resource_folder("conf") / "config.yaml").read_text(encoding="utf-8")
    keys = []
    for comment, key, default in KEY.findall(text):
        keys.append(TopLevelKey(key, default, comment))
    return keys
