"""`--help method=roe`: the named options with their keys, defaults and comments."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from textwrap import TextWrapper

from moe_lab.config.catalog import Key, read_option
from moe_lab.config.schema import GROUP_CONFIGS
from moe_lab.config.validators import unknown_option
from moe_lab.errors import ConfigError

FOOT = "python -m moe_lab --help alone is the overview: all groups, their options, and every other key."
WIDEST_KEY = 40
"""Greatest number of characters of a key and its default with a comment beside it."""


def named_options(argv: Sequence[str], groups: Sequence[str]) -> list[tuple[str, str]]:
    """(group, option) of every option in a command line, including all values of a grid."""
    overrides = [argument.lstrip("+").partition("=") for argument in argv]
    named = [(group, names) for group, sign, names in overrides if sign and group in groups]
    return [(group, option) for group, options in named for option in options.split(",")]


def explain_option(group: str, option: str, files: dict[str, Path]) -> str:
    """The text for an option. `files` has the group's options by name. Raises ConfigError for an unknown option."""
    if option not in files:
        raise ConfigError(unknown_option(group, option, sorted(files)))
    about, keys = read_option(files[option])
    shown = [Key(f"{group}.{key.name}", key.default, key.comment) for key in keys]
    return "\n".join([f"{group}={option}", *_wrapped(about, 2), "", *_table(shown), *_left_out(group, keys)])


def explain_experiment(name: str, config_dirs: Sequence[Path]) -> str:
    """The text for an experiment, with the number of cells of each scale. Raises ConfigError for an unknown one."""
    from moe_lab.reports.papers.experiment import find_experiments

    texts = []
    for experiment in find_experiments(name, config_dirs):
        scales = [
            f"  scale={scale:<8} {len(cells.overrides())} cells" for scale, cells in experiment.scales.items()
        ]
        about = [*_wrapped(experiment.title, 2), *_wrapped(experiment.source, 2)]
        texts.append("\n".join([f"experiment={experiment.name}", *about, "", *scales]))
    return "\n\n".join(texts)


def _table(keys: Sequence[Key]) -> list[str]:
    texts = [f"{key.name}={key.default}" for key in keys]
    width = max([len(text) for text in texts if len(text) <= WIDEST_KEY], default=WIDEST_KEY)
    lines = []
    for text, key in zip(texts, keys, strict=True):
        first, *more = _wrapped(key.comment, width + 4) or [""]
        beside = len(text) <= width
        lines += [f"  {text:<{width}}  {first.strip()}".rstrip()] if beside else [*_wrapped(text, 2), first]
        lines += more
    return lines


def _left_out(group: str, keys: Sequence[Key]) -> list[str]:
    """The line with the keys of a group's schema that an option's YAML does not set."""
    if group not in GROUP_CONFIGS:
        return []
    given = {key.name for key in keys} | {"name"}
    left = [
        f"{group}.{field.name}={_written(field.default)}"
        for field in fields(GROUP_CONFIGS[group])
        if field.name not in given
    ]
    return ["", *_wrapped("also: " + " ".join(left), 2)] if left else []


def _written(default: object) -> str:
    """A default as in YAML; a default factory is an empty list."""
    return "[]" if default is MISSING else "null" if default is None else str(default).lower()


def _wrapped(text: str, indent: int) -> list[str]:
    width = min(max(shutil.get_terminal_size((110, 24)).columns, 80), 120)
    margin = " " * indent
    return TextWrapper(
        width,
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    ).wrap(text)
