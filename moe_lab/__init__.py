"""Mixture-of-Experts language models under other routings: do they get better, at what cost?

The names below are the public Python interface. Each is imported when it is used first.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from moe_lab.config.version import __version__ as __version__
from moe_lab.models.registration import register_models

if TYPE_CHECKING:
    from moe_lab.api.c3po import C3PO as C3PO
    from moe_lab.api.expert_metrics import expert_metrics as expert_metrics
    from moe_lab.api.freeze import freeze as freeze
    from moe_lab.api.lm import lm as lm
    from moe_lab.api.override import override as override
    from moe_lab.api.roe import RoE as RoE
    from moe_lab.api.run import run as run
    from moe_lab.routing.record import record as record
    from moe_lab.routing.replay import replay as replay

_MODULES = {
    "C3PO": "moe_lab.api.c3po",
    "RoE": "moe_lab.api.roe",
    "expert_metrics": "moe_lab.api.expert_metrics",
    "freeze": "moe_lab.api.freeze",
    "lm": "moe_lab.api.lm",
    "override": "moe_lab.api.override",
    "record": "moe_lab.routing.record",
    "replay": "moe_lab.routing.replay",
    "run": "moe_lab.api.run",
}
"""The module of each public name."""
__all__ = list(_MODULES)

register_models()


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
