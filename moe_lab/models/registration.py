"""Registration of this package's models with the Auto classes of transformers, without importing transformers for it.

transformers takes two seconds to import, which `--help` must not wait for. So configurations are registered when
transformers' own registry is imported, whether that was before `import moe_lab` or comes after it. A model is
registered with its first configuration: any earlier its import would meet a transformers that is half imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

REGISTRY = "transformers.models.auto.configuration_auto"


def register_models() -> None:
    """Register the configurations now if transformers' registry is imported, else once it is."""
    if REGISTRY in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _AfterRegistry())


class _AfterRegistry(MetaPathFinder):
    """Finds the registry as the other finders do, and registers once it has run; being looked for is not enough."""

    def __init__(self) -> None:
        self.searching = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != REGISTRY or self.searching:
            return None
        self.searching = True  # another finder may ask all of them, too
        try:
            spec = find_spec(name)
        finally:
            self.searching = False
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_register(module: ModuleType) -> None:
            run(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                _register()

        spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


def _register() -> None:
    from transformers.models.auto.configuration_auto import AutoConfig

    from moe_lab.models.deepseek.configuration import DeepseekConfig
    from moe_lab.models.designs.configuration import MoeDesignConfig

    for config_class in (DeepseekConfig, MoeDesignConfig):
        AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
        modeling = config_class.__module__.replace(".configuration", ".modeling")
        config_class.register_model = staticmethod(partial(import_module, modeling))
