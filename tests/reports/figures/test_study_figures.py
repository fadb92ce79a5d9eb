"""Figures of a study: what is drawn, and the CSV behind it.

Broken by: a pruned trial shown with a value, a trial that has not ended, a maximum taken for a minimum, a skipped layer
shown as tuned, a picture that is too coarse to print.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from moe_lab.reports.figures import write_study_figures
from tests.support.stored_studies import PROFILE, pixels, write_study


def test_tpe_leaves_history_and_heatmap(tmp_path):
    study = write_study(tmp_path / "s", [2.0, 2.5, None, 1.5, 1.75], temperature=PROFILE)
    paths = write_study_figures(study)
    names = ["history.png", "history.csv", "heatmap.png", "heatmap.csv"]
    assert paths == [study / "figures" / name for name in names]
    assert pixels(paths[0])[0] >= 150 * 5
    assert pixels(paths[2])[0] >= 150 * 7
    assert sorted(path.name for path in (study / "figures").iterdir()) == sorted(
        [*names, "history.svg", "heatmap.svg"]
    ), "nothing temporary stays"


def test_a_study_without_a_complete_trial_has_no_figures_and_one_without_a_profile_no_heatmap(tmp_path):
    assert write_study_figures(write_study(tmp_path / "s", [])) == []
    paths = write_study_figures(write_study(tmp_path / "t", [2.0]))
    assert [path.name for path in paths] == ["history.png", "history.csv"]


@pytest.mark.slow
def test_matplotlib_is_imported_only_to_draw():
    code = (
        "import sys, moe_lab.reports.figures.studies, moe_lab.reports.figures.curves;"
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
