"""Options that plug-in packages bring, for Hydra; beside `compose.py` the only module that calls Hydra."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from moe_lab.config.paths import plugin_folders


class PluginOptions(SearchPathPlugin):
    """Searches `conf/` of every installed plug-in."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in plugin_folders():
            search_path.append(provider="plug-in", path=f"file://{folder}")


def register_plugin_options() -> None:
    """Let Hydra find the options of plug-ins from now on."""
    Plugins.instance().register(PluginOptions)
