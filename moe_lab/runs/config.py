"""From a command line to the typed `Config` of each cell."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from moe_lab.config.compose import Cell, compose
from moe_lab.config.hydra_errors import REQUEST_ERRORS, explain
from moe_lab.config.overrides import LAUNCHER
from moe_lab.config.schema import EMBEDDED_MODELS, GROUP_CONFIGS, KEYS, Config, ModelConfig
from moe_lab.config.validators import build, unknown_key
from moe_lab.errors import ConfigError, MoeLabError, TaskError
from moe_lab.methods import TEXT_KEYS, config_class, get_method, methods_with
from moe_lab.methods.training_arguments import TrainerConfig
from moe_lab.models.load_options import with_load
from moe_lab.reports.wandb_init import checked_init

STORED_ONLY = ("report", "compare")
"""Modes that read stored results. The data may be gone."""


def compose_or_explain(argv: list[str]) -> list[Cell]:
    """The cells of a command line. Raises ConfigError for everything that Hydra refuses."""
    try:
        return compose(argv, TEXT_KEYS)
    except REQUEST_ERRORS as error:
        # else Python, too, shows the message alone
        whole = os.environ.get("HYDRA_FULL_ERROR") == "1"
        raise ConfigError(explain(error, methods_with)) from (error if whole else None)


def to_configs(cells: list[Cell]) -> list[Config]:
    """The typed configurations of a grid. An error names its cell.

    Raises TaskError if data_dir= is no folder, unless the mode only reads stored results.
    """
    configs = []
    for cell in cells:
        with in_cell(cell.overrides, alone=len(cells) == 1):
            config = to_config(cell)
            if config.mode not in STORED_ONLY and not Path(config.data_dir or ".").is_dir():
                raise TaskError(
                    f"data_dir={config.data_dir}: there is no such folder. "
                    "It has one for each task (docs/tasks.md)."
                )
            configs.append(config)
    return configs


@contextmanager
def in_cell(overrides: Sequence[str], alone: bool) -> Iterator[None]:
    """Name the cell of a grid in errors that are raised inside.

    Args:
        alone: the grid has one cell, which is not named.
    """
    try:
        yield
    except MoeLabError as error:
        if alone:
            raise
        raise type(error)(f"In the cell {' '.join(overrides)}:\n{error}") from error


def to_config(cell: Cell) -> Config:
    """The typed configuration of a cell.

    Raises ConfigError with the key, and the expected values or closest key.
    """
    values = cell.values
    _check_keys(values)
    _check_texts(values)
    sections: dict[str, Any] = {}
    for group, schema in GROUP_CONFIGS.items():
        section = values[group] | {"name": _name_of(group, cell)}
        sections[group] = build(schema, section, prefix=f"{group}.")
    _check_has_path(sections["model"])
    sections["model"] = with_load(sections["model"])
    if sections["logger"].init:
        init = checked_init(sections["logger"].init)
        sections["logger"] = replace(sections["logger"], init=init)
    method = values["method"]
    method_name = str(method.get("name"))
    method_class = get_method(method_name)
    schema = config_class(method_name, method)
    sections["method"] = build(schema, method, prefix="method.", owners=methods_with)
    if isinstance(sections["method"], TrainerConfig):
        typed = [override.partition("=")[0].lstrip("+") for override in cell.overrides]
        sections["method"].check_typed(method, typed)
    if sections["task"].answer is None and method_class.answer:
        sections["task"] = replace(sections["task"], answer=method_class.answer)
    settings = {key: value for key, value in values.items() if key not in sections}
    if isinstance(settings["gen_kwargs"], str):
        settings["gen_kwargs"] = generation_settings(settings["gen_kwargs"])
    # the launcher changes no number, and nothing that is stored
    overrides = [override for override in cell.overrides if not override.startswith(LAUNCHER)]
    record = {"overrides": overrides, "config_dirs": cell.config_dirs}
    return build(Config, {**settings, **sections, **record}, prefix="")


def _check_keys(values: Mapping[str, Any]) -> None:
    """Raise ConfigError for a key that a configuration does not have."""
    unknown = next((key for key in values if key not in KEYS), None)
    if unknown is None:
        return
    known_keys = list(KEYS)
    for group in (*GROUP_CONFIGS, "method"):
        known_keys += [f"{group}.{key}" for key in values[group]]
    raise unknown_key(unknown, known_keys)


def _name_of(group: str, cell: Cell) -> str:
    """The name of a group's option: that of its YAML, else of its file; for a model with a typed
    model.path, the path's last part."""
    section = cell.values[group]
    keys = {override.partition("=")[0].lstrip("+") for override in cell.overrides}
    has_typed_path = "model.path" in keys and "model.name" not in keys
    if group == "model" and section.get("path") and has_typed_path:
        return PurePath(str(section["path"])).name
    if section.get("name") is None:
        return cell.choices[group]
    return section["name"]


def generation_settings(text: str) -> dict[str, Any]:
    """The settings of `temperature=0.7,do_sample=true`, with the values that lm-eval gives them.

    A stop text that looks like a number stays a text, as lm-eval needs it. Raises ConfigError for a
    key without a value.
    """
    from lm_eval.utils import simple_parse_args_string

    settings = {}
    for pair in filter(None, text.split(",")):
        key, _, value = pair.partition("=")
        if not key.strip() or not value.strip():
            raise ConfigError(f"gen_kwargs={text}: write gen_kwargs=key=value,key=value.")
        parsed = simple_parse_args_string(f"value={value}")["value"]
        is_stop = key.strip() == "until" and parsed is not None
        if is_stop and not isinstance(parsed, str):
            parsed = value.strip()
        settings[key.strip()] = parsed
    return settings


def _check_has_path(model: ModelConfig) -> None:
    """Raise ConfigError for a model without a path that is no embedded model and has no recipe."""
    if model.path is None and model.recipe is None and model.name not in EMBEDDED_MODELS:
        raise ConfigError(
            f"model.path must be given: model.name={model.name} is none of the embedded models "
            f"({', '.join(EMBEDDED_MODELS)}).\nmodel.path=<hub id or folder>"
        )


def _check_texts(values: dict[str, Any], prefix: str = "") -> None:
    """Raise ConfigError for a key without a value."""
    for key, value in values.items():
        if value == "":
            raise ConfigError(f"{prefix}{key}= has no value. Give one, or leave {prefix}{key} out.")
        if isinstance(value, dict) and key in (*GROUP_CONFIGS, "method"):
            _check_texts(value, f"{key}.")
