"""Checks that a checkpoint has all parameters of its model, and no others.

transformers would initialize missing ones at random, and leave others out: layers that config.json does not count.

Experts that are stored one by one are fused at loading. transformers then reports a problem with one expert for the
fused tensor, or not at all; the names in the files tell which expert it is.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moe_lab.errors import ModelError
from moe_lab.models.hub.headers import read_header
from moe_lab.models.weight_files import known_weights

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

EXPERT = re.compile(r"(.*\bexperts\.)(\d+)(\..*)")
NO_TEXT = re.compile("vision|visual|image|audio|multi_modal_projector")
Shapes = dict[str, tuple[int, ...]]


def check_complete(report: dict[str, Any], folder: Path, source: str, config: PreTrainedConfig) -> None:
    """Raise ModelError, naming a parameter, if transformers reports missing, misshapen or unexpected ones."""
    missing = {str(key) for key in report["missing_keys"]}
    misshapen = {str(key[0] if isinstance(key, tuple) else key) for key in report["mismatched_keys"]}
    if missing or misshapen:
        check_experts(folder, source)
    _refuse(source, missing, misshapen)
    if surplus := sorted(without_place(report, config)):
        raise ModelError(
            f"The checkpoint {source} has {len(surplus)} weights that its model has no place for, "
            f"e.g. {surplus[0]!r}.\n"
            "Its config.json belongs to another checkpoint (fewer layers, say): fetch or save both again."
        )


def without_place(report: dict[str, Any], config: PreTrainedConfig) -> set[str]:
    """Unexpected weights but those that transformers ignores, and the parts of a larger model that read no text."""
    names = {str(key) for key in report["unexpected_keys"]}
    if config.get_text_config() is config:
        return names
    return {name for name in names if not NO_TEXT.search(name)}


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
