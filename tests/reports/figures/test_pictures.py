"""What every kind of figure draws, and whether its texts can be read.

Broken by bars that a line joins, a label that is cut at the edge of the picture, a label on top
of another one, and a kind of figure that is not drawn here.
"""

import pytest
from matplotlib.figure import Figure

from moe_lab.reports.papers.figure_kinds import FIGURES
from tests.support.drawn import artists, as_saved, covered_texts, cut_texts, placed
from tests.support.every_drawing import CROWDED, DRAWINGS, TITLE

ARTISTS = {
    # 5 tasks with 2 methods
    "accuracy": [{"bars": 10, "intervals": 10}],
    # a curve for each method, and the model's own k
    "control": [{"lines": 3, "intervals": 5}] * 2,
    # the intervals of points lie: they are lines, and so is that at base
    "forest": [{"lines": 4, "markers": 3}] * 3,
    # the intervals of 2 comparisons, and the line at 0
    "effects": [{"lines": 3, "markers": 2}] * 2,
    "differences": [{"lines": 4, "markers": 3}],
    # without a meter of power
    "overhead": [{"lines": 2}, {"lines": 2}, {}],
    # RoE, its calibration or the larger model, and the base model
    "equivalent": [{"lines": 3, "intervals": 3}, {"lines": 3}, {"lines": 3}],
    # the base model has no interval; a line at 0
    "quality_cost": [{"markers": 4, "intervals": 3, "lines": 1}] * 2,
    # an expert metric each
    "epochs": [{"lines": 5}] * 2,
    "flops": [{"lines": 2, "bands": 1}],
    # a line for each model, an interval for each of its 3 rates
    "lines": [{"lines": 2, "intervals": 6}] * 2,
    # 4 intervals and the mean of the schedules; the average has a published value
    "schedules": [
        {"lines": 5, "markers": 4},
        {"lines": 5, "markers": 4},
        {"lines": 5, "markers": 5},
    ],
    # before and after of 2 runs, and a colour bar
    "activation": [{"images": 1}, {"images": 1}, {"images": 1}, {"images": 1}, {}],
    # before, after and 2 neighbours, with the experts that each takes
    "sample": [{"lines": 4, "markers": 4}],
    "steps": [{"lines": 1, "intervals": 3}, {"lines": 2}, {"lines": 1}],
    # the mean with its band, and the experts of a token
    "retained": [{"lines": 2, "bands": 1}] * 2,
    # trials (and pruned ones); the best so far and the untuned model
    "history": [{"markers": 2, "lines": 2}, {"markers": 1, "lines": 2}],
    # the best trial is a marker
    "sweep": [{"lines": 2, "bands": 1, "markers": 1}],
    # 2 models, each with its colour bar
    "heatmap": [{"images": 1}, {"images": 1}, {}, {}],
    # 2 granularities with 2 backbones; the dense model with its band, and chance
    "designs": [
        {"markers": 2, "intervals": 4, "lines": 1, "bands": 1},
        {"bars": 4, "intervals": 4, "lines": 2, "bands": 1},
    ],
    # 2 lines, each with a band over seeds
    "training_curves": [{"lines": 2, "bands": 2}] * 4,
}
"""By kind, the artists of each panel."""


def test_every_kind_is_drawn_here():
    assert set(DRAWINGS) == {*FIGURES, "differences"}


@pytest.mark.parametrize("kind", DRAWINGS)
def test_a_figure_draws_its_numbers_and_nothing_else(kind, tmp_path):
    figure = as_saved(DRAWINGS[kind](tmp_path), TITLE)
    assert [artists(axis) for axis in figure.axes] == ARTISTS[kind]
    assert cut_texts(figure) == []
    assert covered_texts(figure) == []


TOO_CLOSE = pytest.mark.xfail(
    strict=True, reason="the numbers of points that lie close to each other touch"
)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[TOO_CLOSE] * (kind == "flops")) for kind in CROWDED]
)
def test_with_as_much_as_an_experiment_at_scale_paper_every_text_can_be_read(kind, tmp_path):
    figure = as_saved(CROWDED[kind](tmp_path), TITLE)
    assert cut_texts(figure) == []
    assert covered_texts(figure) == []


def test_a_cut_text_and_a_covered_one_are_found():
    figure = Figure(figsize=(4, 3))
    figure.subplots().set(xlabel="wide " * 30, title="one")
    figure.text(0.5, 0.9, "another one", ha="center")
    placed(figure)
    assert cut_texts(figure) == ["wide " * 30]
    assert covered_texts(figure) == [("one", "another one")]
