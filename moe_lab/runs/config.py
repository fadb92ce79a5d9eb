"""From a command line to the typed `Config` of each cell."""

import os
from collections.abc import Iterator, Sequence
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
    """The typed configurations of a grid. An error names its cell."""
    configs = []
    for cell in cells:
        with in_cell(cell.overrides, alone=len(cells) == 1):
            config = to_config(cell)
            if config.mode not in STORED_ONLY and not Path(config.data_dir or ".").is_dir():
                raise TaskError(
                    f"data_dir={config.data_dir}: there is no such folder. It has one for each task (docs/tasks.md)."
                )
            configs.append(config)
    return configs


@contextmanager
def in_cell(overrides: Sequence[str], alone: bool) -> Iterator[None]:
    """Name the cell of a grid in errors that are raised inside. `alone`: the grid has one cell, which is not named."""
    try:
        yield
    except MoeLabError as error:
        if alone:
            raise
        raise type(error)(f"In the cell {' '.join(overrides)}:\n{error}") from error


def to_config(cell: Cell) -> Config:
    """The typed configuration of a cell. Raises ConfigError with the key, and the expected values or closest key."""
    values = cell.values
    if unknown := next((key for key in values if key not in KEYS), None):
        groups = {group: values[group] for group in (*GROUP_CONFIGS, "method")}
        raise unknown_key(
            unknown, KEYS + [f"{group}.{key}" for group, keys in groups.items() for key in keys]
        )
    _check_texts(values)
    keys = {override.partition("=")[0].lstrip("+") for override in cell.overrides}
    typed: dict[str, Any] = {}
    for group, schema in GROUP_CONFIGS.items():
        section = values[group]
        name = cell.choices[group] if section.get("name") is None else section["name"]
        if (
            group == "model"
            and section.get("path")
            and "model.path" in keys
            and "model.name" not in keys
        ):
            name = PurePath(str(section["path"])).name
        typed[group] = build(schema, {**section, "name": name}, prefix=f"{group}.")
    _check_has_path(typed["model"])
    method = values["method"]
    method_class = get_method(str(method.get("name")))
    config = config_class(str(method.get("name")), method)
    typed["method"] = build(config, method, prefix="method.", owners=methods_with)
    if typed["task"].answer is None and method_class.answer:
        typed["task"] = replace(typed["task"], answer=method_class.answer)
    rest = {key: value for key, value in values.items() if key not in typed}
    if isinstance(rest["gen_kwargs"], str):
        rest["gen_kwargs"] = generation_settings(rest["gen_kwargs"])
    # the launcher changes no number, and nothing that is stored
    overrides = [one for one in cell.overrides if not one.startswith(LAUNCHER)]
    record = {"overrides": overrides, "config_dirs": cell.config_dirs}
    return build(Config, {**rest, **typed, **record}, prefix="")


def generation_settings(text: str) -> dict[str, Any]:
    """The settings of `temperature=0.7,do_sample=true`, with the values that lm-eval gives them.

    A stop text that looks like a number stays a text, which lm-eval asks for. Raises ConfigError for a key without a
    value.
    """
    from lm_eval.utils import simple_parse_args_string

    settings = {}
    for pair in filter(None, text.split(",")):
        key, _, value = pair.partition("=")
        if not key.strip() or not value.strip():
            raise ConfigError(f"gen_kwargs={text}: write gen_kwargs=key=value,key=value.")
        parsed = simple_parse_args_string(f"value={value}")["value"]
        is_stop = key.strip() == "until" and parsed is not None
        settings[key.strip()] = value.strip() if is_stop and not isinstance(parsed, str) else parsed
    return settings


def _check_has_path(model: ModelConfig) -> None:
    """Raise ConfigError for a model that is nowhere. Without a path it is an embedded model, by its name."""
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
