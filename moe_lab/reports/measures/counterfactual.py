"""The view of `metrics=counterfactual`: how much better noisy routes are than the router's own route."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moe_lab.metrics.counterfactual import Band, stored_counterfactual
from moe_lab.reports.measures import PageTable, View
from moe_lab.reports.terminal.layout import (
    StackedTable,
    count,
    interval,
    names,
    number,
    numbers,
    print_stacked,
    stacked_table,
)
from moe_lab.reports.terminal.results import INTERVAL, run_labels
from moe_lab.results.model import RunResult
from moe_lab.results.score_table import Family


class CounterfactualView(View[list[Band]]):
    """Gains of routes in nats, by the router's confidence (docs/counterfactual.md)."""

    def stored(self, folder: Path, run_id: str, commit: str | None) -> list[Band] | None:
        return stored_counterfactual(folder, run_id, commit)

    def print(self, results: Sequence[RunResult], family: Family) -> None:
        labels = run_labels(results)
        rows = [
            (run.model, label, ",".join(run.requested), *_cells(band))
            for run, label in zip(results, labels, strict=True)
            if (content := self.of(run)) is not None
            for band in content
        ]
        if rows:
            print()
            print_stacked(routes_table(rows), COUNTERFACTUAL_EXPLAINED)

    def values(self, content: list[Band]) -> dict[str, float]:
        """`counterfactual/<which>/<confidence>` of each band: gains in nats, and the share of better routes."""
        return {
            f"counterfactual/{name}/{band.confidence}": one.value
            for band in content
            for name, one in (band.gain | {"chance": band.chance, "better": band.better}).items()
            if one.value is not None
        }

    def page_table(self, content: list[Band]) -> PageTable:
        return PageTable(
            title="Counterfactual routes",
            caption="Routes that noise proposes, by the probability of the router's most probable token. Numbers are "
            "log-probabilities of the text's tokens in nats. The best route is chosen by the token, so its gain is an "
            "upper bound. By chance: this gain if the router chose no better than noise. Better: share of changed "
            "routes that are better, 0.5 by chance.",
            columns=[
                *("confidence", "tokens", "router", "gain of RoE", "of a route, mean", "of the best"),
                *("by chance", "of the worst", "better"),
            ],
            rows=[
                [
                    band.confidence,
                    count(band.tokens),
                    number(band.router),
                    *(band.gain[name] for name in ("roe", "mean", "best")),
                    band.chance,
                    band.gain["worst"],
                    band.better,
                ]
                for band in content
            ],
        )


COUNTERFACTUAL_EXPLAINED = {
    "confidence": "probability of the router's most probable token.",
    "router": "mean log-probability of the text's tokens, in nats.",
    "better": "share of changed routes that are better than the router's; 0.5 by chance.",
    "a route": "mean log-probability over the routes that noise proposes, minus the router's.",
    "RoE": "the same for the mean over all routes.",
    "best route": "the same for the best route, chosen by the token: an upper bound.",
    "by chance": "the same if the router chose no better than noise: best minus a route.",
    "worst": "the same for the worst route.",
}
"""The meanings of columns (docs/counterfactual.md)."""


def routes_table(rows: Sequence[tuple[str, ...]]) -> StackedTable:
    """A row per run and band: model, settings, task, and `_cells`."""
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
    return stacked_table("Counterfactual routes", stacks)


def _cells(band: Band) -> tuple[str, ...]:
    gain = {name: number(one.value, sign=True) for name, one in band.gain.items()}
    return (
        band.confidence,
        count(band.tokens),
        number(band.router),
        number(band.better.value),
        gain["mean"],
        gain["roe"],
        gain["best"],
        interval(band.gain["best"].interval, sign=True),
        number(band.chance.value, sign=True),
        gain["worst"],
    )


VIEW = CounterfactualView()
