"""The options in `conf/` and the experiments in `experiments/`, read from their YAML files without Hydra."""

from __future__ import annotations

import re
from pathlib import Path

from moe_lab.config.paths import resource_folder

COMMENT = re.compile(r"#\s?(?!\s*@package)(.*)")


def options(group: str, folders: list[Path]) -> dict[str, str]:
    """The options of a group, each with the first comment line of its YAML."""
    return {name: first_comment(file) for name, file in option_files(group, folders).items()}


def option_files(group: str, folders: list[Path]) -> dict[str, Path]:
    """The YAML of each option of a group, by name; of two alike the one in the earlier folder, as Hydra has it."""
    files = {file.stem: file for folder in reversed(folders) for file in (folder / group).glob("*.yaml")}
    return dict(sorted(files.items()))


def first_comment(file: Path) -> str:
    """The first comment line of a YAML file, or nothing."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if match := COMMENT.match(line):
            return match[1].strip()
    return ""


def experiments() -> dict[str, str]:
    """The experiments by folder and name, each with the first comment line of its YAML; numbers count as such."""
    root = resource_folder("experiments")
    files = {file.relative_to(root).with_suffix("").as_posix(): file for file in root.rglob("*.yaml")}
    order = sorted(
        files, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
    )
    return {name: first_comment(files[name]) for name in order}


def top_level_keys() -> list[tuple[str, str, str]]:
    """(key, default, comment) of every top-level key of `conf/config.yaml`."""
    text = (resource_folder("conf") / "config.yaml").read_text(encoding="utf-8")
    return [
        (key, default, comment) for comment, key, default in re.findall(r"^# (.+)\n(\w+): (.+)$", text, re.M)
    ]
