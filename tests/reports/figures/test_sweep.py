"""Broken by an interval of a metric that is no share of documents."""

from __future__ import annotations

import pytest

from moe_lab.reports.figures import write_study_figures
from moe_lab.reports.figures.studies import read_study, sweep_rows
from tests.support.stored_studies import PROFILE, rows_of, write_study


def test_a_sweep_has_an_interval_where_the_metric_is_a_share_of_documents(tmp_path):
    values = [0.5, 0.52, 0.51]
    accuracy = {"metric": "accuracy", "direction": "maximize"}
    study = write_study(tmp_path / "s", values, tuning="uniform", temperature=PROFILE, **accuracy)
    paths = write_study_figures(study)
    assert [path.name for path in paths] == ["sweep.png", "sweep.csv"]
    rows = rows_of(paths[1])
    assert [(row["temperature"], row["value"]) for row in rows] == [
        ("0.0", "0.5"),
        ("0.05", "0.52"),
        ("0.1", "0.51"),
    ]
    # Wilson's interval of 50 of 100, from its formula by hand
    assert float(rows[0]["low"]) == pytest.approx(0.4038, abs=1e-4)
    assert float(rows[0]["high"]) == pytest.approx(0.5962, abs=1e-4)
    other = write_study(tmp_path / "p", [2.0, 1.9], tuning="uniform", temperature=PROFILE)
    assert [(row["low"], row["high"]) for row in sweep_rows(read_study(other))] == [(None, None)] * 2
