"""Keys of type text keep the characters that were typed: `model.revision=12345e7` is no number.

Hydra and YAML read such a value as a number, or as a switch, whose text is another one. So a value
of an override is quoted before Hydra reads it (`overrides.py: quote`), and a value of a YAML is
read again as text (`kept_texts`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args, get_origin

import yaml

from moe_lab.config.schema import GROUP_CONFIGS, Config
from moe_lab.config.validators import alternatives, hints_of

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass(frozen=True)
class Chosen:
    """The method that a command or a YAML names; several in a grid of methods, none by default."""

    methods: tuple[str, ...] = ()
    policy: str | None = None
    """The function of method=policy, `<file>.py:<function>`."""


NOTHING = Chosen()
"""No method is named."""
MethodTextKeys = Callable[[Chosen], dict[str, Any]]
"""The annotations of methods' text keys by full name, `method.dataset`
(`moe_lab.methods.text_keys_of_methods`). This folder does not import methods."""

WHOLE = re.compile(r"0|-?[1-9][0-9]*")
"""A whole number whose text is the same after it was read as a number."""
NUMBER = re.compile(
    r"[+-]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)(e[+-]?\d[\d_]*)?"
    r"|[+-]?\.?(inf|nan)|[+-]?0[xbo][\da-f_]+",
    re.IGNORECASE,
)
"""What Hydra or YAML reads as a number."""
SWITCH = re.compile("true|false", re.IGNORECASE)
"""What Hydra reads as a switch."""


def text_annotations(cls: type, prefix: str) -> dict[str, Any]:
    """The keys of a dataclass whose values are texts or lists of texts, with their annotations.

    A key that also takes a number, such as `batch_size`, is not one of them: there 8 is a number.
    """
    keys = {}
    for key, annotation in hints_of(cls).items():
        if _is_text(annotation):
            keys[f"{prefix}{key}"] = annotation
    return keys


def _is_text(annotation: Any) -> bool:
    """Whether an annotation allows texts, or lists of them, and no numbers."""
    kinds: set[Any] = set()
    for choice in alternatives(annotation):
        if get_origin(choice) in (list, tuple):
            kinds.update(get_args(choice))
        else:
            kinds.add(choice)
    return str in kinds and not kinds & {int, float, Any}


class TextKeys:
    """The text keys of the schema and of all methods."""

    def __init__(self, of_methods: MethodTextKeys):
        self._of_methods = of_methods
        self._of_schema = text_annotations(Config, "")
        for group, cls in GROUP_CONFIGS.items():
            self._of_schema |= text_annotations(cls, f"{group}.")

    def annotation(self, key: str, chosen: Chosen = NOTHING) -> Any:
        """The annotation of a text key; None for a key that is none."""
        if key in self._of_schema:
            return self._of_schema[key]
        if not key.startswith(("method.", "model.recipe.")):
            return None
        known = self._of_methods(replace(chosen, policy=None))  # imports the methods
        if key in known or chosen.policy is None:
            return known.get(key)
        return self._of_methods(chosen).get(key)  # imports the function's file

    def is_misread(self, key: str, text: str, chosen: Chosen = NOTHING) -> bool:
        """Whether Hydra would read this text of a text key as a number or a switch."""
        is_switch = SWITCH.fullmatch(text) is not None
        if not is_switch and (WHOLE.fullmatch(text) or not NUMBER.fullmatch(text)):
            return False
        annotation = self.annotation(key, chosen)
        if annotation is None:
            return False
        return not is_switch or bool not in alternatives(annotation)


SCHEMA_TEXT_KEYS = TextKeys(lambda chosen: {})
"""The text keys of the schema alone. `moe_lab.methods.TEXT_KEYS` has those of methods, too."""
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, where PyYAML has it, which is faster."""


def kept_texts(config: DictConfig, text: str, prefix: str, keys: TextKeys) -> None:
    """Put the characters of a YAML in the place of the numbers and switches that its text keys were
    read as.

    Args:
        config: what OmegaConf reads in the YAML; it is changed.
        text: the YAML.
        prefix: the package of the YAML with a dot, `model.` for example; empty for the whole
            configuration.
    """
    root = yaml.compose(text, Loader=LOADER)
    if isinstance(root, yaml.MappingNode):
        _keep(config, root, prefix, keys)


def _keep(config: DictConfig, mapping: yaml.MappingNode, prefix: str, keys: TextKeys) -> None:
    """Do what `kept_texts` does for one mapping of the YAML.

    Args:
        config: the part of the configuration that was read from this mapping; it is changed.
        prefix: the full name of the mapping's key with a dot.
    """
    from omegaconf import OmegaConf

    values = OmegaConf.to_container(config, resolve=False)
    assert isinstance(values, dict)
    chosen = _chosen(values) if prefix == "method." else NOTHING
    for key_node, node in mapping.value:
        name = key_node.value
        value = values.get(name)  # None for a list of defaults, which Hydra has taken out
        key = f"{prefix}{name}"
        if isinstance(value, dict) and isinstance(node, yaml.MappingNode):
            _keep(config[name], node, f"{key}.", keys)
        elif isinstance(value, list) and isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                if _is_misread(value[index], item, key, keys, chosen):
                    config[name][index] = item.value
        elif _is_misread(value, node, key, keys, chosen):
            config[name] = node.value


def _chosen(method: dict[Any, Any]) -> Chosen:
    """The method that a method's YAML names, and its `policy`."""
    name = method.get("name")
    methods = () if name is None else (str(name),)
    return Chosen(methods=methods, policy=method.get("policy"))


def _is_misread(value: Any, node: yaml.Node, key: str, keys: TextKeys, chosen: Chosen) -> bool:
    """Whether YAML read the text of a text key as a number or a switch (`value`)."""
    if not isinstance(node, yaml.ScalarNode) or not isinstance(value, bool | int | float):
        return False
    annotation = keys.annotation(key, chosen)
    if annotation is None:
        return False
    return not isinstance(value, bool) or bool not in alternatives(annotation)
