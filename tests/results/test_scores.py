"""Breaks if the numbers of a group are not those of all its documents together.

Breaks if the average over tasks has other numbers than its tasks have,
or hides that one is missing.

Rows of a results.json: the headline metric, groups, marks, numbers that do not exist.

Broken by: a wrong metric, a group without its documents, a missing value shown as a number.
"""

from dataclasses import replace

import pytest
from scipy.stats import norm

from moe_lab.results.family import Family
from moe_lab.results.marks import marks_of
from moe_lab.results.means import mean_score, task_mean
from moe_lab.results.paired import paired
from moe_lab.results.score import Score
from moe_lab.results.scores import headline, scores_of
from moe_lab.results.significance import holm
from moe_lab.results.statistics import wilson
from moe_lab.results.versions import versions
from tests.support.seed_scores import with_base
from tests.support.stored_results import result_with


def score(task: str, value: float | None, **changes: float | tuple[float, float]) -> Score:
    defaults = {"model": "m", "method": "roe", "metric": "acc,none", "run_id": f"run of {task}"}
    return Score(task=task, value=value, **defaults, **changes)


def test_the_average_of_one_task_has_its_numbers():
    intervals = {"interval": (0.3, 0.7), "difference_interval": (-0.1, 0.3)}
    single_score = score("a", 0.5, n=10, stderr=0.1, difference=0.1, **intervals)
    mean = task_mean([single_score])
    assert mean is not None
    assert (mean.task, mean.run_id, mean.n) == ("average", "run of a", 10)
    assert (mean.value, mean.stderr, mean.difference) == pytest.approx((0.5, 0.1, 0.1))
    assert mean.interval == pytest.approx((0.3, 0.7))
    assert mean.difference_interval == pytest.approx((-0.1, 0.3))


def test_tasks_have_equal_weight_in_their_average():
    mean = task_mean([score("a", 0.5, n=10, stderr=0.3), score("b", 0.75, n=90, stderr=0.4)])
    assert mean is not None
    assert (mean.value, mean.n, mean.run_id) == (
        0.625,
        100,
        "run of a run of b",
    )
    assert mean.stderr == pytest.approx(0.25)
    assert mean.difference is None
    assert mean.interval is None


def results_of(scores, tasks, **changes):
    """A results.json of two documents per task."""
    task_block = {"name": "t", "tasks": tasks, "metric": "acc,none"}
    return result_with(
        scores, task=task_block, samples={task: [0, 3] for task in tasks}, content=changes
    )


def test_a_run_that_another_is_not_compared_with_has_no_difference_to_it():
    [score] = scores_of(results_of({"a": {"acc,none": 0.5}}, ["a"]), other="calibration")
    assert (score.value, score.other, score.baseline, score.difference) == (
        0.5,
        "calibration",
        None,
        None,
    )


def test_the_headline_is_the_tasks_own_metric_else_the_first():
    scores = {"alias": "t", "acc_norm,none": 0.2, "acc_norm_stderr,none": 0.1, "acc,none": 0.3}
    assert headline(scores, "acc,none") == "acc,none"
    assert headline(scores, None) == "acc_norm,none"
    assert headline(scores, "f1,none") == "acc_norm,none"
    assert headline({"alias": "t"}, "acc,none") == "-"
    placeholder = {"alias": "t", "bypass,none": 999, "bypass_stderr,none": "N/A"}
    assert headline(placeholder, None) == headline(placeholder, "bypass,none") == "-", (
        "predict_only"
    )


def test_the_parts_of_a_group_that_is_compared_have_no_test_of_their_own():
    """Broken by MMLU's 57 subjects in the family of one comparison.

    Also by requested tasks without a p.
    """
    scores = {name: {"acc,none": 0.5} for name in ("g", "h", "a", "b")}
    group_score = {
        "n": 2,
        "difference": 0.5,
        "ci95": [-0.1, 0.9],
        "p_mcnemar": 1.0,
        "to_right": 1,
        "to_wrong": 0,
    }
    paired = {name: {"acc,none": group_score} for name in ("a", "b")}
    changes = {
        "groups": {"g": {}, "h": {}},
        "group_subtasks": {"g": ["h"], "h": ["a", "b"], "a": [], "b": []},
    }

    def results(*requested):
        task = {"name": list(requested), "tasks": ["a", "b"], "metric": "acc,none"}
        return result_with(
            scores, task=task, samples={"a": [0, 3], "b": [0, 3]}, paired=paired, content=changes
        )

    def tested(*requested):
        rows = scores_of(results(*requested))
        return [row.task for row in rows if row.p is not None and "part" not in row.marks]

    assert tested("g") == ["g"]
    assert tested("g", "a") == ["g", "a"]
    assert tested("h") == ["h"]
    assert tested("a", "b")[:2] == ["a", "b"]
    assert [row.difference for row in scores_of(results("a", "b")) if row.task == "a"] == [0.5]


@pytest.mark.parametrize(
    ("metric", "pooled"),
    [("acc", True), ("exact_match", True), ("f1", False), ("mcc", False), ("ter", False)],
)
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_group_is_a_sample_of_right_answers_only_where_its_metric_is_a_mean(
    metric, pooled, value
):
    """The values of f1 and mcc are no shares of right answers, also where they are 0 or 1."""
    key = f"{metric},none"
    scores = {name: {key: value} for name in ("g", "a", "b")}
    changes = {
        "group_subtasks": {"g": ["a", "b"]},
        "groups": {"g": {key: value}},
        "configs": {name: {"metric_list": [{"metric": metric}]} for name in ("a", "b")},
    }
    samples = {"a": [*range(10)], "b": [*range(20)]}
    task = {"name": "g", "tasks": ["a", "b"], "metric": key}
    [whole, *_] = scores_of(result_with(scores, content=changes, samples=samples, task=task))
    assert (whole.task, whole.value) == ("g", value)
    assert (whole.interval == wilson(round(30 * value), 30)) is pooled


def test_the_mean_over_seeds_of_a_part_has_no_test_either():
    def seeds(marks):
        seed_scores = [
            replace(seed_score, difference=0.1 * i)
            for i, seed_score in enumerate(seeds_of(5, marks=marks))
        ]
        return mean_score(seed_scores, with_base(p_both=0.01))

    assert seeds(()).p == 0.01
    assert seeds(("part",)).p is None
    assert seeds(("part",)).difference == pytest.approx(0.2)


TUNED = {
    "tuning": {"model": "tiny", "n": 8},
    "model": {"name": "tiny"},
    "method": {"name": "roe", "config": {"n": 8}},
}


@pytest.mark.parametrize(
    ("changes", "marks"),
    [
        ({}, ()),
        ({"partial": True, "untuned": True}, ("PARTIAL", "untuned")),
        ({"versions": versions() | {"lm_eval": "0.4.1"}}, ("other-versions",)),
        ({"cost": {"cut_prompts": 2}}, ("cut-prompts",)),
        ({"cost": {"cut_prompts": 0}}, ()),
        ({"cost": {"decoded_in_context": 2}}, ("decoded-in-context",)),
        ({"c2r": {"test_profile": True}}, ("test-profile",)),
        ({"c2r": {"test_profile": False}}, ()),
        (TUNED, ()),
        (TUNED | {"tuning": {"model": "tiny", "n": 4}}, ("other-profile",)),
        (TUNED | {"tuning": {"model": "olmoe", "n": 8}}, ("other-profile",)),
        (TUNED | {"tuning": {"model": "tiny", "n": 8, "noise": "gumbel"}}, ()),
        (
            TUNED | {"method": {"name": "roe", "config": {"n": 8, "noise": "antithetic"}}},
            ("other-profile",),
        ),
        (TUNED | {"method": {"name": "policy", "config": {"roe": {"n": 4}}}}, ("other-profile",)),
    ],
)
def test_marks_say_what_a_reader_must_know(changes, marks):
    assert marks_of(result_with(**changes)) == marks


@pytest.mark.parametrize(
    ("calibrated", "marked"),
    [(1.9, True), (2.0, False), (2.0 - 1e-7, False), (2.1, False), (None, False)],
)
def test_a_run_that_calibration_beats_is_marked(calibrated, marked):
    tuning = {"model": "tiny", "score": 2.0, "calibrated_score": calibrated}
    assert ("worse-than-calibrated" in marks_of(result_with(tuning=tuning))) == marked
    control = result_with(tuning=tuning, method={"name": "calibration"})
    assert "worse-than-calibrated" not in marks_of(control)


def test_holms_correction_is_over_the_scores_that_have_a_p():
    [score] = scores_of(results_of({"a": {"acc,none": 0.5}}, ["a"]))
    scores = [replace(score, run_id=str(p), p=p) for p in (0.01, None, 0.04)]
    family = Family.of({row_score.comparison: row_score.p for row_score in [*scores, scores[0]]})
    corrected = list(map(family.correct, scores))
    assert [row_score.p_holm for row_score in corrected] == [
        holm([0.01, 0.04])[0],
        None,
        holm([0.01, 0.04])[1],
    ]
    assert [row_score.family for row_score in corrected] == [2, None, 2], (
        "a comparison in two tables counts once"
    )
    single_seed = replace(scores[0], run_id="of one seed")
    assert family.correct(single_seed).p_holm is None


def seeds_of(count: int, **fields):
    """The scores of some seeds with the same numbers."""
    seed_score = Score(
        model="m", method="roe", task="a", metric="acc,none", run_id="r", value=0.5, **fields
    )
    return [replace(seed_score, run_id=str(seed)) for seed in range(count)]


def test_seeds_with_the_same_difference_have_the_test_over_documents():
    """Broken by a comparison that leaves the family where its seeds agree.

    The p of the other comparisons would shrink.
    """
    mean = mean_score(seeds_of(2, difference=0.1), with_base(p_documents=0.019))
    assert mean.p == 0.019
    assert Family.of({mean.comparison: mean.p}).tests == {"scores": 1}


def test_differences_that_cancel_are_exactly_0():
    """0.4 - 0.3 and 0.3 - 0.2 differ in their last bits.

    They are equal over seeds, over tasks, and over the documents of a run.
    """
    differences = [0.4 - 0.3, 0.2 - 0.3]
    assert sum(differences) != 0
    scores = [
        replace(seed_score, difference=moved)
        for seed_score, moved in zip(seeds_of(2), differences, strict=True)
    ]
    over_seeds = mean_score(scores, {})
    over_tasks = task_mean(scores)
    assert over_tasks is not None
    assert (over_seeds.difference, over_tasks.difference) == (0.0, 0.0)
    of_run = paired([0.1, 0.2, 0.3], [0.3, 0.2, 0.1])
    assert of_run.difference == 0.0


def test_a_mean_is_equal_where_all_of_its_seeds_are():
    scores = seeds_of(2, difference=1e-7, equal=True, marks=("untuned", "equal"))
    same_mean = mean_score(scores, with_base(equal=True, p_documents=0.01))
    assert (same_mean.equal, same_mean.p, same_mean.marks) == (True, None, ("untuned", "equal"))
    moved = mean_score(scores, with_base(equal=False, p_documents=0.5))
    assert (moved.equal, moved.p, moved.marks) == (False, 0.5, ("untuned",))


def test_an_average_of_tasks_has_the_interval_of_its_test():
    """Broken by the interval over documents in the place of that over seeds and documents."""
    intervals = {"difference_interval": (0.09, 0.11), "difference_both_interval": (-0.1, 0.3)}
    mean = task_mean(seeds_of(2, difference=0.1, interval=(0.4, 0.6), seeds=5, **intervals))
    assert mean.difference_interval == pytest.approx((0.1 - 0.01 / 2**0.5, 0.1 + 0.01 / 2**0.5))
    assert mean.tested_interval == pytest.approx((0.1 - 0.2 / 2**0.5, 0.1 + 0.2 / 2**0.5))
    assert mean.tested_over == "seeds and documents"
    assert mean.p > 0.05


@pytest.mark.parametrize(
    ("difference", "interval"), [(0.03, (0.01, 0.12)), (-0.03, (-0.12, -0.01))]
)
def test_the_p_of_an_average_is_of_the_side_that_faces_zero(difference, interval):
    """Broken by the side that faces away from 0, for an average that rises or one that falls."""
    mean = task_mean([score("a", 0.5, difference=difference, difference_interval=interval)])
    standard_error = 0.02 / norm.ppf(0.975)
    assert mean is not None
    assert mean.p == pytest.approx(2 * norm.sf(0.03 / standard_error))


def test_a_run_that_was_not_asked_for_is_a_control():
    """Broken by a calibration run whose comparison changes the p of the scores."""
    [requested, calibration] = seeds_of(2, p=0.02, difference=0.1)
    p_values = {seed_score.comparison: seed_score.p for seed_score in (requested, calibration)}
    family = Family.of(p_values, controls={calibration.run_id})
    assert family.tests == {"scores": 1, "controls": 1}
    assert family.correct(requested).p_holm == 0.02
    assert Family.of(p_values).correct(requested).p_holm == 0.04
