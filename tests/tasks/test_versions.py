"""Versions of task functions. Broken by: a raised version that leaves the run id, a reworded function that changes it."""

from __future__ import annotations

from types import SimpleNamespace

from moe_lab.results.identity import task_settings
from moe_lab.tasks.arithmetic import numbers
from moe_lab.tasks.versions import FIRST, versioned


def settings(function) -> dict:
    return task_settings(SimpleNamespace(config=SimpleNamespace(process_results=function), VERSION=1))


def scorer(version: int, name: str = "lab.score"):
    @versioned(name, version)
    def score(document, results):
        return {"acc": version}

    return score


def test_a_raised_version_is_another_identity() -> None:
    for name in ("lab.score", "arithmetic.score"):
        found = [settings(scorer(version, name))["process_results"] for version in (1, 2, 3)]
        assert len(set(found)) == 3
    assert settings(scorer(2)) != settings(scorer(2, "lab.other"))


def test_the_source_of_a_versioned_function_does_not_count() -> None:
    @versioned("lab.score", 2)
    def reworded(document, results):
        """Says the same in other words."""
        return {"acc": 2}

    assert settings(reworded) == settings(scorer(2))
    assert settings(numbers.score)["process_results"] in FIRST.read_text().encode().decode("unicode_escape")
