"""Composes configurations from the command line; with `plugin_options.py` the only module that calls Hydra.

Hydra's job function only collects the composed cells, so that all cells of a grid are known before the first runs and
`moe_lab.cli.main` handles Hydra's errors, which Hydra itself would print with a traceback.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any, get_args, get_type_hints

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from moe_lab.config.paths import resource_folder
from moe_lab.config.plugin_options import register_plugin_options
from moe_lab.config.recorded import interpolations
from moe_lab.config.schema import GROUP_CONFIGS, Config, PathsText, PathText
from moe_lab.errors import ConfigError

CONF = str(resource_folder("conf"))
PLAIN_COMMAS = re.compile(r"^(experiment|gen_kwargs|task\.metric)=([^'\"\[{].*[,=].*)$")
FOR_HYDRA = re.compile(r"""^['"\[{]|^\w+\(|\\|\$\{|['"].*,|,.*['"]""")
"""A quoted, escaped or interpolated value, a list, or a function of Hydra."""
METHODS_OF_GRID = re.compile(r"method=[\w-]+(,[\w-]+)+")
"""Several methods in one override."""
EXPERIMENT = re.compile(r"\+*experiment=(?!null$).")
METHOD_KEY = re.compile(r"\+*method\.")
OWN_GRID = "experiment= brings its own grid. Leave out -m and name one value per key."
HYDRA_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.output_subdir")
LONGEST_OPTION = 200
"""Characters of an option's name, which is a file's."""
NOT_PLAIN = re.compile(r"[^\w./:%*@?|+$-]", re.ASCII)
"""A character that Hydra's grammar does not accept in a plain value."""


@dataclass(frozen=True)
class Cell:
    """A composed configuration and its overrides."""

    values: dict[str, Any]
    choices: dict[str, str]
    overrides: list[str]
    config_dirs: list[str]
    method_keys: list[str] = field(default_factory=list)
    """`method.<key>=` beside experiment=; they apply to cells of the experiment and are not in `values`."""
    interpolated: dict[str, Any] = field(default_factory=dict)
    """The values that were typed as interpolations, `${oc.env:HOME}` for example, as they were typed."""


def compose(argv: list[str]) -> list[Cell]:
    """The cells of a command line; none after a flag that only prints (`--cfg`, `--info`).

    Raises the errors of Hydra and OmegaConf, and ConfigError for an override that removes a key or names a folder of
    Hydra's.
    """
    composed: list[tuple[DictConfig, DictConfig]] = []
    register_schema()
    refuse_removals(argv)
    refuse_hydra_folders(argv)
    refuse_odd_options(argv)
    argv, method_keys = without_method_keys(argv)
    for one in one_method_each(argv):
        with _hydra_surroundings(["moe_lab", *map(quote, one)]):
            hydra.main(version_base="1.3", config_path=CONF, config_name="config")(
                lambda cfg: composed.append((cfg, HydraConfig.get()))
            )()
    return [replace(read_cell(cfg, runtime), method_keys=method_keys) for cfg, runtime in composed]


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


def one_method_each(argv: list[str]) -> list[list[str]]:
    """A command line per method of a grid: Hydra would check all keys against the default method."""
    swept = [i for i, argument in enumerate(argv) if METHODS_OF_GRID.fullmatch(argument)]
    if len(swept) != 1 or not {"-m", "--multirun"} & set(argv):
        return [argv]
    [i] = swept
    names = argv[i].partition("=")[2].split(",")
    return [[*argv[:i], f"method={name}", *argv[i + 1 :]] for name in names]


def compose_cell(overrides: list[str], config_dirs: list[str]) -> Cell:
    """The cell of some overrides, for experiments. `config_dirs`: the folders of `--config-dir`.

    Raises what `compose` raises.
    """
    register_schema()
    refuse_removals(overrides)
    refuse_odd_options(overrides)
    quoted = [quote(override) for override in overrides]
    if config_dirs:
        quoted.append("hydra.searchpath=[" + ",".join(f"'file://{folder}'" for folder in config_dirs) + "]")
    with hydra.initialize_config_dir(version_base="1.3", config_dir=CONF):
        cfg = hydra.compose("config", overrides=quoted, return_hydra_config=True)
    return read_cell(cfg, cfg.hydra)


def read_cell(cfg: DictConfig, runtime: Any) -> Cell:
    """The cell of a composed configuration; `runtime` is its `hydra` node. Raises OmegaConf's errors."""
    ours = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    plain = OmegaConf.to_container(ours, resolve=True, throw_on_missing=True)
    assert isinstance(plain, dict)
    values = {str(key): value for key, value in plain.items()}
    interpolated = interpolations(OmegaConf.to_container(ours, resolve=False)) or {}
    choices = {str(group): str(option) for group, option in runtime.runtime.choices.items()}
    config_dirs = [
        str(source.path) for source in runtime.runtime.config_sources if source.provider == "command-line"
    ]
    typed = OmegaConf.to_container(runtime.overrides.task, resolve=False)
    assert isinstance(typed, list)
    return Cell(
        values=values,
        choices=choices,
        overrides=[str(override) for override in typed],
        config_dirs=config_dirs,
        interpolated=interpolated,
    )


def register_schema() -> None:
    """Register the schema with Hydra, so that overrides may set keys that an option's YAML leaves out.

    The options of plug-ins are registered, too.
    """
    register_plugin_options()
    defaults = {
        group: {k: v for k, v in asdict(cls()).items() if k != "name"} for group, cls in GROUP_CONFIGS.items()
    }
    ConfigStore.instance().store(name="schema", node=defaults)


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
    if key.startswith("method.") or key in _keys_of(PathText):
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


def refuse_removals(overrides: list[str]) -> None:
    """Raise ConfigError for `~key` and `~group`, some of which Hydra accepts."""
    for override in overrides:
        key = override[1:].partition("=")[0]
        if override.startswith("~") and key.partition(".")[0] in top_level_keys():
            raise ConfigError(f"{key!r} was removed, but a run needs it. Leave out the override ~{key}.")


def refuse_hydra_folders(overrides: list[str]) -> None:
    """Raise ConfigError for a folder of Hydra's, which writes nothing here."""
    for override in overrides:
        key = override.lstrip("+~").partition("=")[0]
        if key in HYDRA_FOLDERS:
            raise ConfigError(
                f"{override}: Hydra writes no folder here.\noutput_dir=<folder> says where results go."
            )


def refuse_odd_options(overrides: list[str]) -> None:
    """Raise ConfigError for an option that Hydra would look for as a file and fail: a list, or a long name."""
    for override in overrides:
        group, _, option = override.lstrip("+").partition("=")
        if group not in (*GROUP_CONFIGS, "method"):
            continue
        if option.startswith("[[") or max(map(len, re.split("[/,]", option))) > LONGEST_OPTION:
            shown = option if len(option) <= 40 else f"{option[:40]}..."
            raise ConfigError(
                f"{group}={shown} is no option of {group}.\npython -m moe_lab --help {group}= lists them."
            )


@contextmanager
def _hydra_surroundings(argv: list[str]) -> Iterator[None]:
    """Set Hydra's command line, let it raise its errors, and put its folders into a temporary one."""
    logging.getLogger("hydra._internal.core_plugins.basic_launcher").setLevel(logging.WARNING)
    saved_argv, saved_environment = sys.argv, dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="moe_lab-") as scratch:
        sys.argv = argv
        os.environ.update(HYDRA_FULL_ERROR="1", MOE_LAB_SWEEP_DIR=scratch)
        try:
            yield
        finally:
            sys.argv = saved_argv
            os.environ.clear()
            os.environ.update(saved_environment)


def check_launcher(cell: Cell) -> None:
    """Raise ConfigError for launchers and sweepers that would run cells in other processes."""
    for part in ("hydra/launcher", "hydra/sweeper"):
        if cell.choices.get(part, "basic") != "basic":
            raise ConfigError(
                f"{part}={cell.choices[part]} is not supported: it would load the model for every run of a grid. "
                "launcher=local launcher.workers=4 runs a grid in 4 processes (--help launcher=)."
            )


def top_level_keys() -> list[str]:
    """The keys of a composed configuration, in the order of the schema."""
    return [key for key in Config.__dataclass_fields__ if key not in ("overrides", "interpolated")]
