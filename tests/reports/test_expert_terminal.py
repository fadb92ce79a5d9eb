"""Breaks if a difference stands in another metric's row, or a column without numbers is shown."""

from typing import Any

from moe_lab.metrics.stored import StoredMetrics
from moe_lab.reports import expert
from moe_lab.reports.expert import expert_table, explained, lost_p_values
from moe_lab.results.score_table import Family


def loss(difference: float, base: float = 0.5, p: float | None = 0.25) -> dict[str, Any]:
    one = {"base": base, "changed": base - difference, "difference": difference, "ci95": [0.0, 0.1]}
    return {"acc,none": one | {"runs": [{"p_mcnemar": p}]}}


def family_of(metrics: dict[str, Any], *others: float) -> Family:
    """The families of a run's losses and of scores."""
    own = lost_p_values(StoredMetrics(metrics), "r")
    return Family.of({(str(n), "t", "acc,none", "base"): p for n, p in enumerate(others)}, own)


def lines(metrics: dict[str, Any], *others: float) -> list[expert.Line]:
    return expert.lines(StoredMetrics(metrics), "r", family_of(metrics, *others))


METRICS: dict[str, Any] = {
    "differences": {},
    "metric": "acc,none",
    "load_balance": {
        "all": {"value": 3.5, "ci95": [3.4, 3.6], "maximum": 4.0},
        "prefill": None,
        "decode": None,
    },
    "collaboration": {"all": {"value": 2.5, "ci95": None, "maximum": 3.0}, "prefill": None, "decode": None},
    "capacity": {"least": {"tasks": {"t": loss(0.02)}}, "most": {"tasks": {"t": loss(0.3), "u": loss(0.4)}}},
    "specialization": None,
}


def test_differences_to_base_stand_in_their_own_rows():
    difference = {
        "load_balance/all": {"difference": 0.1, "ci95": [0.05, 0.15]},
        "capacity/most/tasks/u/acc,none": {"difference": -0.2, "ci95": None},
    }
    found = {
        (metric, of): rest for metric, of, *rest in lines(METRICS | {"differences": {"baseline": difference}})
    }
    assert found["Load Balance, bits", "all tokens"][-2:] == ["+0.1000", "[+0.0500, +0.1500]"]
    assert found["Capacity, acc,none", "most activated expert masked, u"][-2:] == ["-0.2000", ""]
    assert found["Capacity, acc,none", "most activated expert masked, t"][-2:] == ["", ""]
    assert len(found) == 5


def test_a_loss_is_corrected_for_the_losses_alone():
    """Broken by scores that change the p of a loss, and by losses that change the p of scores."""
    two = {"least": {"tasks": {"t": loss(0.3, p=0.03)}}, "most": {"tasks": {"t": loss(0.3, p=0.5)}}}
    found = METRICS | {"capacity": two}
    alone, beside = ([line[5] for line in lines(found, *others) if line[5]] for others in ((), (0.5, 0.001)))
    assert alone == beside == ["0.0600", "0.5000"]
    table = expert_table([("m", "roe", "", "t", *line) for line in lines(found)], family_of(found))
    assert "p (Holm)" in table.headings
    several = family_of(found, 0.5, 0.001)
    assert "(scores: 2, expert metrics: 2)" in explained(several)["p (Holm)"]
    assert several.corrected["1", "t", "acc,none", "base"] == 0.002
