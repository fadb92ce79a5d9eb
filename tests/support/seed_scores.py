"""Scores over seeds, made by hand."""

from typing import Any

from moe_lab.results.seed_summary import SeedDifference, SeedScore


def seed_difference(**numbers: Any) -> SeedDifference:
    """A difference over seeds with these numbers; the others are missing."""
    missing = {"mean": 0.0, "difference": 0.0, "interval": None, "p_documents": None}
    missing |= {"seed_interval": None, "p_seeds": None, "equal": False}
    return SeedDifference(**(missing | numbers))


def seed_score(**parts: Any) -> SeedScore:
    """A score over seeds with these parts; the others are missing."""
    missing = {"values": [], "mean": None, "std": None, "seed_interval": None, "interval": None}
    return SeedScore(**(missing | parts))


def with_base(**numbers: Any) -> dict[str, dict[str, SeedScore]]:
    """The summary of one score of the task `a`, with this difference to the base model's run."""
    return {"a": {"acc,none": seed_score(with_base=seed_difference(**numbers))}}
