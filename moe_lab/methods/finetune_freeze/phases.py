"""The freezing schedule of a fine-tuning: its phases,
and the groups of parameters that are frozen in each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from moe_lab.config.validators import PositiveFloat, check_limits, coerce, one_of
from moe_lab.errors import ConfigError

Frozen = tuple[Literal["router", "experts", "shared_experts", "other"], ...]
"""Groups of parameters that are not trained (`parameter_groups.py`)."""
NOTHING: Frozen = ()
ROUTER: Frozen = ("router",)
EXPERTS: Frozen = ("experts",)

SCHEDULES: dict[str, tuple[Frozen, ...]] = {
    "none": (NOTHING,),
    "router": (ROUTER,),
    "experts": (EXPERTS,),
    "none-router": (NOTHING, ROUTER),
    "none-experts": (NOTHING, EXPERTS),
    "router-none": (ROUTER, NOTHING),
    "router-experts": (ROUTER, EXPERTS),
    "experts-none": (EXPERTS, NOTHING),
    "experts-router": (EXPERTS, ROUTER),
}
"""The paper's nine pairs: the group frozen in the first and in the second half,
or in the whole training."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a training, up to the share `until` of its optimizer steps."""

    frozen: Frozen = ()
    until: PositiveFloat = 1.0
    lr: PositiveFloat | None = None
    """Peak learning rate in this phase, instead of the recipe's."""

    def __post_init__(self) -> None:
        check_limits(self, "method.phases: ")


def phases_of(schedule: str, phases: Any = None) -> tuple[Phase, ...]:
    """The listed phases, or those of a named schedule.

    Raises ConfigError for an unknown schedule.
    """
    if phases is not None:
        return _listed_phases(phases)
    one_of("method.schedule", schedule, tuple(SCHEDULES))
    groups = SCHEDULES[schedule]
    named_phases = []
    for number, frozen in enumerate(groups, start=1):
        named_phases.append(Phase(frozen=frozen, until=number / len(groups)))
    return tuple(named_phases)


def _listed_phases(listed: Any) -> tuple[Phase, ...]:
    """The phases of `method.phases`, with sorted groups."""
    phases: list[Phase] = coerce(listed, list[Phase], "method.phases")
    ends = [phase.until for phase in phases]
    if not phases or ends != sorted(set(ends)) or ends[-1] != 1:
        raise ConfigError("method.phases: `until` must increase, and be 1 for the last phase.")
    return tuple(replace(phase, frozen=tuple(sorted(set(phase.frozen)))) for phase in phases)


def label(phases: Sequence[Phase]) -> str:
    """N→R, as the paper writes it, if the switch is at half of the steps;
    else with the end of each phase: N 25%→R."""
    names = []
    for phase in phases:
        letters = [group[0].upper() for group in phase.frozen]
        names.append("".join(letters) or "N")
    if len(phases) == 1:
        return f"{names[0]}→{names[0]}"
    if [phase.until for phase in phases] == [0.5, 1.0]:
        return "→".join(names)
    parts = [f"{name} {phase.until:.0%}" for name, phase in zip(names, phases, strict=True)]
    return "→".join(parts)


def boundaries(phases: Sequence[Phase], steps: int) -> list[int]:
    """The optimizer step before which each phase ends, rounded down.

    Raises ConfigError for a phase without a step.
    """
    ends = [math.floor(phase.until * steps + 1e-9) for phase in phases]
    for number, (start, end) in enumerate(pairwise([0, *ends]), start=1):
        if end <= start:
            raise ConfigError(
                f"method.phases: phase {number} has no step: the training has only {steps}. Train "
                "longer."
            )
    return ends


def phase_at(ends: Sequence[int], step: int) -> int:
    """The number of the phase of an optimizer step; both count from 0."""
    for number, end in enumerate(ends):
        if step < end:
            return number
    return len(ends) - 1
