"""The table of counterfactual routes on the terminal, after that of the runs they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moe_lab.metrics.stored_counterfactual import shown_bands, stored_counterfactual
from moe_lab.reports.terminal.formats import count, interval, number
from moe_lab.reports.terminal.results import INTERVAL, settings
from moe_lab.reports.terminal.stacks import names, numbers, print_stacked, stacked_table

EXPLAINED = {
    "confidence": "probability of the router's most probable token.",
    "router": "mean log-probability of the text's tokens, in nats.",
    "better": "share of changed routes that are better than the router's; 0.5 by chance.",
    "a route": "its mean over the routes that noise proposes, minus the router's.",
    "RoE": "the same of the mean over all routes.",
    "best route": "the same of the best; it is chosen by the token: an upper bound.",
    "by chance": "the same, if the router chose no better than noise: best minus a route.",
    "worst": "the same of the worst route.",
}
"""What a column shows (docs/counterfactual.md)."""


def print_counterfactual(runs: Sequence[tuple[dict[str, Any], Path]]) -> None:
    """One table for all runs, of (results.json, folder), that have counterfactual routes; nothing where none has."""
    blocks = [results["moe_lab"] for results, _ in runs]
    labels = settings([block["overrides"] for block in blocks], [block["seed"] for block in blocks])
    rows = []
    for block, label, (_, folder) in zip(blocks, labels, runs, strict=True):
        found = stored_counterfactual(folder, block["run_id"], block["model"].get("commit"))
        asked = block["task"]["name"]
        task = asked if isinstance(asked, str) else ",".join(asked)
        rows += [
            (block["model"]["name"], label, task, *_cells(band))
            for band in (shown_bands(found) if found else [])
        ]
    if not rows:
        return
    columns = [list(cells) for cells in zip(*rows, strict=True)]
    models, settled, tasks, band, tokens, router, better, mean, roe, best, limits, chance, worst = columns
    stacks = [
        names({"model": models, "settings": settled}),
        names({"task": tasks}),
        [*names({"confidence": band}), *numbers({"tokens": tokens})],
        numbers({"router": router, "better": better}),
        numbers({"a route": mean, "RoE": roe}),
        numbers({"best route": best, INTERVAL: limits}),
        numbers({"by chance": chance, "worst": worst}),
    ]
    print()
    print_stacked(stacked_table("Counterfactual routes", stacks), EXPLAINED)


def _cells(band: dict[str, Any]) -> tuple[str, ...]:
    gain = {name: number(one["value"], sign=True) for name, one in band["gain"].items()}
    limits = interval(band["gain"]["best"]["ci95"], sign=True)
    return (
        band["confidence"],
        count(band["tokens"]),
        number(band["log_prob"]["router"]),
        number(band["better"]["value"]),
        gain["mean"],
        gain["roe"],
        gain["best"],
        limits,
        number(band["chance"]["value"], sign=True),
        gain["worst"],
    )
