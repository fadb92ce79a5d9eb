"""Figures of a study: what is drawn, and the CSV behind it.

Broken by: a pruned trial shown with a value, a trial that has not ended, a maximum taken for a minimum, a skipped layer
shown as tuned, a picture that is too coarse to print.
"""

from __future__ import annotations

import csv
import struct
import subprocess
import sys

import pytest

from moe_lab.reports.figures import write_study_figures
from moe_lab.reports.figures.heatmap import write_heatmap
from moe_lab.reports.figures.stored_study import read_study
from moe_lab.reports.figures.sweep import sweep_rows
from tests.support.stored_studies import write_study

PROFILE = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.05, 0.0]


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def pixels(png):
    """Width and height, from the PNG's header."""
    head = png.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


def test_tpe_leaves_history_and_heatmap(tmp_path):
    study = write_study(tmp_path / "s", [2.0, 2.5, None, 1.5, 1.75], temperature=PROFILE)
    paths = write_study_figures(study)
    names = ["history.png", "history.csv", "heatmap.png", "heatmap.csv"]
    assert paths == [study / "figures" / name for name in names]
    assert pixels(paths[0])[0] >= 150 * 5
    assert pixels(paths[2])[0] >= 150 * 7
    assert sorted(path.name for path in (study / "figures").iterdir()) == sorted(names), (
        "nothing temporary stays"
    )


def test_the_history_has_every_ended_trial_and_the_best_so_far(tmp_path):
    study = write_study(tmp_path / "s", [2.0, 2.5, None, 1.5, 1.75], temperature=PROFILE)
    rows = rows_of(write_study_figures(study)[1])
    told = [(row["trial"], row["state"], row["value"], row["estimate"], row["best"]) for row in rows]
    assert told == [
        ("0", "COMPLETE", "2.0", "", "2.0"),
        ("1", "COMPLETE", "2.5", "", "2.0"),
        ("2", "PRUNED", "", "9.9", "2.0"),
        ("3", "COMPLETE", "1.5", "", "1.5"),
        ("4", "COMPLETE", "1.75", "", "1.5"),
    ]
    assert {row["untuned"] for row in rows} == {"2.0"}


def test_an_accuracy_is_maximized(tmp_path):
    folder = write_study(
        tmp_path / "s", [0.5, 0.7, 0.7, 0.6], temperature=PROFILE, metric="accuracy", direction="maximize"
    )
    assert [row["best"] for row in rows_of(write_study_figures(folder)[1])] == ["0.5", "0.7", "0.7", "0.7"]
    assert read_study(folder).best.number == 1, "of equal ones the first"


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


def test_a_study_without_a_complete_trial_has_no_figures_and_one_without_a_profile_no_heatmap(tmp_path):
    assert write_study_figures(write_study(tmp_path / "s", [])) == []
    paths = write_study_figures(write_study(tmp_path / "t", [2.0]))
    assert [path.name for path in paths] == ["history.png", "history.csv"]


@pytest.mark.slow
def test_matplotlib_is_imported_only_to_draw():
    code = (
        "import sys, moe_lab.reports.figures.history, moe_lab.reports.figures.heatmap, moe_lab.reports.figures.sweep;"
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
