"""Where Hydra finds configurations, and how it reads the files of options."""

from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_automatic_config_search_path
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.errors import SearchPathException
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig

from moe_lab.config import mandatory
from moe_lab.config.catalog import option_text, plugin_folders, resource_folder
from moe_lab.config.overrides import with_free_keys
from moe_lab.config.schema import GROUP_CONFIGS
from moe_lab.config.text_keys import TextKeys, kept_texts

conf_dir = str(resource_folder("conf"))
"""The folder of the configuration, for Hydra in a script of one's own (docs/python.md)."""
NAME = "config"
"""conf/config.yaml."""


class PluginOptions(SearchPathPlugin):
    """Lets Hydra find the options in `conf/` of every installed plug-in."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the folders of plug-ins to Hydra's search path."""
        for folder in plugin_folders():
            search_path.append(provider="plug-in", path=f"file://{folder}")


def register() -> None:
    """Register what `conf_dir` needs in Hydra: the schema, and the folders of plug-ins."""
    Plugins.instance().register(PluginOptions)
    schema = {}
    for group, group_config in GROUP_CONFIGS.items():
        # an override may set a key that an option's YAML leaves out
        defaults = asdict(group_config())
        defaults.pop("name", None)
        schema[group] = defaults
    ConfigStore.instance().store(name="schema", node=schema)
    mandatory.register()


register()


class OptionReader(ConfigRepository):
    """Hydra's reader of option files. Text keys keep their characters, and `???` stays a mandatory
    value."""

    def __init__(self, search_path: ConfigSearchPath, texts: TextKeys):
        super().__init__(search_path)
        self._texts = texts

    def load_config(self, config_path: str) -> ConfigResult | None:
        """The option in a file; None if there is no such file."""
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or source.scheme() != "file":
            return super().load_config(config_path)
        name = config_path if config_path.endswith(".yaml") else f"{config_path}.yaml"
        text = option_text(Path(source.path, name))
        result = super().load_config(config_path)
        if result is not None and isinstance(result.config, DictConfig):
            prefix = _prefix(config_path, result)
            kept_texts(result.config, text, prefix, self._texts)
            mandatory.keep_mandatory(result.config, prefix)
        return result


def _prefix(config_path: str, result: ConfigResult) -> str:
    """The package of an option's keys with a dot: that of its `# @package` line, or its group."""
    package = result.header["package"]
    if package == "_global_":
        return ""
    if package is not None and package != "_group_":
        return f"{package}."
    group = config_path.rpartition("/")[0].replace("/", ".")
    return f"{group}." if group else ""


@dataclass(frozen=True)
class Source:
    """Where configurations are."""

    folder: str
    name: str
    config_dir: str | None
    """The folder of `--config-dir`."""
    files: tuple[tuple[str, int, int], ...]
    """The names, sizes and times of all option files: caches with a source as key hold until one of
    them changes."""
    texts: TextKeys
    """The keys whose values keep the characters of their file."""

    def hydra(self) -> Hydra:
        """Hydra for this source, without its global instance. Raises SearchPathException for a
        missing folder."""
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
        loader.repository = OptionReader(search_path, self.texts)
        return Hydra("moe_lab", loader)

    def load(self, overrides: list[str]) -> DictConfig:
        """What Hydra composes of the overrides. Raises the errors of Hydra and OmegaConf."""
        return self.hydra().compose_config(
            self.name, with_free_keys(overrides), run_mode=RunMode.RUN
        )


@lru_cache
def source_in(
    texts: TextKeys, folder: str = conf_dir, name: str = NAME, config_dir: str | None = None
) -> Source:
    """The source in a folder, as its files are now.

    Each command clears this cache (`cache_clear`), because the files may have changed.
    """
    places = [Path(folder)]
    if config_dir:
        places.append(Path(config_dir))
    places.extend(plugin_folders())

    stamps = []
    for place in places:
        for file in sorted(place.rglob("*.yaml")):
            status = file.stat()
            stamps.append((str(file), status.st_size, status.st_mtime_ns))
    return Source(folder, name, config_dir, tuple(stamps), texts)
