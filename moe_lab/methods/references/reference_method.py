"""The role of methods that read answered reference questions (C3PO and ICL)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moe_lab.config.schema import Config as RunConfig
from moe_lab.methods.method import Counters, Method, SessionInfo

if TYPE_CHECKING:
    from moe_lab.models.facts import ModelFacts


class ReferenceMethod(Method):
    """Reads the nearest references of a question, which the base model has answered before.

    `Config` has the keys that determine a reference set (`references/reference_set.py`).
    """

    def references_left(self, config: RunConfig, facts: ModelFacts) -> dict[str, float]:
        """The tokens to read for each missing reference set, by its name, for plans. Needs no weights."""
        from moe_lab.methods.references.reference_set import references_left

        return references_left(config, self.config, facts)

    def reference_block(self, counters: Counters, session_info: SessionInfo) -> dict[str, Any]:
        """The key `reference` of the method's block in results.json."""
        return {
            "too_similar": counters.get("reference_dropped", 0),
            "questions_without": counters.get("reference_none", 0),
            "set": session_info.get("reference"),
        }
