"""Checks that a checkpoint has all parameters of its model; transformers would initialize missing ones at random.

Experts that are stored one by one are fused at loading. transformers then reports a problem with one expert for the
fused tensor, or not at all; the names in the files tell which expert it is.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from moe_lab.errors import ModelError
from moe_lab.models.hub.headers import read_header
from moe_lab.models.weight_files import known_weights

EXPERT = re.compile(r"(.*\bexperts\.)(\d+)(\..*)")
Shapes = dict[str, tuple[int, ...]]


def check_complete(report: dict[str, Any], folder: Path, source: str) -> None:
    """Raise ModelError, naming a parameter, if transformers reports missing or misshapen ones."""
    missing = {str(key) for key in report["missing_keys"]}
    misshapen = {str(key[0] if isinstance(key, tuple) else key) for key in report["mismatched_keys"]}
    if missing or misshapen:
        check_experts(folder, source)
    _refuse(source, missing, misshapen)


def check_experts(folder: Path, source: str) -> None:
    """Raise ModelError if the files lack an expert, or if an expert has another shape than most."""
    _refuse(source, *odd_experts(_shapes(folder)))


def odd_experts(shapes: Shapes) -> tuple[set[str], set[str]]:
    """Missing names, and names whose shape differs from the same parameter of most experts in the layer."""
    groups: dict[tuple[str, str], dict[int, tuple[int, ...]]] = defaultdict(dict)
    for name, shape in shapes.items():
        if match := EXPERT.fullmatch(name):
            groups[match[1], match[3]][int(match[2])] = shape
    numbers = {number for group in groups.values() for number in group}
    missing, misshapen = set(), set()
    for (before, after), group in groups.items():
        missing |= {f"{before}{number}{after}" for number in numbers - group.keys()}
        usual, _ = Counter(group.values()).most_common(1)[0]
        misshapen |= {f"{before}{number}{after}" for number, shape in group.items() if shape != usual}
    return missing, misshapen


def _shapes(folder: Path) -> Shapes:
    """The shapes of all tensors in the safetensors files that transformers loads."""
    files = [folder / name for name in known_weights(folder) if name.endswith(".safetensors")]
    return {name: tuple(tensor["shape"]) for file in files for name, tensor in read_header(file).items()}


def _refuse(source: str, missing: Iterable[str], misshapen: Iterable[str]) -> None:
    for names, what in ((sorted(missing), "lacks"), (sorted(misshapen), "has in another shape")):
        if names:
            raise ModelError(
                f"The checkpoint {source} {what} {len(names)} of the model's parameters, e.g. {names[0]}.\n"
                "It is damaged or belongs to another configuration: fetch or save it again."
            )
