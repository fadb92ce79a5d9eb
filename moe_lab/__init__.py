"""Mixture-of-Experts language models under other routings: do they get better, at what cost?

The names below are the public Python interface. Each is imported when it is used first.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from moe_lab.config import __version__ as __version__

if TYPE_CHECKING:
    from moe_lab.api.c3po import C3PO as C3PO
    from moe_lab.api.compare import compare as compare
    from moe_lab.api.compare_routes import compare_routes as compare_routes
    from moe_lab.api.expert_metrics import expert_metrics as expert_metrics
    from moe_lab.api.freeze import freeze as freeze
    from moe_lab.api.lm import lm as lm
    from moe_lab.api.roe import RoE as RoE
    from moe_lab.api.run import plan as plan
    from moe_lab.api.run import report as report
    from moe_lab.api.run import run as run
    from moe_lab.api.tiny import tiny as tiny
    from moe_lab.api.training_callback import ExpertMetrics as ExpertMetrics
    from moe_lab.config.compose import conf_dir as conf_dir
    from moe_lab.routing.override import override as override
    from moe_lab.routing.record import record as record
    from moe_lab.routing.replay import replay as replay
    from moe_lab.routing.routes import Routes as Routes

_MODULES = {
    "C3PO": "moe_lab.api.c3po",
    "ExpertMetrics": "moe_lab.api.training_callback",
    "RoE": "moe_lab.api.roe",
    "Routes": "moe_lab.routing.routes",
    "compare": "moe_lab.api.compare",
    "compare_routes": "moe_lab.api.compare_routes",
    "conf_dir": "moe_lab.config.compose",
    "expert_metrics": "moe_lab.api.expert_metrics",
    "freeze": "moe_lab.api.freeze",
    "lm": "moe_lab.api.lm",
    "override": "moe_lab.routing.override",
    "plan": "moe_lab.api.run",
    "record": "moe_lab.routing.record",
    "replay": "moe_lab.routing.replay",
    "report": "moe_lab.api.run",
    "run": "moe_lab.api.run",
    "tiny": "moe_lab.api.tiny",
}
"""The module of each public name."""
__all__ = [name for name in _MODULES if name != "conf_dir"]
"""Functions and classes, which docs/reference.md lists."""


if not TYPE_CHECKING:  # a type checker would take any name for one of the package

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
