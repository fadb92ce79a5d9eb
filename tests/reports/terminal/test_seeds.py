"""Broken by a mean or an interval in the row of another run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moe_lab.reports.terminal.results import print_summaries
from moe_lab.results.score_table import ScoreTable, SeedGroup
from tests.support.stored_results import results_of

FULL = {"run_id": "full", "results": {"t": {"acc,none": 0.44}}}


def group(method: str, mean: float, file: Path, **block: Any) -> SeedGroup:
    """Two seeds of a method, 0.02 apart, base at 0.4 and full fine-tuning at 0.44."""

    def paired(value: float, other: float) -> dict[str, Any]:
        return {"t": {"acc,none": {"difference": value - other, "ci95": None, "p_mcnemar": None}}}

    results = [
        results_of(
            method,
            value,
            run_id=f"{method}-{seed}",
            partial=True,
            baseline={"run_id": "b", "results": {"t": {"acc,none": 0.4}}},
            paired=paired(value, 0.4),
            compared={"full_fine_tuning": FULL | {"paired": paired(value, 0.44)}},
            **block,
        )
        for seed, value in enumerate((mean - 0.01, mean + 0.01))
    ]
    score = {
        "ci95_documents": [mean - 0.1, mean + 0.1],
        "difference_ci95_documents": [mean - 0.5, mean - 0.3],
    }
    score |= {
        "difference_p_documents": 0.03,
        "compared": {"full_fine_tuning": {"difference_p_documents": 0.2}},
    }
    summary = {"seeds": [0, 1], "overrides": [f"method={method}"], "scores": {"t": {"acc,none": score}}}
    return SeedGroup(results, summary | block.pop("more", {}), file)


def test_each_group_has_its_means(tmp_path, capsys):
    groups = [group("roe", 0.5, tmp_path / "a", untuned=True), group("finetune-freeze", 0.6, tmp_path / "b")]
    table = ScoreTable.of(groups)
    print_summaries(groups, [tmp_path / "a", tmp_path / "b"], table.family)
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert "Over seeds: model=tiny task=t metric=acc,none PARTIAL" in lines
    first = next(line for line in lines if line.startswith("roe"))
    for text in (" 2 ", " 0.5000 ", " +0.1000 ", "(untuned)", "[0.4000, 0.6000]", "[+0.0000, +0.2000]"):
        assert text in first
    assert "Over seeds, compared with full fine tuning: model=tiny task=t metric=acc,none" in " ".join(lines)
    frozen = [line.split() for line in lines if line.startswith("finetune-")]
    assert [("+0.2000" in line, "+0.1600" in line) for line in frozen] == [(True, False), (False, True)]


def test_both_tests_and_the_family_of_two_decide(tmp_path):
    """With two seeds p is the larger of both: Student's over seeds here. Holm multiplies the smallest by two."""
    from scipy.stats import ttest_1samp

    groups = [group("roe", 0.5, tmp_path / "a"), group("finetune-freeze", 0.6, tmp_path / "b")]
    scores = ScoreTable.of(groups).scores
    expected = [
        max(0.03, ttest_1samp([0.09, 0.11], 0).pvalue),
        max(0.03, ttest_1samp([0.19, 0.21], 0).pvalue),
    ]
    assert [score.p for score in scores[:2]] == pytest.approx(expected)
    assert scores[1].p_holm == pytest.approx(2 * expected[1])
    assert [(score.question, score.family) for score in scores] == [("scores", 2)] * 2 + [("controls", 2)] * 2
