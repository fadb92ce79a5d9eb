"""Registration of "deepseek" with the Auto classes of transformers, without importing transformers for it.

transformers takes two seconds to import, too long for `--help`. So the configuration is registered when transformers'
registry is imported, before or after `import moe_lab`. The model is registered when the first configuration is created:
modeling code takes as long again, and commands like mode=plan do not need it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

REGISTRY = "transformers.models.auto.configuration_auto"
"""The module of transformers with the registry of configurations."""


def register_deepseek() -> None:
    """Register with the registry of transformers now if it is imported, else once it is."""
    if REGISTRY in sys.modules:
        _register_configuration()
    else:
        sys.meta_path.insert(0, _AfterImport(REGISTRY, _register_configuration))


class _AfterImport(MetaPathFinder):
    """An import hook: finds a module with the other finders and calls `act` after the module has run."""

    def __init__(self, module: str, act: Callable[[], None]) -> None:
        self.module = module
        self.act = act
        self.searching = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.module or self.searching:
            return None
        self.searching = True  # another finder may ask all of them, too
        try:
            spec = find_spec(name)
        finally:
            self.searching = False
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_act(module: ModuleType) -> None:
            run(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self.act()

        spec.loader.exec_module = run_and_act  # type: ignore[method-assign]
        return spec


def _register_configuration() -> None:
    from transformers.models.auto.configuration_auto import AutoConfig

    from moe_lab.models.deepseek.configuration import DeepseekConfig

    AutoConfig.register(DeepseekConfig.model_type, DeepseekConfig, exist_ok=True)
    DeepseekConfig.register_model = staticmethod(_register_model)


def _register_model() -> None:
    import moe_lab.models.deepseek.modeling  # noqa: F401  (registers itself)
