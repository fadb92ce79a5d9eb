"""Freezing schedules: the groups that each phase of a training freezes, and the learning rate.

MoE-Bench, section 2.3.1 and Figure 4: nothing, the router or the experts in the first half of the training, and again
in the second half. Here a schedule is any list of phases; the paper's nine have names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from moe_lab.config.validators import LARGEST, did_you_mean
from moe_lab.errors import ConfigError

GROUPS = ("router", "experts", "shared_experts")
"""What can be frozen."""
SCHEDULES = {
    "none": ("none",),
    "router": ("router",),
    "experts": ("experts",),
    "none-router": ("none", "router"),
    "none-experts": ("none", "experts"),
    "router-none": ("router", "none"),
    "router-experts": ("router", "experts"),
    "experts-none": ("experts", "none"),
    "experts-router": ("experts", "router"),
}
"""The paper's nine pairs: what is frozen in the first and in the second half, or all along."""
PHASE_KEYS = ("frozen", "until", "lr")


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a training, up to the share `until` of its optimizer steps."""

    frozen: tuple[str, ...]
    until: float
    lr: float | None = None
    """Peak learning rate in this phase, instead of the recipe's."""


def with_shared_experts(phases: Sequence[Phase]) -> tuple[Phase, ...]:
    """Let phases that freeze the experts freeze the shared experts, too."""
    return tuple(
        replace(phase, frozen=tuple(sorted({*phase.frozen, "shared_experts"})))
        if "experts" in phase.frozen
        else phase
        for phase in phases
    )


def phases_of(schedule: str, phases: Any = None) -> tuple[Phase, ...]:
    """The listed phases, or those of a named schedule. Raises ConfigError for an unknown one."""
    if phases is not None:
        return _listed(phases)
    if schedule not in SCHEDULES:
        raise ConfigError(
            f"method.schedule={schedule} is unknown. Choices: {', '.join(SCHEDULES)}."
            f"{did_you_mean(schedule, SCHEDULES)}\nmethod.phases takes any other list of phases."
        )
    parts = SCHEDULES[schedule]
    return tuple(
        Phase(frozen=() if part == "none" else (part,), until=(number + 1) / len(parts))
        for number, part in enumerate(parts)
    )


def _listed(phases: Any) -> tuple[Phase, ...]:
    if not isinstance(phases, list) or not phases:
        raise ConfigError(
            "method.phases must list phases: [{frozen:[router],until:0.5},{frozen:[],until:1.0}]."
        )
    found = tuple(_phase(phase) for phase in phases)
    ends = [phase.until for phase in found]
    if ends != sorted(set(ends)) or ends[0] <= 0 or ends[-1] != 1:
        raise ConfigError(
            f"method.phases: the phases end at {', '.join(f'{end:g}' for end in ends)}. `until` is the share of the "
            "steps at which a phase ends: above 0, increasing, and 1 for the last phase."
        )
    return found


def _phase(phase: Any) -> Phase:
    if not isinstance(phase, dict) or not {"frozen", "until"} <= set(phase) <= set(PHASE_KEYS):
        raise ConfigError(f"method.phases: {phase} must have the keys frozen and until, and may have lr.")
    frozen, until, rate = phase["frozen"], phase["until"], phase.get("lr")
    if not isinstance(frozen, list) or len(set(map(str, frozen))) != len(frozen):
        raise ConfigError(
            f"method.phases: frozen={frozen} must list groups, none twice: [], [router], [experts]."
        )
    for group in frozen:
        if group not in GROUPS:
            raise ConfigError(
                f"method.phases: {group} is no group that can be frozen. Groups: {', '.join(GROUPS)}."
                f"{did_you_mean(str(group), GROUPS)}"
            )
    for key, value in (("until", until), ("lr", rate)):
        if not _above_zero(value) and not (key == "lr" and value is None):
            raise ConfigError(f"method.phases: {key}={value} must be a number above 0.")
    return Phase(frozen=tuple(sorted(frozen)), until=float(until), lr=None if rate is None else float(rate))


def _above_zero(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LARGEST


def label(phases: Sequence[Phase]) -> str:
    """As the paper writes it where the switch is at half: N→R; else each phase with its end: N 25%→R."""
    names = ["".join(group[0].upper() for group in phase.frozen) or "N" for phase in phases]
    if len(phases) == 1:
        return f"{names[0]}→{names[0]}"
    if [phase.until for phase in phases] == [0.5, 1.0]:
        return "→".join(names)
    return "→".join(f"{name} {phase.until:.0%}" for name, phase in zip(names, phases, strict=True))


def boundaries(phases: Sequence[Phase], steps: int) -> list[int]:
    """The optimizer step before which each phase ends, rounded down. Raises ConfigError where one has no step."""
    ends = [math.floor(phase.until * steps + 1e-9) for phase in phases]
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if end <= start:
            raise ConfigError(
                f"method.phases: phase {number + 1} has no step, as the training has {steps}. Train longer, or "
                "leave it out."
            )
    return ends


def phase_at(ends: Sequence[int], step: int) -> int:
    """Number of the phase that an optimizer step, counted from 0, belongs to."""
    return next((number for number, end in enumerate(ends) if step < end), len(ends) - 1)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The learning rate at each step, as a share of `learning_rate`: linear warm-up, then a line to zero."""

    steps: int
    warmup_steps: int
    learning_rate: float
    peaks: tuple[float, ...]
    """Of each phase."""
    ends: tuple[int, ...]

    def __call__(self, step: int) -> float:
        peak = self.peaks[phase_at(self.ends, step)] / self.learning_rate
        if step < self.warmup_steps:
            return peak * step / self.warmup_steps
        return peak * max(0.0, (self.steps - step) / max(1, self.steps - self.warmup_steps))
