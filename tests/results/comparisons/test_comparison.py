"""Comparisons of two logs.

Broken by other numbers than those of a plain loop, a verdict in the wrong direction, a correction
for another number of rows, a score that is aggregated by another function than lm-eval's,
and by what is left out or changed and not said.

Breaks if a document is paired with another one, or if other questions pass for the same.

Breaks if a result is read as another one, or a broken one passes.

Breaks if a comparison reads other files than those that were named.
"""

import gzip
import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lm_eval.api.metrics import weighted_perplexity
from scipy.stats import binomtest

import moe_lab
from moe_lab.errors import ConfigError
from moe_lab.results.atomic import plain
from moe_lab.results.comparisons.comparison import compare
from moe_lab.results.comparisons.evaluation import read_evaluation
from moe_lab.results.comparisons.files import lm_eval_samples, results_file
from moe_lab.results.comparisons.pairing import paired_examples
from moe_lab.results.comparisons.tasks import compare_task, rounding_of
from moe_lab.results.rounding import Rounding
from moe_lab.results.samples import Sample
from moe_lab.results.significance import holm
from moe_lab.results.stored_files import DamagedError
from tests.support.lm_eval_logs import DATE, LATER, evaluation, sample, samples_of, write_log

RANDOM = np.random.default_rng(0)
BINARY = RANDOM.integers(2, size=(2, 60)).astype(float).tolist()


def row(folder: Path, scores_a: list[Any], scores_b: list[Any], **options: Any) -> dict[str, Any]:
    """The row of comparison.json for the values of one metric."""
    scores_by_run = {"a": scores_a, "b": scores_b}.items()
    logs = [
        evaluation(folder, key, {"t": samples_of(acc=values)}, **options)
        for key, values in scores_by_run
    ]
    [score_row] = compare(logs).to_json()["scores"]
    return score_row


@pytest.mark.parametrize("higher_is_better", (True, None, False))
def test_right_and_wrong(tmp_path, higher_is_better):
    """None: the log does not say it, and higher is better."""
    right = []
    wrong = []
    for number, (score_a, score_b) in enumerate(zip(*BINARY, strict=True)):
        is_better = score_b > score_a
        if higher_is_better is False:
            is_better = score_b < score_a
        if score_a == score_b:
            continue
        if is_better:
            right.append(number)
        else:
            wrong.append(number)
    logged: dict[str, Any] = {}
    if higher_is_better is not None:
        logged = {"t": {"acc": higher_is_better}}
    score_row = row(tmp_path, *BINARY, higher_is_better=logged)
    assert score_row["changed"] == {"to_right": right, "to_wrong": wrong}
    assert (score_row["to_right"], score_row["to_wrong"]) == (len(right), len(wrong))
    expected = binomtest(len(right), len(right) + len(wrong), 0.5).pvalue
    assert score_row["p"] == pytest.approx(expected, rel=1e-12)
    assert (score_row["examples"], score_row["test"]) == (60, "McNemar")
    assert (score_row["other_value"], score_row["value"]) == pytest.approx(
        tuple(np.mean(BINARY, axis=1))
    )
    assert score_row["difference"] == pytest.approx(score_row["value"] - score_row["other_value"])
    assert score_row["difference_low"] < score_row["difference"] < score_row["difference_high"]


def test_other_scores_have_a_permutation_test_and_no_changed_answers(tmp_path):
    values = RANDOM.normal(size=30)
    score_row = row(tmp_path, values.tolist(), (values + 1).tolist())
    assert (score_row["test"], score_row["p"]) == ("permutation", 1e-4)
    assert score_row["to_right"] is None
    assert score_row["changed"] is None


def test_equal_scores_have_no_test_and_one_document_no_interval(tmp_path):
    score_row = row(tmp_path, [0.3, 0.5], [0.3, 0.5])
    assert (score_row["verdict"], score_row["p"], score_row["test"]) == (
        "equal within rounding",
        None,
        None,
    )
    assert row(tmp_path / "one", [0.0], [1.0])["difference_low"] is None
    configs = [{"model_dtype": f"torch.{dtype}"} for dtype in ("float32", "float32", "bfloat16")]
    a, b, c = (
        evaluation(tmp_path, f"{i}", {"t": HALF}, config=run_config)
        for i, run_config in enumerate(configs)
    )
    assert (rounding_of(a, b).dtype, rounding_of(a, c).dtype) == ("float32", None)


@pytest.mark.parametrize(
    ("bound_a", "bound_b", "verdict"),
    [
        (0.3, 0.1, "equal within rounding"),
        (None, 0.3, "equal within rounding"),
        (0.1, 0.1, "better"),
        (None, None, "better"),
    ],
)
def test_in_half_precision_the_larger_measured_bound_of_two_runs_decides(
    tmp_path, bound_a, bound_b, verdict
):
    """The log-likelihoods of every document differ by 0.2."""
    bounds = {"a": bound_a, "b": bound_b}
    runs = []
    for number, (key, bound) in enumerate(bounds.items()):
        log_likelihoods = [-20 - document + 0.2 * number for document in range(30)]
        lines = samples_of(acc=log_likelihoods)
        for line in lines:
            line["arguments"] = {"gen_args_0": {"arg_0": "Question:", "arg_1": " one answer"}}
        log = evaluation(tmp_path, key, {"t": lines})
        runs.append(replace(log, rounding=Rounding("bfloat16", bound)))
    [score_row] = compare(runs).to_json()["scores"]
    assert score_row["verdict"] == verdict


ZEROS = samples_of(acc=[0.0] * 12)
ONES = samples_of(acc=[1.0] * 12)
HALF = samples_of(acc=[0.0, 1.0] * 6)


def test_all_rows_of_the_command_are_corrected_together(tmp_path):
    a = evaluation(tmp_path, "a", {"t": ZEROS, "u": HALF})
    b1 = evaluation(tmp_path, "b1", {"t": ONES, "u": HALF})
    b2 = evaluation(tmp_path, "b2", {"t": HALF, "u": HALF})
    scores = compare([a, b1, b2]).scores
    expected = [("b1", "t"), ("b1", "u"), ("b2", "t"), ("b2", "u")]
    assert [(score.run_id, score.task) for score in scores] == expected
    assert [score.p for score in scores] == pytest.approx([2 / 2**12, 1, 2 / 2**6, 1])
    corrected = holm([score.p for score in scores])
    assert [score.p_holm for score in scores] == pytest.approx(corrected)
    assert [score.significant for score in scores] == [True, False, False, False]
    corrected_alone = compare([a, b2]).scores[0]
    assert corrected_alone.p_holm == pytest.approx(2 * corrected_alone.p)


def test_what_differs_is_said(tmp_path):
    a = evaluation(tmp_path, "a", {"t": ZEROS, "u": HALF}, **{"n-samples": {"t": {"original": 40}}})
    b = evaluation(
        tmp_path, "b", {"t": ONES, "v": HALF}, versions={"t": 2, "v": 1}, lm_eval_version="0.4.12"
    )
    assert compare([a, b]).notes == [
        "Only in a, and not compared: u.",
        "Only in b, and not compared: v.",
        "a was made with lm_eval 0.4.13, b with 0.4.12.",
        "t is version 1 in a and 2 in b.",
        "t: 12 of 40 documents (PARTIAL); not the benchmark's number.",
    ]


def test_nothing_in_common_is_refused(tmp_path):
    a = evaluation(tmp_path, "a", {"t": ZEROS})
    with pytest.raises(ConfigError, match=r"no task in common: t in .*, u in "):
        compare([a, evaluation(tmp_path, "b", {"u": ONES})])
    with pytest.raises(ConfigError, match="no score in common"):
        compare([a, evaluation(tmp_path, "c", {"t": samples_of(f1=[0.5] * 12)})])


def test_notes_of_one_pair_are_not_in_the_error_of_another(tmp_path):
    """Broken by one list of notes for all pairs of a command."""
    a = evaluation(tmp_path, "a", {"t": ZEROS, "u": HALF})
    b1 = evaluation(tmp_path, "b1", {"t": ONES}, lm_eval_version="0.4.12")
    b2 = evaluation(tmp_path, "b2", {"u": samples_of(f1=[0.5] * 12)})
    with pytest.raises(ConfigError, match="a and b2 have no score in common") as error:
        compare([a, b1, b2])
    assert "b1" not in str(error.value)
    assert "0.4.12" not in str(error.value)


def test_a_score_whose_filter_is_missing_in_a_log_is_not_compared_and_it_is_said(tmp_path):
    """Broken by a lookup of the filter's documents before the check for the score."""
    strict = samples_of(filter="strict", acc=[1.0] * 12)
    scores = {"t": {"acc,none": 0.0, "acc,strict": 1.0}}
    a = evaluation(tmp_path, "a", {"t": [*ZEROS, *strict]}, scores=scores)
    b = evaluation(tmp_path, "b", {"t": ZEROS}, scores=scores)
    comparison = compare([a, b])
    assert [score.metric for score in comparison.scores] == ["acc,none"]
    [note] = comparison.notes
    assert note.startswith("Not compared: acc,strict of t, whose score does not follow from")


def test_the_content_is_plain_json(tmp_path):
    a = evaluation(tmp_path, "a", {"t": ZEROS})
    b = evaluation(tmp_path, "b", {"t": HALF})
    content = plain(compare([a, b]))
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    [row] = content["scores"]
    assert row["changed"]["to_right"] == [1, 3, 5, 7, 9, 11]
    assert row["verdict"] == "better"
    assert content["evaluations"][1]["samples"] == {"t": str(b.samples_files["t"])}


def rows_of(
    tmp_path: Path, samples_a: list[Any], samples_b: list[Any], *groups: Any
) -> tuple[Any, list[str]]:
    mine_more, theirs_more = groups or ({}, {})
    a = evaluation(tmp_path, "a", {"t": samples_a}, **mine_more)
    b = evaluation(tmp_path, "b", {"t": samples_b}, **theirs_more)
    partial = compare_task(a, b, "t")
    return partial.scores, partial.notes


def test_every_metric_and_filter_of_both(tmp_path):
    samples_a = samples_of("strict", acc=[1.0, 0.0], f1=[0.5, 0.25]) + samples_of(
        "flexible", acc=[1.0, 1.0]
    )
    samples_b = samples_of("strict", acc=[1.0, 1.0]) + samples_of(
        "flexible", acc=[0.0, 1.0], em=[1.0, 1.0]
    )
    rows, notes = rows_of(tmp_path, samples_a, samples_b)
    expected = [("acc,strict", 0.5, 1), ("acc,flexible", 1, 0.5)]
    assert [(row.metric, row.baseline, row.value) for row in rows] == expected
    assert notes == [
        "Only in a, and not compared: f1,strict of t.",
        "Only in b, and not compared: em,flexible of t.",
    ]


@pytest.mark.parametrize("named", (True, False), ids=("named", "by the metric"))
def test_a_perplexity_is_lm_evals(tmp_path, named):
    entry = {"metric": "word_perplexity"}
    if named:
        entry["aggregation"] = "weighted_perplexity"
    values_a = [(-10.0, 5), (-7.0, 2), (-3.0, 4)]
    values_b = [(-11.0, 5), (-6.0, 2), (-3.5, 4)]
    score_a = weighted_perplexity(values_a)
    score_b = weighted_perplexity(values_b)
    configs = {"t": {"metric_list": [entry]}}
    [row], notes = rows_of(
        tmp_path,
        samples_of(word_perplexity=values_a),
        samples_of(word_perplexity=values_b),
        {"scores": {"t": {"word_perplexity,none": score_a}}, "configs": configs},
        {"scores": {"t": {"word_perplexity,none": score_b}}, "configs": configs},
    )
    assert row.baseline == pytest.approx(score_a)
    assert row.value == pytest.approx(score_b)
    assert row.difference == pytest.approx(score_b - score_a)
    assert not notes


@pytest.mark.parametrize("judged", [True, False])
def test_a_score_that_the_samples_do_not_give_is_not_compared(tmp_path, judged):
    """Another score than theirs, and no answer of the second evaluation that has a verdict."""
    samples_a = samples_of(acc=[1.0, 0.0])
    samples_b = samples_of(acc=[1.0, 0.0])
    for line in [] if judged else samples_b:
        del line["acc"]
        line["metrics"] = []
    scores = {"t": {"acc,none": 0.75 if judged else 0.5}}
    rows, notes = rows_of(tmp_path, samples_a, samples_b, {}, {"scores": scores})
    assert not rows
    assert notes[0].startswith("Not compared: acc,none of t, whose score")


def test_documents_without_a_value_are_left_out_of_both(tmp_path):
    """An answer that a judge has no verdict on has no metric."""
    samples_a = samples_of(acc=[1.0, 0.0, 1.0, 0.0])
    samples_b = samples_of(acc=[0.0, 1.0, 1.0, 0.0])
    del samples_a[0]["acc"]
    samples_a[0]["metrics"] = []
    [row], notes = rows_of(tmp_path, samples_a, samples_b)
    assert (row.n, row.baseline, row.value) == (3, 1 / 3, 2 / 3)
    assert row.changed == (1, 0)
    assert notes == ["acc,none of t: 1 documents without a value are left out."]


TASKS = {"group_subtasks": {"g": ["g_inner", "u"], "g_inner": ["t"]}}
MINE = {"t": samples_of(acc=[1.0, 0.0, 0.0, 1.0]), "u": samples_of(acc=[1.0, 0.0])}
THEIRS = {"t": samples_of(acc=[1.0, 1.0, 1.0, 0.0]), "u": samples_of(acc=[1.0, 1.0])}


def compared(tmp_path: Path, score_a: float, score_b: float, **options: Any) -> Any:
    def score(value: float) -> dict[str, Any]:
        return {
            "scores": {"g": {"acc,none": value}},
            "groups": {"g": {"acc,none": value}},
            **TASKS,
            **options,
        }

    a = evaluation(tmp_path, "a", MINE, **score(score_a))
    b = evaluation(tmp_path, "b", THEIRS, **score(score_b))
    return compare([a, b])


def test_a_mean_over_documents_is_one_sample_of_them(tmp_path):
    comparison = compared(tmp_path, 3 / 6, 5 / 6)
    assert [score.task for score in comparison.scores] == ["t", "u", "g"]
    group = comparison.scores[-1]
    assert (group.n, group.baseline, group.value) == (6, 0.5, 5 / 6)
    assert group.changed == (3, 1)
    assert group.comparison not in comparison.changed


def test_tasks_without_the_filter_are_no_part_of_the_group(tmp_path):
    scores = {"g": {"acc,again": 1.0}}
    logs = [{"t": lines["t"], "u": samples_of("again", acc=[1.0, 1.0])} for lines in (MINE, THEIRS)]
    a, b = (
        evaluation(tmp_path, key, log, scores=scores, groups=scores, **TASKS)
        for key, log in zip("ab", logs, strict=True)
    )
    comparison = compare([a, b])
    assert [(score.task, score.metric, score.n) for score in comparison.scores[2:]] == [
        ("g", "acc,again", 2)
    ]
    assert not comparison.notes


def test_a_mean_of_tasks_is_left_out_and_said(tmp_path):
    comparison = compared(tmp_path, 0.5, (0.75 + 1) / 2)
    assert [score.task for score in comparison.scores] == ["t", "u"]
    assert "Not compared: acc,none of the group g" in comparison.notes[-1]


def test_where_lower_is_better_the_difference_keeps_its_sign(tmp_path):
    lower = {task: {"acc": False} for task in "tu"}
    group = compared(tmp_path, 3 / 6, 5 / 6, higher_is_better=lower).scores[-1]
    assert (group.task, group.baseline, group.value) == ("g", 0.5, 5 / 6)
    assert group.difference == pytest.approx(2 / 6)
    assert group.changed == (1, 3)
    low, high = group.difference_interval
    assert low < group.difference < high


def pairs_of(
    tmp_path: Path, samples_a: list[Any], samples_b: list[Any], **options: Any
) -> dict[str, list[Any]]:
    a = evaluation(tmp_path, "a", {"t": samples_a})
    b = evaluation(tmp_path, "b", {"t": samples_b}, **options)
    return paired_examples(a, b, "t")


def test_documents_are_paired_by_content_whatever_their_order_and_number(tmp_path):
    samples_a = [sample(i, text=f"text {i}", acc=float(i)) for i in (3, 0, 2)]
    samples_b = [sample(10 + i, text=f"text {i}", acc=float(-i)) for i in (2, 3, 0)]
    [(name, pairs)] = pairs_of(tmp_path, samples_a, samples_b).items()
    assert name == "none"
    expected = [(0, 0, 0), (2, 2, -2), (3, 3, -3)]
    assert [(x.document, x.values["acc"], y.values["acc"]) for x, y in pairs] == expected


def test_equal_documents_are_paired_in_their_order(tmp_path):
    samples_a = [sample(i, text="same", acc=float(i)) for i in range(3)]
    pairs = pairs_of(tmp_path, samples_a, samples_a)["none"]
    assert [(x.values["acc"], y.values["acc"]) for x, y in pairs] == [(0, 0), (1, 1), (2, 2)]


def test_each_filter_is_paired_on_its_own(tmp_path):
    strict = samples_of("strict", acc=[0.0, 1.0])
    flexible = samples_of("flexible", acc=[1.0, 1.0])
    pairs = pairs_of(tmp_path, strict + flexible, flexible + samples_of("other", acc=[0.0, 0.0]))
    assert list(pairs) == ["flexible"]
    assert [(x.filter, y.filter) for x, y in pairs["flexible"]] == [("flexible", "flexible")] * 2


def test_other_documents_and_a_part_of_them_are_refused(tmp_path):
    samples_b = [sample(i, text="" if i < 3 else f"new {i}", acc=0.0) for i in range(9)]
    for other_samples, only in (
        (samples_b, "2 of 5 are only in a, 6 of 9"),
        (samples_of(acc=[0.0] * 2), "3 of 5 .*0 of 2"),
    ):
        with pytest.raises(ConfigError, match=f"Other documents of t: {only} only in b"):
            pairs_of(tmp_path, samples_of(acc=[0.0] * 5), other_samples)


@pytest.mark.parametrize("what", ["prompt", "target"])
def test_other_questions_are_refused(tmp_path, what):
    samples_b = samples_of(acc=[0.0] * 4)
    for line in samples_b[1:3]:
        line[f"{what}_hash"] = "other"
    message = r"(prompts|right answers) of t: 2 of 4 documents. The first is document 1"
    with pytest.raises(ConfigError, match=message):
        pairs_of(tmp_path, samples_of(acc=[0.0] * 4), samples_b)


LINES = samples_of(acc=[1.0, 0.0])


def test_a_result_of_lm_eval(tmp_path):
    better = {"t": {"acc": False}}
    arguments = {"model_args": {"pretrained": "/models/mine/", "dtype": "float32"}}
    settings = {"model_name": "/models/mine/", "higher_is_better": better, "config": arguments}
    file = write_log(tmp_path, {"t": LINES}, **settings)
    evaluation_read = read_evaluation("b", tmp_path)
    assert (evaluation_read.key, evaluation_read.label, evaluation_read.file) == ("b", "mine", file)
    assert evaluation_read.settings == "pretrained=/models/mine/,dtype=float32"
    assert evaluation_read.samples == {"t": list(map(Sample.of, LINES))}
    assert evaluation_read.results.scores("t")["acc,none"] == 0.5
    assert evaluation_read.results.better("t", "acc,none") is False
    assert evaluation_read.results.better("t", "f1,none") is None


def test_a_run_of_this_package(tmp_path):
    file = write_log(tmp_path, {"t": LINES})
    results = json.loads(file.read_text())
    block = {"model": {"name": "tiny"}, "method": {"name": "roe"}, "samples": {"t": [0, 1]}}
    block |= {"run_id": "r", "task": {"name": "t", "tasks": ["t"]}, "versions": {}}
    block["overrides"] = ["method.n=8", "limit=2"]
    (tmp_path / "results.json").write_text(json.dumps(results | {"moe_lab": block}))
    (tmp_path / f"samples_t_{DATE}.jsonl").rename(tmp_path / "samples_t.jsonl")
    evaluation_read = read_evaluation("a", tmp_path)
    assert (evaluation_read.label, evaluation_read.samples) == (
        "tiny-roe",
        {"t": list(map(Sample.of, LINES))},
    )
    assert evaluation_read.settings == "method.n=8 limit=2"


def test_a_summary_over_seeds_and_other_files_are_refused(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"run_ids": ["0123456789"], "scores": {}}))
    with pytest.raises(
        ConfigError, match=r"no result of lm-eval or moe_lab. Give the folder of a run"
    ):
        read_evaluation("a", tmp_path / "x.json")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty"),
        ('{"doc_id": 0}\n', "lines lack doc_hash, filter, metrics"),
        ("{", "damaged"),
    ],
)
def test_a_broken_sample_log(tmp_path, text, reason):
    write_log(tmp_path, {"t": LINES})
    (tmp_path / f"samples_t_{DATE}.jsonl").write_text(text)
    with pytest.raises(DamagedError, match=reason):
        read_evaluation("a", tmp_path)


ONE = {"t": samples_of(acc=[1.0])}


def test_a_file_and_the_folders_around_it_mean_the_same(tmp_path):
    file = write_log(tmp_path / "out" / "org__model", ONE)
    for path in (file, file.parent, tmp_path / "out"):
        assert results_file("a", path) == file


def test_a_file_of_ones_own_name(tmp_path):
    """`--output_path mine.json` becomes mine_<date>.json."""
    file = write_log(tmp_path, ONE)
    renamed = file.rename(tmp_path / f"mine_{DATE}.json")
    assert results_file("a", tmp_path) == renamed
    assert lm_eval_samples(renamed, "t") == tmp_path / f"samples_t_{DATE}.jsonl"


def test_the_newest_of_several_is_taken_and_said(tmp_path, capsys):
    write_log(tmp_path, ONE)
    newest = write_log(tmp_path, ONE, date=LATER)
    assert results_file("b", tmp_path) == newest
    assert capsys.readouterr().err == f"b={newest} is the newest of 2 results there.\n"


def test_results_in_several_folders_are_named(tmp_path):
    for name in ("one", "two"):
        write_log(tmp_path / name, ONE)
    with pytest.raises(ConfigError, match=f"in 2 folders.*a={tmp_path}/one"):
        results_file("a", tmp_path)


def test_no_results(tmp_path):
    write_log(tmp_path / "one", ONE)
    for path in (tmp_path / "two", tmp_path / "one" / f"samples_t_{DATE}.jsonl"):
        with pytest.raises(ConfigError, match="has no results"):
            results_file("a", path)


def test_samples_that_are_missing_or_unknown(tmp_path):
    file = write_log(tmp_path, ONE)
    with pytest.raises(ConfigError, match="--log_samples"):
        lm_eval_samples(file, "u")
    with pytest.raises(ConfigError, match="results_<date>.json"):
        lm_eval_samples(tmp_path / "renamed.json", "t")


# Files as other tools leave them


def test_one_document_has_a_page(tmp_path):
    """There is no interval of one document, and so no picture."""
    files = [
        write_log(tmp_path / key, {"t": samples_of(acc=[value])})
        for key, value in (("a", 0.0), ("b", 1.0))
    ]
    compared = moe_lab.compare(*files, output_dir=tmp_path / "out")
    assert compared.page.is_file()
    assert "<svg" not in compared.page.read_text()


@pytest.mark.parametrize("value", [None, "nine", [1.0, 0]])
@pytest.mark.parametrize("metric", ["word_perplexity", "f1"])
def test_values_that_are_no_numbers_are_not_compared_and_it_is_said(tmp_path, metric, value):
    log = samples_of(acc=[0.0, 1.0], **{metric: [value, 1.0]})
    config = {"t": {"metric_list": [{"metric": "acc"}, {"metric": metric}]}}
    scores = {"t": {"acc,none": 0.5, f"{metric},none": 0.5}}
    a = evaluation(tmp_path, "a", {"t": log}, scores=scores, configs=config)
    b = evaluation(tmp_path, "b", {"t": log}, scores=scores, configs=config)
    comparison = compare([a, b])
    assert [score.metric for score in comparison.scores] == ["acc,none"]
    assert any(metric in note for note in comparison.notes)


def test_a_folder_and_its_own_file_are_one_result(tmp_path):
    file = write_log(tmp_path / "a", {"t": samples_of(acc=[0.0, 1.0])})
    with pytest.raises(ConfigError, match="the same result twice"):
        moe_lab.compare(file.parent, file, output_dir=tmp_path / "out")


def test_documents_without_a_hash_are_paired_by_their_order_and_it_is_said(tmp_path):
    log = [sample(i, acc=1.0) | {"doc_hash": None} for i in range(3)]
    a = evaluation(tmp_path, "a", {"t": log})
    b = evaluation(tmp_path, "b", {"t": log})
    note = "t: the log of a has no doc_hash, so documents are paired by their order."
    assert note in compare([a, b]).notes


def test_a_compressed_log_with_a_byte_order_mark_and_a_blank_line_is_read(tmp_path):
    file = write_log(tmp_path / "a", {"t": samples_of(acc=[0.0, 1.0])})
    expected = read_evaluation("a", file).samples
    log = lm_eval_samples(file, "t")
    compressed = log.with_name(f"{log.name}.gz")
    compressed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + log.read_bytes() + b"\n \n"))
    log.unlink()
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert read_evaluation("a", file).samples == expected


@pytest.mark.parametrize(
    "credentials",
    [
        "pretrained=x,api_key=sk-123,base_url=https://me:sk-123@host/v1,add_bos_token=True",
        {
            "pretrained": "x",
            "api_key": "sk-123",
            "base_url": "https://me:sk-123@host/v1",
            "add_bos_token": "True",
        },
    ],
)
def test_credentials_of_others_are_not_repeated(tmp_path, credentials):
    config = {"model": "local-completions", "model_args": credentials}
    files = [
        write_log(tmp_path / key, {"t": samples_of(acc=[0.0, value])}, config=config)
        for key, value in (("a", 0.0), ("b", 1.0))
    ]
    compared = moe_lab.compare(*files, output_dir=tmp_path / "out")
    written = (
        compared.page.read_text() + compared.file.read_text() + repr(read_evaluation("a", files[0]))
    )
    assert "sk-123" not in written
    settings = "pretrained=x,api_key=***,base_url=https://...@host/v1,add_bos_token=True"
    assert read_evaluation("a", files[0]).settings == settings


def test_an_infinite_score_is_not_compared_and_it_is_said(tmp_path):
    """lm-eval writes minus infinity for the log-likelihood of an impossible token.

    The mean is minus infinity, too.
    """
    values = {"a": [-1.0, -2.0, -3.0], "b": [-1.0, -math.inf, -3.0]}
    logs = [
        evaluation(tmp_path, key, {"t": samples_of(loglikelihood=lines, acc=[1.0, 0.0, 1.0])})
        for key, lines in values.items()
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        comparison = compare(logs)
    assert [score.metric for score in comparison.scores] == ["acc,none"]
    assert comparison.notes == ["Not compared: loglikelihood,none of t, which is infinite in b."]


@pytest.mark.parametrize("missing", [None, math.nan])
def test_null_and_nan_are_no_value(tmp_path, missing):
    lines = {"a": samples_of(acc=[1.0, missing, 0.0]), "b": samples_of(acc=[0.0, 1.0, 0.0])}
    scores = {"a": 0.5, "b": 1 / 3}
    logs = [
        evaluation(tmp_path, key, {"t": lines[key]}, scores={"t": {"acc,none": scores[key]}})
        for key in "ab"
    ]
    comparison = compare(logs)
    [row] = comparison.scores
    assert (row.n, row.baseline, row.value) == (2, 0.5, 0.0)
    assert "acc,none of t: 1 documents without a value are left out." in comparison.notes
