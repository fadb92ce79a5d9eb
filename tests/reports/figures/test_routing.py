"""Figures of metrics=expert.

Broken by: counts of another layer or pair, a share over the wrong axis, a probability of an expert
that was never selected, an expert that a layer does not have, a metric of other tokens.
"""

import numpy as np

from moe_lab.metrics.stored import StoredMetrics
from moe_lab.reports.figures.routing import (
    draw_coactivation,
    draw_expert_metrics,
    draw_selections,
)

EXPERTS = [3, 2]
"""The second layer has one expert less, whose counts are 0."""
SELECTIONS_LE = np.array([[6, 2, 0], [1, 3, 0]])
PAIRS_LEE = np.array([[[0, 2, 0], [2, 0, 0], [0, 0, 0]], [[0, 1, 0], [1, 0, 0], [0, 0, 0]]])


def test_the_shares_of_a_layers_experts_are_those_of_its_selections():
    drawing = draw_selections(SELECTIONS_LE, EXPERTS)
    shares = {(row["layer"], row["expert"]): row["share"] for row in drawing.rows}
    assert shares == {(0, 0): 0.75, (0, 1): 0.25, (0, 2): 0.0, (1, 0): 0.25, (1, 1): 0.75}
    drawing.draw("")


def test_a_pair_has_its_tokens_and_its_share_of_the_first_experts_pairs():
    pairs_LEE = PAIRS_LEE.copy()
    pairs_LEE[0, 0, 2] = pairs_LEE[0, 2, 0] = 6
    drawing = draw_coactivation(pairs_LEE, EXPERTS)
    rows = {}
    for row in drawing.rows:
        place = (row["layer"], row["expert"], row["other"])
        rows[place] = (row["tokens"], row["probability"])
    assert rows == {
        (0, 0, 1): (2, 0.25),
        (0, 0, 2): (6, 0.75),
        (0, 1, 0): (2, 1.0),
        (0, 2, 0): (6, 1.0),
        (1, 0, 1): (1, 1.0),
        (1, 1, 0): (1, 1.0),
    }
    drawing.draw("")


def test_metrics_by_layer_are_those_of_all_tokens():
    def block(*values: float) -> dict:
        return {"all": {"layers": [{"value": value} for value in values]}, "decode": None}

    content = {"load_balance": block(1.0, 2.0), "collaboration": block(3.0, 4.0)}
    drawing = draw_expert_metrics(StoredMetrics(content))
    rows = [(row["metric"], row["layer"], row["value"]) for row in drawing.rows]
    assert rows == [
        ("load_balance", 0, 1.0),
        ("load_balance", 1, 2.0),
        ("collaboration", 0, 3.0),
        ("collaboration", 1, 4.0),
    ]
    drawing.draw("")


def test_a_run_whose_tokens_were_not_counted_draws_nothing():
    content = {"load_balance": {"all": None}, "collaboration": {"all": None}}
    assert draw_expert_metrics(StoredMetrics(content)).rows == []
