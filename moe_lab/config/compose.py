"""Composes configurations from overrides.

Only this module, `hydra_source.py`, `cells.py` and `overrides.py` call Hydra. It composes all cells
of a grid before the first one runs. No environment variable, `sys.argv` or working folder is
changed: other threads of a notebook read them, too.
"""

import os
from argparse import Namespace
from dataclasses import replace
from threading import RLock
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser

from moe_lab.config.cells import Cell, cell_of, composed_by_hydra, is_warm
from moe_lab.config.hydra_source import NAME, conf_dir, source_in
from moe_lab.config.overrides import (
    quoted,
    refuse_overrides,
    with_free_keys,
    without_method_keys,
)
from moe_lab.config.paths import user_path
from moe_lab.config.text_keys import SCHEMA_TEXT_KEYS, TextKeys
from moe_lab.errors import ConfigError

_LOCK = RLock()
"""Held while Hydra composes: its plug-ins and its schema are shared by all threads."""


def compose(argv: list[str], texts: TextKeys = SCHEMA_TEXT_KEYS) -> list[Cell]:
    """The cells of a command line; none after a flag that only prints (`--cfg`, `--info`).

    Args:
        texts: the keys whose values keep the characters that were typed.

    Raises the errors of Hydra and OmegaConf, SystemExit for an unknown flag, and ConfigError for an
    override that removes a key or names a folder of Hydra's.
    """
    refuse_overrides(argv)
    argv, method_keys = without_method_keys(argv, texts)
    with _LOCK:
        # files of options may have changed since the last command of this process
        source_in.cache_clear()
        cells = _cells(quoted(argv, texts), texts)
    return [replace(cell, method_keys=method_keys) for cell in cells]


def compose_cell(
    overrides: list[str], config_dirs: list[str], texts: TextKeys = SCHEMA_TEXT_KEYS
) -> Cell:
    """The cell of some overrides, for experiments.

    Args:
        config_dirs: the folder of `--config-dir`, if any.
        texts: as in `compose`.

    Raises what `compose` raises.
    """
    refuse_overrides(overrides)
    config_dir = config_dirs[0] if config_dirs else None
    with _LOCK:
        return cell_of(source_in(texts, config_dir=config_dir), quoted(overrides, texts))


def _cells(argv: list[str], texts: TextKeys) -> list[Cell]:
    """The cells of a command line. Flags and errors are those of `hydra.main`."""
    parser = get_args_parser()
    parser.prog = "moe_lab"
    flags = parser.parse_intermixed_args(argv)  # they may stand between overrides
    config_dir = None
    if flags.config_dir is not None:
        config_dir = os.path.abspath(user_path(flags.config_dir))
    source = source_in(texts, flags.config_path or conf_dir, flags.config_name or NAME, config_dir)
    hydra = source.hydra()
    if _print_by_hydra(hydra, source.name, flags, parser):
        return []
    if flags.multirun:
        return [cell_of(source, overrides) for overrides in _grid(hydra, flags.overrides)]
    if is_warm():
        return [cell_of(source, flags.overrides)]
    # Hydra composes the first configuration of a process faster as a whole than option by option
    return [composed_by_hydra(source, flags.overrides)]


def _grid(hydra: Hydra, overrides: list[str]) -> list[list[str]]:
    """The overrides of each cell of a grid. Raises ConfigError for a grid without cells."""
    parser = OverridesParser.create(hydra.config_loader)
    hydra_overrides = []
    cell_overrides = []
    for override in parser.parse_overrides(overrides):
        if override.is_hydra_override():
            hydra_overrides.append(str(override.input_line))
        else:
            cell_overrides.append(override)
    [cells] = BasicSweeper.split_arguments(cell_overrides, max_batch_size=None)
    if not cells:
        raise ConfigError(f"The grid {' '.join(overrides)} has no runs.")
    return [[*hydra_overrides, *cell] for cell in cells]


def _print_by_hydra(hydra: Hydra, name: str, flags: Namespace, parser: Any) -> bool:
    """Print what a flag of Hydra asks for: --hydra-help, --cfg, --shell-completion or --info.

    Returns False, and prints nothing, without such a flag.
    """
    overrides = with_free_keys(flags.overrides)
    if flags.hydra_help:
        hydra.hydra_help(config_name=name, args_parser=parser, args=flags)
    elif flags.cfg:
        hydra.show_cfg(
            name, overrides, cfg_type=flags.cfg, package=flags.package, resolve=flags.resolve
        )
    elif flags.shell_completion:
        hydra.shell_completion(name, overrides)
    elif flags.info:
        hydra.show_info(flags.info, name, overrides)
    else:
        return False
    return True
