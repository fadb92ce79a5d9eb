"""Figures of studies. Broken by a study that is drawn twice, a skipped layer shown as 0, a pruned trial that counts as a
value, and the default learning rate of the routers at zero."""

from itertools import product

from moe_lab.reports.figures import style, write_study_figures
from moe_lab.reports.figures.curves import draw_lines
from moe_lab.reports.figures.studies import read_study, studies_of
from moe_lab.reports.papers.cells import CellTable, TableCell
from moe_lab.reports.papers.experiment import Experiment
from tests.support.finetuned_cells import KEYS, cell
from tests.support.stored_studies import PROFILE, pixels, rows_of, write_study


def test_tpe_leaves_history_and_heatmap(tmp_path):
    study = write_study(tmp_path / "s", [2.0, 2.5, None, 1.5, 1.75], temperature=PROFILE)
    paths = write_study_figures(study)
    names = ["history.png", "history.csv", "heatmap.png", "heatmap.csv"]
    assert paths == [study / "figures" / name for name in names]
    assert pixels(paths[0])[0] >= style.DPI * 4
    assert pixels(paths[2])[0] >= style.DPI * 5.5
    found = {path.name for path in (study / "figures").iterdir()}
    assert found == {*names}, "nothing temporary stays"


def test_a_study_without_a_complete_trial_has_no_figures_and_one_without_a_profile_no_heatmap(tmp_path):
    begun = write_study(tmp_path / "s", [])
    assert write_study_figures(begun) == []
    done = write_study(tmp_path / "t", [2.0])
    assert [path.name for path in write_study_figures(done)] == ["history.png", "history.csv"]
    cells = [TableCell(coordinates={}, run_id="r", studies=own) for own in ([done], [done], [begun], [])]
    [found] = studies_of(cells)  # each is drawn once
    assert found.info == read_study(done).info and len(found.complete) == 1


def test_the_heatmap_tells_skipped_layers_from_those_tuned_to_zero(tmp_path):
    tuned = [0.0, 0.0, *PROFILE[2:]]
    rows = rows_of(write_study_figures(write_study(tmp_path / "s", [2.0, 1.0], temperature=tuned))[3])
    assert [float(row["temperature"]) for row in rows] == tuned
    assert [row["layer"] for row in rows if row["skipped"] == "True"] == ["0", "7"]


def test_the_history_has_every_ended_trial_and_the_best_so_far(tmp_path):
    study = write_study(tmp_path / "s", [2.0, 2.5, None, 1.5, 1.75], temperature=PROFILE)
    rows = rows_of(write_study_figures(study)[1])
    assert [row["trial"] for row in rows] == [*"01234"]
    assert [row["state"] for row in rows] == ["COMPLETE"] * 2 + ["PRUNED"] + ["COMPLETE"] * 2
    assert [row["value"] or f"~{row['estimate']}" for row in rows] == ["2.0", "2.5", "~9.9", "1.5", "1.75"]
    assert [row["best"] for row in rows] == ["2.0", "2.0", "2.0", "1.5", "1.5"]
    assert {row["untuned"] for row in rows} == {"2.0"}
    maximized = {"metric": "accuracy", "direction": "maximize"}
    study = write_study(tmp_path / "a", [0.5, 0.7, 0.7, 0.6], temperature=PROFILE, **maximized)
    assert [row["best"] for row in rows_of(write_study_figures(study)[1])] == ["0.5", "0.7", "0.7", "0.7"]
    assert read_study(study).best["trial"] == 1, "of equal ones the first"


def test_lines_go_up_the_axis_and_the_default_rate_is_that_of_all_else(tmp_path):
    measures = {"Load Balance": "expert.load_balance", "accuracy": "headline"}
    lines = Experiment(
        **KEYS, rows=["method.router_lr"], columns=["model", "measure"], metric=measures, paper=[]
    )
    points = [
        cell(value, metric, model="tiny", measure=name, method__router_lr=rate)
        for rate, value in (("-", 0.6), ("1e-05", 0.4))
        for name, metric in measures.items()
    ]
    rows = draw_lines(CellTable(lines, points)).rows
    assert [(row["x"], row["measure"]) for row in rows] == [*product((1e-05, 0.02), measures)]
    assert [row["value"] for row in rows] == [3.5, 0.4, 3.5, 0.6]
    assert {row["line"] for row in rows} == {"tiny"}
    assert draw_lines(CellTable(lines, points)).save(tmp_path, "f", "T")[0].stat().st_size > 1000
