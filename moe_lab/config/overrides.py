"""Overrides as they are typed: quoting, refused ones, and messages for the errors of Hydra and OmegaConf."""

import re
from functools import cache
from typing import Any, get_args, get_type_hints

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from moe_lab.config.catalog import unknown_option
from moe_lab.config.foreign import refuse_foreign, refuse_lm_eval_command
from moe_lab.config.schema import GROUP_CONFIGS, KEYS, Config, PathsText, PathText
from moe_lab.config.validators import Owners, unknown_key
from moe_lab.errors import ConfigError

PLAIN_COMMAS = re.compile(r"^(experiment|gen_kwargs|task\.metric)=([^'\"\[{].*[,=].*)$")
FOR_HYDRA = re.compile(r"""^['"\[{]|^\w+\(|\\|\$\{|['"].*,|,.*['"]""")
"""A quoted, escaped or interpolated value, a list, or a function of Hydra."""
EXPERIMENT = re.compile(r"experiment=(?!null$).")
"""The key. `+experiment=` adds an option of a group that a user has."""
METHOD_KEY = re.compile(r"\+*method\.")
LAUNCHER = ("launcher=", "launcher.", "+launcher.", "++launcher.")
"""The beginnings of overrides that say who runs a command."""
OWN_GRID = "experiment= brings its own grid. Leave out -m and name one value per key."
NOT_PLAIN = re.compile(r"[^\w./:%*@?|+$-]", re.ASCII)
"""A character that Hydra's grammar does not accept in a plain value."""


def refuse(overrides: list[str]) -> None:
    """Raise ConfigError for overrides that Hydra would accept without effect, or refuse with a traceback."""
    refuse_lm_eval_command(overrides)
    grid = bool({"-m", "--multirun"} & set(overrides))
    for override in overrides:
        refuse_foreign(override)
        key = override.lstrip("+~").partition("=")[0]
        if override.startswith("~") and key.partition(".")[0] in KEYS:
            raise ConfigError(f"{key!r} was removed, but a run needs it. Leave out the override ~{key}.")
        _refuse_odd_option(override, grid)


def _refuse_odd_option(override: str, grid: bool) -> None:
    """Raise ConfigError for options of which Hydra would take the last one, or leave out the group."""
    group, _, option = override.lstrip("+").partition("=")
    if group not in (*GROUP_CONFIGS, "method"):
        return
    if option.startswith("[") or ("," in option and not grid):
        several = option.strip("[]").replace(" ", "")
        tasks = (
            "\nSeveral tasks of lm-eval in one run: task=lm_eval task.name=[piqa,sciq]."
            if group == "task"
            else ""
        )
        raise ConfigError(f"{group}={option}: a run has one {group}. A grid: -m {group}={several}.{tasks}")
    if group == "model" and "/" in option:
        raise ConfigError(
            f"model={option} is no option of model. A hub id or a folder is model.path={option}."
        )
    if option == "null":
        raise ConfigError(
            f"{group}=null is no option of {group}.\npython -m moe_lab --help {group}= lists them."
        )


def without_method_keys(argv: list[str]) -> tuple[list[str], list[str]]:
    """Split the `method.<key>=` off a command line with experiment=, whose cells have different methods.

    Raises Hydra's error for a key that does not parse, and ConfigError for several values.
    """
    if not any(map(EXPERIMENT.match, argv)):
        return argv, []
    keys = [argument for argument in argv if METHOD_KEY.match(argument)]
    if any(
        one.is_sweep_override() for one in OverridesParser.create().parse_overrides(list(map(quote, keys)))
    ):
        raise ConfigError(OWN_GRID)
    return [argument for argument in argv if argument not in keys], keys


def with_function_keys(overrides: list[str]) -> list[str]:
    """With method=policy, whose keys are those of a function: `++`, with which Hydra takes keys that no YAML has."""
    if "method=policy" not in overrides:
        return overrides
    return [f"++{one}" if one.startswith("method.") else one for one in overrides]


def as_typed(override: str) -> str:
    """Without what `with_function_keys` adds, and without Hydra's escapes in the paths of a grid."""
    return override.removeprefix("++" if METHOD_KEY.match(override) else "").replace("\\:", ":")


def quote(argument: str) -> str:
    """Quote a value that Hydra's grammar would misread.

    Those are values with commas and equal signs (`experiment=a,b`, `gen_kwargs=x=1,y=2`, `task.metric=acc,none`), and
    paths with blanks, brackets or letters beyond ASCII, where a comma still separates the values of a grid, unless the
    key has several paths itself. Every key of a method may be a path.
    """
    if match := PLAIN_COMMAS.match(argument):
        return f"{match[1]}='{match[2]}'"
    key, _, value = argument.partition("=")
    if not value or FOR_HYDRA.search(value):
        return argument
    if key in _keys_of(PathsText):
        return f"{key}={_quote_path(value)}"
    if METHOD_KEY.match(key) or key in _keys_of(PathText):
        return f"{key}={','.join(_quote_path(path.strip()) for path in value.split(','))}"
    return argument


@cache
def _keys_of(annotation: Any) -> set[str]:
    """The keys of the schema with an annotation."""
    schemas = {"": Config} | {f"{group}.": cls for group, cls in GROUP_CONFIGS.items()}
    return {
        f"{prefix}{key}"
        for prefix, cls in schemas.items()
        for key, hint in get_type_hints(cls, include_extras=True).items()
        if annotation in (hint, *get_args(hint))
    }


def _quote_path(path: str) -> str:
    escaped = path.replace("'", "\\'")
    return f"'{escaped}'" if NOT_PLAIN.search(path) else path


# Errors of Hydra and OmegaConf: a few lines with the closest valid choice and what to do

# Hydra proposes `+key` and `++key`, which are refused here.
ADVICE_TO_FORCE = re.compile(r"use \+|a second \+")
AMBIGUOUS = re.compile(r"Ambiguous value for argument '\+*([^=]+)=(.*)'")
REQUEST_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError)


def explain(error: BaseException, owners: Owners) -> str:
    """The message for an error of Hydra or OmegaConf. `owners` as in `build`."""
    cause = error.__cause__
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} must be given: {error.full_key}=<value>. See --help."
    if isinstance(error, MissingConfigException):
        group, _, option = str(error.missing_cfg_file).rpartition("/")
        if error.options:
            return unknown_option(group, option, sorted(error.options))
        return f"{str(error).splitlines()[0]}\nSee --help for what can be composed."
    if isinstance(cause, (ConfigAttributeError, ConfigKeyError)) and cause.parent_node is not None:
        return _missing_key(cause, owners)
    if match := AMBIGUOUS.match(str(error)):
        key, values = match.groups()
        text = f"{key}={values}: a key takes one value. A grid: -m {key}={values}."
        if key != "seed":
            return f"{text} A list, if the key takes one: {key}=[{values}]."
        first, *more = values.split(",")
        return f"{text}\nConsecutive seeds with a summary: seed={first} seeds={1 + len(more)} (seed, seed+1, ...)."
    lines = [line for line in str(error).splitlines() if line.strip() and not ADVICE_TO_FORCE.search(line)]
    if cause is not None:
        lines += [line.strip() for line in str(cause).splitlines() if line.strip()][:2]
    if isinstance(error, OverrideParseException) and "=" not in error.override:
        return f"{error.override!r} is no key=value: mode=report and mode=compare a=X b=Y, for example. See --help."
    if isinstance(error, OverrideParseException):
        lines = [
            f"{as_typed(str(error.override))}: {lines[0]}",
            "Quote a value that has brackets, quotes or commas in it: 'key=\"a (b)\"'.",
        ]
    return "\n".join([*lines[:5], "See --help for what can be composed, and how."])


def _missing_key(cause: Any, owners: Owners) -> str:
    root = cause.parent_node._get_root()
    prefix, _, _ = str(cause.full_key).rpartition(".")
    known = [f"{prefix}.{key}" if prefix else str(key) for key in cause.parent_node if key != "hydra"]
    if not prefix:
        sections = {
            key: node for key, node in root.items() if isinstance(node, DictConfig) and key != "hydra"
        }
        leaf = str(cause.full_key)
        known += [f"{group}.{key}" for group, section in sections.items() for key in section if key == leaf]
    option = cause.parent_node.get("name") if prefix and isinstance(cause.parent_node, DictConfig) else None
    return str(unknown_key(str(cause.full_key), known, option, owners))
