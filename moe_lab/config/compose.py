"""Composes configurations from overrides. This module and `overrides.py` are the only ones that call Hydra.

Hydra composes all cells of a grid before the first one runs. No environment variable, `sys.argv` or working folder is
changed: other threads of a notebook read them, too.
"""

import copy
import os
from argparse import Namespace
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_automatic_config_search_path, get_args_parser
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.core.plugins import Plugins
from hydra.errors import SearchPathException
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue

from moe_lab.config.catalog import option_text, plugin_folders, resource_folder
from moe_lab.config.overrides import (
    GROUPS,
    as_typed,
    quoted,
    refuse_overrides,
    with_function_keys,
    without_method_keys,
)
from moe_lab.config.paths import user_path
from moe_lab.config.schema import GROUP_CONFIGS
from moe_lab.config.text_keys import SCHEMA_TEXT_KEYS, TextKeys, kept_texts
from moe_lab.errors import ConfigError

conf_dir = str(resource_folder("conf"))
"""The folder of the configuration, for Hydra in a script of one's own (docs/python.md)."""
NAME = "config"
"""conf/config.yaml."""
_LOCK = RLock()
"""Held while Hydra composes: its plug-ins and its schema are shared by all threads."""


@dataclass(frozen=True)
class Cell:
    """A composed configuration and its overrides."""

    values: dict[str, Any]
    choices: dict[str, str]
    config_dirs: list[str]
    """The folder of `--config-dir`, if it was given."""
    overrides: list[str] = field(default_factory=list)
    method_keys: list[str] = field(default_factory=list)
    """`method.<key>=` next to experiment=; they apply to cells of the experiment and are not in `values`."""


class PluginOptions(SearchPathPlugin):
    """Lets Hydra find the options in `conf/` of every installed plug-in."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in plugin_folders():
            search_path.append(provider="plug-in", path=f"file://{folder}")


def _register() -> None:
    """Register what `conf_dir` needs in Hydra: the schema, and the folders of plug-ins."""
    Plugins.instance().register(PluginOptions)
    # an override may set a key that an option's YAML leaves out
    defaults = {group: asdict(cls()) for group, cls in GROUP_CONFIGS.items()}
    schema = {
        group: {k: v for k, v in keys.items() if k != "name"} for group, keys in defaults.items()
    }
    ConfigStore.instance().store(name="schema", node=schema)
    OmegaConf.register_new_resolver("must_be_given", _missing, replace=True)


def _missing(key: str) -> None:
    """Raise OmegaConf's error for a mandatory value that is not given."""
    error = MissingMandatoryValue(f"{key} must be given")
    error.full_key = key
    raise error


_register()


def compose(argv: list[str], texts: TextKeys = SCHEMA_TEXT_KEYS) -> list[Cell]:
    """The cells of a command line; none after a flag that only prints (`--cfg`, `--info`).

    `texts`: the keys whose values keep the characters that were typed.

    Raises the errors of Hydra and OmegaConf, SystemExit for an unknown flag, and ConfigError for an override that
    removes a key or names a folder of Hydra's.
    """
    refuse_overrides(argv)
    argv, method_keys = without_method_keys(argv, texts)
    with _LOCK:
        _source.cache_clear()  # files of options may have changed since the last command of this process
        cells = _cells(quoted(argv, texts), texts)
    return [replace(cell, method_keys=method_keys) for cell in cells]


def compose_cell(
    overrides: list[str], config_dirs: list[str], texts: TextKeys = SCHEMA_TEXT_KEYS
) -> Cell:
    """The cell of some overrides, for experiments. `config_dirs`: the folder of `--config-dir`, if any.

    `texts` as in `compose`. Raises what `compose` raises.
    """
    refuse_overrides(overrides)
    with _LOCK:
        source = _source(texts, config_dir=next(iter(config_dirs), None))
        return _cell(source, quoted(overrides, texts))


class _Repository(ConfigRepository):
    """Hydra's reader of option files. Text keys keep their characters, and `???` stays a mandatory value."""

    def __init__(self, search_path: ConfigSearchPath, texts: TextKeys):
        super().__init__(search_path)
        self._texts = texts

    def load_config(self, config_path: str) -> ConfigResult | None:
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or source.scheme() != "file":
            return super().load_config(config_path)
        name = config_path if config_path.endswith(".yaml") else f"{config_path}.yaml"
        text = option_text(Path(source.path, name))
        result = super().load_config(config_path)
        if result is not None and isinstance(result.config, DictConfig):
            prefix = _prefix(config_path, result)
            kept_texts(result.config, text, prefix, self._texts)
            _keep_mandatory(result.config, prefix)
        return result


MANDATORY = "${must_be_given:"
"""The beginning of a mandatory value. Merging `???` into the schema would keep the schema's default in silence."""


def _keep_mandatory(config: DictConfig, prefix: str) -> None:
    for name in config:
        key = str(name)
        if OmegaConf.is_missing(config, key):
            config[key] = f"{MANDATORY}{prefix}{key}}}"
        elif OmegaConf.is_dict(config._get_node(key)) and key != "hydra":
            _keep_mandatory(config[key], f"{prefix}{key}.")


def _check_mandatory(values: dict[str, Any]) -> None:
    """Raise MissingMandatoryValue for a mandatory value that is not given."""
    for value in values.values():
        if isinstance(value, dict):
            _check_mandatory(value)
        elif isinstance(value, str) and value.startswith(MANDATORY):
            _missing(value.removeprefix(MANDATORY).removesuffix("}"))


def _prefix(config_path: str, result: ConfigResult) -> str:
    """The package of an option's keys with a dot: that of its `# @package` line, or its group."""
    group = config_path.rpartition("/")[0].replace("/", ".")
    package = result.header["package"]
    if package == "_global_":
        return ""
    if package is not None and package != "_group_":
        return f"{package}."
    return f"{group}." if group else ""


@dataclass(frozen=True)
class _Source:
    """Where configurations are."""

    folder: str
    name: str
    config_dir: str | None
    """The folder of `--config-dir`."""
    files: tuple[tuple[str, int, int], ...]
    """The names, sizes and times of all option files: what is cached of them is theirs."""
    texts: TextKeys
    """The keys whose values keep the characters of their file."""

    def hydra(self) -> Hydra:
        """Hydra for this source, without its global instance. Raises SearchPathException for a missing folder."""
        version.setbase("1.3")
        search_path = create_automatic_config_search_path(__file__, None, self.folder)
        if self.config_dir is not None:
            if not Path(self.config_dir).is_dir():
                raise SearchPathException(
                    f"Additional config directory '{self.config_dir}' not found"
                )
            search_path.prepend(
                "command-line", f"file://{self.config_dir}", SearchPathQuery(provider="schema")
            )
        loader = ConfigLoaderImpl(search_path)
        loader.repository = _Repository(search_path, self.texts)
        return Hydra("moe_lab", loader)

    def load(self, overrides: list[str]) -> DictConfig:
        """What Hydra composes of the overrides. Raises the errors of Hydra and OmegaConf."""
        return self.hydra().compose_config(
            self.name, with_function_keys(overrides), run_mode=RunMode.RUN
        )


@lru_cache
def _source(
    texts: TextKeys, folder: str = conf_dir, name: str = NAME, config_dir: str | None = None
) -> _Source:
    places = [Path(folder), *([Path(config_dir)] if config_dir else []), *plugin_folders()]
    files = [(file, file.stat()) for place in places for file in sorted(place.rglob("*.yaml"))]
    stamps = tuple((str(file), status.st_size, status.st_mtime_ns) for file, status in files)
    return _Source(folder, name, config_dir, stamps, texts)


def _cells(argv: list[str], texts: TextKeys) -> list[Cell]:
    """The cells of a command line. Flags and errors are those of `hydra.main`."""
    parser = get_args_parser()
    parser.prog = "moe_lab"
    args = parser.parse_intermixed_args(argv)  # flags may stand between overrides
    folder = None if args.config_dir is None else os.path.abspath(user_path(args.config_dir))
    source = _source(texts, args.config_path or conf_dir, args.config_name or NAME, folder)
    hydra = source.hydra()
    if _printed(hydra, source.name, args, parser):
        return []
    if not args.multirun:
        # Hydra composes the first configuration of a process faster as a whole than option by option
        return [(_cell if _base.cache_info().currsize else _composed)(source, args.overrides)]
    parsed = OverridesParser.create(hydra.config_loader).parse_overrides(args.overrides)
    of_hydra = [str(one.input_line) for one in parsed if one.is_hydra_override()]
    of_cells = [one for one in parsed if not one.is_hydra_override()]
    [batches] = BasicSweeper.split_arguments(of_cells, max_batch_size=None)
    if not batches:
        raise ConfigError(f"The grid {' '.join(args.overrides)} has no runs.")
    return [_cell(source, [*of_hydra, *batch]) for batch in batches]


def _printed(hydra: Hydra, name: str, args: Namespace, parser: Any) -> bool:
    """Do what a flag of Hydra's asks for that only prints. Returns whether there was one."""
    overrides = with_function_keys(args.overrides)
    if args.hydra_help:
        hydra.hydra_help(config_name=name, args_parser=parser, args=args)
    elif args.cfg:
        hydra.show_cfg(
            name, overrides, cfg_type=args.cfg, package=args.package, resolve=args.resolve
        )
    elif args.shell_completion:
        hydra.shell_completion(name, overrides)
    elif args.info:
        hydra.show_info(args.info, name, overrides)
    return bool(args.hydra_help or args.cfg or args.shell_completion or args.info)


# Composing a cell. Hydra takes a tenth of a second for a configuration, and the tables of a paper have thousands of
# cells. So Hydra composes the defaults once, and each option once. A cell's options and values are put into a copy.
# Whatever is not simply `option` or `key=value` is composed by Hydra, which also raises all errors.


def _cell(source: _Source, overrides: list[str]) -> Cell:
    """The cell of quoted overrides. Raises the errors of Hydra and OmegaConf."""
    base = _put_together(source, list(map(_parsed, overrides)))
    return _composed(source, overrides) if base is None else _resolved(base, overrides)


def _composed(source: _Source, overrides: list[str]) -> Cell:
    """As `_cell`, by Hydra alone."""
    typed = [one for one in overrides if not one.lstrip("+~").startswith("hydra.")]
    return _resolved(_base_of(source.load(overrides)), typed)


def _resolved(base: Cell, overrides: list[str]) -> Cell:
    """The cell of a configuration whose interpolations are resolved here. Raises OmegaConf's errors."""
    values, text = base.values, str(base.values)
    if MANDATORY in text:
        _check_mandatory(values)
    if "${" in text or "???" in text:
        plain = OmegaConf.to_container(
            OmegaConf.create(values), resolve=True, throw_on_missing=True
        )
        assert isinstance(plain, dict)
        values = {str(key): value for key, value in plain.items()}
    return replace(base, values=values, overrides=list(map(as_typed, overrides)))


@lru_cache(maxsize=4096)
def _parsed(override: str) -> Override:
    [parsed] = OverridesParser.create().parse_overrides([override])
    return parsed


def _put_together(source: _Source, overrides: list[Override]) -> Cell | None:
    """What Hydra would compose of the overrides; None if only Hydra knows."""
    if not all(map(_is_plain, overrides)):
        return None
    defaults = _base(source, "")
    base = copy.deepcopy(defaults)
    for group, one in {
        one.key_or_group: one for one in overrides if one.key_or_group in GROUPS
    }.items():
        option = _base(source, str(one.input_line))
        for part, of_defaults in (
            (option.values, defaults.values),
            (option.choices, defaults.choices),
        ):
            if {**part, group: None} != {**of_defaults, group: None}:
                return None  # it is no option of its group alone
        base.values[group] = copy.deepcopy(option.values[group])
        base.choices[group] = option.choices[group]
    values = [one for one in overrides if one.key_or_group not in GROUPS]
    return base if all(_set(base.values, one.key_or_group, one.value()) for one in values) else None


def _is_plain(override: Override) -> bool:
    """Whether it is `key=value` or `group=option`, without `+`, `~`, a package, several values, or a key of Hydra."""
    special = override.package or override.is_sweep_override() or override.is_hydra_override()
    return override.type is OverrideType.CHANGE and not special


def _set(values: dict[str, Any], key: str, value: Any) -> bool:
    """Set the value of an existing key, `task.metric` for example. Returns False for what Hydra merges or refuses."""
    *path, last = key.split(".")
    for name in path:
        values = values.get(name)  # type: ignore[assignment]
        if not isinstance(values, dict):
            return False
    if last not in values or isinstance(value, dict) or isinstance(values[last], dict):
        return False
    values[last] = value
    return True


@lru_cache(maxsize=1024)
def _base(source: _Source, option: str) -> Cell:
    """The configuration with one option, or with "" the defaults alone, before interpolations are resolved.

    Raises the errors of Hydra and OmegaConf.
    """
    return _base_of(source.load([option] if option else []))


def _base_of(cfg: DictConfig) -> Cell:
    runtime = cfg.hydra.runtime
    ours = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
    values = OmegaConf.to_container(ours, resolve=False)
    assert isinstance(values, dict)
    return Cell(
        values={str(key): value for key, value in values.items()},
        choices={str(group): str(option) for group, option in runtime.choices.items()},
        config_dirs=[
            str(one.path) for one in runtime.config_sources if one.provider == "command-line"
        ],
    )
