"""Broken by: a skipped layer shown as 0, a study in another model's panel."""

from __future__ import annotations

from moe_lab.reports.figures import write_study_figures
from moe_lab.reports.figures.studies import read_study, write_heatmap
from tests.support.stored_studies import PROFILE, rows_of, write_study


def test_the_heatmap_tells_skipped_layers_from_those_tuned_to_zero(tmp_path):
    tuned = [0.0, 0.0, *PROFILE[2:]]
    rows = rows_of(write_study_figures(write_study(tmp_path / "s", [2.0, 1.0], temperature=tuned))[3])
    assert [float(row["temperature"]) for row in rows] == tuned
    assert [row["layer"] for row in rows if row["skipped"] == "True"] == ["0", "7"]


def test_a_heatmap_of_several_models_and_tasks_has_a_row_for_each(tmp_path):
    folders = [
        write_study(tmp_path / f"{model}{task}", [2.0], temperature=PROFILE[:layers], model=model, task=task)
        for model, layers in (("a", 8), ("b", 6))
        for task in ("x", "y")
    ]
    paths = write_heatmap([read_study(folder) for folder in folders], tmp_path, "all")
    rows = rows_of(paths[1])
    assert len(rows) == 2 * 8 + 2 * 6
    assert [(row["model"], row["task"]) for row in rows if row["layer"] == "0"] == [
        ("a", "x"),
        ("a", "y"),
        ("b", "x"),
        ("b", "y"),
    ]
