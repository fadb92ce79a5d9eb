"""Registration of this package's models with the Auto classes of transformers, and of its methods with lm-eval.

Both take seconds to import, which `--help` must not wait for. So registration follows the import of their registries,
whether that was before `import moe_lab` or comes after it. A model is registered with its first configuration: any
earlier its import would meet a transformers that is half imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

REGISTRY = "transformers.models.auto.configuration_auto"
LM_REGISTRY = "lm_eval.api.registry"
LM_NAME = "moe_lab"
"""What `lm_eval --model` calls this package."""


def register_models() -> None:
    """Register the configurations with transformers, and `moe_lab` with lm-eval."""
    _after_import(REGISTRY, _register)
    _after_import(LM_REGISTRY, _register_lm)


def _after_import(name: str, register: Callable[[], None]) -> None:
    """Call `register` now if the module is imported, else once it is."""
    if name in sys.modules:
        register()
    else:
        sys.meta_path.insert(0, _AfterImport(name, register))


class _AfterImport(MetaPathFinder):
    """Finds a module as the other finders do, and registers once it has run; being looked for is not enough."""

    def __init__(self, name: str, register: Callable[[], None]) -> None:
        self.name, self.register = name, register
        self.searching = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.name or self.searching:
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
                self.register()

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


def _register_lm() -> None:
    from lm_eval.api.registry import model_registry

    if LM_NAME not in model_registry:
        model_registry.register(LM_NAME, target="moe_lab.api.lm:PretrainedLM")
