"""What is logged of a run's counterfactual routes, as plain keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moe_lab.metrics.stored_counterfactual import shown_bands, stored_counterfactual


def counterfactual_scores(results: dict[str, Any], folder: Path) -> dict[str, float]:
    """`counterfactual/<which>/<confidence>` of each band: gains in nats, and the share of better routes.

    Empty for a run without them.
    """
    block = results["moe_lab"]
    found = stored_counterfactual(folder, block["run_id"], block["model"].get("commit"))
    scores: dict[str, float] = {}
    for band in shown_bands(found) if found else []:
        values = band["gain"] | {"chance": band["chance"], "better": band["better"]}
        scores |= {
            f"counterfactual/{name}/{band['confidence']}": one["value"]
            for name, one in values.items()
            if one["value"] is not None
        }
    return scores
