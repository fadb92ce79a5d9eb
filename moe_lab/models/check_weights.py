"""Whether a checkpoint holds all of its model's parameters; transformers would fill the others with random numbers.

Experts that are stored one by one are fused as they are loaded. What is wrong with a single one is then told of the
fused tensor, or not at all: here the names in the files say which one it is.
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
    """Raise ModelError, naming a parameter, where transformers reports some as missing or in another shape."""
    missing = {str(key) for key in report["missing_keys"]}
    misshapen = {str(key[0] if isinstance(key, tuple) else key) for key in report["mismatched_keys"]}
    if missing or misshapen:
        check_experts(folder, source)
    _refuse(source, missing, misshapen)


def check_experts(folder: Path, source: str) -> None:
    """Raise ModelError where the files lack an expert that others have, or hold one in another shape than most."""
    _refuse(source, *odd_experts(_shapes(folder)))


def odd_experts(shapes: Shapes) -> tuple[set[str], set[str]]:
    """Names that are missing, and names whose shape is not that of the same parameter in most experts of the layer."""
    groups: dict[tuple[str, str], dict[int, tuple[int, ...]]] = defaultdict(dict)
    for name, shape in shapes.items():
        if found := EXPERT.fullmatch(name):
            groups[found[1], found[3]][int(found[2])] = shape
    numbers = {number for group in groups.values() for number in group}
    missing, misshapen = set(), set()
    for (before, after), group in groups.items():
        missing |= {f"{before}{number}{after}" for number in numbers - group.keys()}
        usual, _ = Counter(group.values()).most_common(1)[0]
        misshapen |= {f"{before}{number}{after}" for number, shape in group.items() if shape != usual}
    return missing, misshapen


def _shapes(folder: Path) -> Shapes:
    """Of all tensors in the safetensors files that transformers loads."""
    files = [folder / name for name in known_weights(folder) if name.endswith(".safetensors")]
    return {name: tuple(tensor["shape"]) for file in files for name, tensor in read_header(file).items()}


def _refuse(source: str, missing: Iterable[str], misshapen: Iterable[str]) -> None:
    for names, what in ((sorted(missing), "lacks"), (sorted(misshapen), "has in another shape")):
        if names:
            raise ModelError(
                f"The checkpoint {source} {what} {len(names)} of the model's parameters, e.g. {names[0]}.\n"
                "It is damaged or belongs to another configuration: fetch or save it again."
            )
