"""Breaks if seeds of different runs are mixed, or if a summary's numbers are not those of its runs."""

import json
import math
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lm_eval.api.metrics import bits_per_byte, weighted_perplexity
from scipy.stats import t

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.models.memory import ModelPool
from moe_lab.reports.scores import CommandTable
from moe_lab.reports.terminal import print_scores
from moe_lab.results.atomic import plain
from moe_lab.results.rounding import Rounding
from moe_lab.results.score_table import SeedGroup, family_of
from moe_lab.runs.execute import execute
from moe_lab.runs.prepare import prepare
from moe_lab.runs.run import Outcome
from moe_lab.runs.seed_scores import TaskScores, difference_of
from moe_lab.runs.summaries import summarize, summary, write_summaries
from moe_lab.tasks.judges import toy
from tests.support.runs import config, small_data


def files_of(groups: list[SeedGroup]) -> list[Path]:
    write_summaries(groups)
    return [group.file for group in groups if group.file is not None]


def shown(capsys: pytest.CaptureFixture[str], groups: list[SeedGroup]) -> str:
    """What the terminal shows of summaries."""
    capsys.readouterr()
    print_scores(CommandTable([], groups, family_of(groups)))
    return capsys.readouterr().out


def of_seeds(one: Config, seeds: int = 2, **changes: Any) -> list[Outcome]:
    """The configuration with other values, executed with each seed."""
    return [execute(prepare(replace(one, seed=seed, **changes)), POOL) for seed in range(seeds)]


POOL = ModelPool()


@pytest.fixture
def roe(tiny_olmoe_dir: Path, tmp_path: Path) -> Config:
    data = small_data(tmp_path / "data")
    keys = {"n": 2, "temperature": 3.0}
    return config(
        tiny_olmoe_dir, data, tmp_path / "out", "arc_easy", "roe", method_keys=keys, baseline=False
    )


@pytest.mark.slow
def test_one_summary_per_run_with_several_seeds(roe):
    outcomes = [*of_seeds(roe, 3), *of_seeds(roe, 1, limit=4)]
    files = files_of(summarize(outcomes))
    assert len(files) == 1 and files[0].parent == Path(roe.output_dir) / "summaries"
    content = json.loads(files[0].read_text())
    assert content["seeds"] == [0, 1, 2] and content["run_ids"] == [
        one.run.run_id for one in outcomes[:3]
    ]
    values = [one.results["results"]["arc_easy"]["acc,none"] for one in outcomes[:3]]
    score = content["scores"]["arc_easy"]["acc,none"]
    assert score["values"] == values and score["mean"] == pytest.approx(sum(values) / 3)
    low, high = score["ci95_documents"]
    assert low <= score["mean"] <= high
    if len(set(values)) == 1:
        assert score["ci95_seeds"] is None and score["std"] == 0
    else:
        assert score["ci95_seeds"][0] <= score["mean"] <= score["ci95_seeds"][1]
    assert content["partial"] is False and content["untuned"] is True


@pytest.mark.slow
def test_a_summary_compares_with_the_untouched_model_by_document(roe):
    assert roe.baseline is False
    alone = plain(summary(of_seeds(roe, limit=4)))
    assert "difference_ci95_documents" not in alone["scores"]["arc_easy"]["acc,none"]
    outcomes = of_seeds(roe, limit=4, baseline=True)
    scores = plain(summary(outcomes))["scores"]["arc_easy"]["acc,none"]
    before = outcomes[0].results["moe_lab"]["baseline"]["results"]["arc_easy"]["acc,none"]
    low, high = scores["difference_ci95_documents"]
    assert low <= scores["mean"] - before <= high
    if len(set(scores["values"])) == 1:
        assert scores["difference_ci95_seeds"] is None and scores["ci95_seeds"] is None
    else:
        moved = [one - before for one in scores["ci95_seeds"]]
        assert scores["difference_ci95_seeds"] == pytest.approx(moved)


@pytest.mark.slow
def test_a_summary_compares_seed_by_seed_with_what_else_a_run_is_compared_with(
    roe, monkeypatch, capsys
):
    """Documents vary far more than the difference does, which is 1 with the first seed and 2 with the second."""
    noise = np.random.default_rng(0).normal(0, 0.1, (4, 8))
    shift = np.array([10, 11, 20, 22])  # hot, own; hot, own
    table = (100.0 * np.arange(8) + shift[:, None] + noise).tolist()
    asked = judged_as(table, roe, monkeypatch)
    runs = []
    for seed in (0, 1):
        one = replace(asked, seed=seed)
        hot = prepare(replace(one, method=replace(roe.method, temperature=9.0)))
        runs.append(replace(prepare(one), comparisons={"hot": hot}))
    groups = summarize([execute(run, POOL) for run in runs])
    files = files_of(groups)
    found = json.loads(files[0].read_text())["scores"]["toy_safety"]["toy,none"]["compared"]["hot"]
    means = np.mean(table, axis=1)
    assert found["mean"] == pytest.approx(means[[0, 2]].mean())
    first, second = means[1] - means[0], means[3] - means[2]
    middle, half = (first + second) / 2, 12.7062 * (second - first) / 2
    assert found["difference"] == pytest.approx(middle)
    assert found["difference_ci95_seeds"] == pytest.approx([middle - half, middle + half], abs=1e-4)
    low, high = found["difference_ci95_documents"]
    assert middle - 0.2 < low < middle < high < middle + 0.2
    assert " hot " in shown(capsys, groups)
    alone = files_of(summarize([execute(replace(run, comparisons={}), POOL) for run in runs]))
    assert alone != files and files[0].exists(), "a command that compares less takes nothing away"


@pytest.mark.slow
def test_the_table_over_seeds_has_the_marks_of_its_runs_and_what_tells_them_apart(roe, capsys):
    outcomes = []
    for n in (2, 3):
        overrides = ["method=roe", f"method.n={n}"]
        outcomes += of_seeds(roe, limit=2, method=replace(roe.method, n=n), overrides=overrides)
    outcomes[0].results.versions["lm_eval"] = "0.0.1"
    assert "PARTIAL untuned other-versions" in " ".join(shown(capsys, summarize(outcomes)).split())
    outcomes[0].results.versions["lm_eval"] = version("lm_eval")
    out = shown(capsys, summarize(outcomes))
    assert "PARTIAL untuned" in out and "older-intervals" not in out and "other-versions" not in out
    assert "method.n=2" in out and "method.n=3" in out


@pytest.mark.slow
def test_without_metrics_a_summary_shows_no_score(roe, capsys):
    groups = summarize(of_seeds(roe, limit=2, predict_only=True))
    assert files_of(groups)
    out = shown(capsys, groups)
    assert "999" not in out and "bypass" not in out and len(out.split()) == 1, "the title alone"


@pytest.mark.slow
def test_runs_of_repeated_studies_are_one_summary(roe):
    """Their temperatures differ, and nothing but the caller's list says that they belong together."""
    methods = [replace(roe.method, temperature=temperature) for temperature in (1.0, 2.0)]
    outcomes = [
        outcome for method in methods for outcome in of_seeds(roe, 1, limit=2, method=method)
    ]
    assert files_of(summarize(outcomes)) == []
    run_ids = [outcome.run.run_id for outcome in outcomes]
    [group] = summarize(outcomes, [run_ids])
    [file] = files_of([group])
    assert json.loads(file.read_text())["run_ids"] == run_ids


def judged_as(
    table: list[list[float | None]], roe: Config, monkeypatch: pytest.MonkeyPatch
) -> Config:
    """Eight answers of the safety task; the n-th evaluation gets the table's n-th row of scores, None for no verdict."""
    rows = iter(table)

    class Told(toy.ToyJudge):
        def judge(self, exchanges):
            for _, score in zip(exchanges, next(rows), strict=True):
                scores = {"scores": {"toy": score, "toy_flagged": 1.0}}
                yield {"judge": "toy", **({"failed": "unclear"} if score is None else scores)}

    monkeypatch.setattr(toy, "ToyJudge", Told)
    roe = replace(roe, task=TaskConfig(name="toy_safety", judges=["toy"]), data_dir=None, limit=8)
    return replace(roe, apply_chat_template=False, gen_kwargs={"max_gen_toks": 2})


@pytest.mark.slow
def test_seeds_with_other_unjudged_answers_are_compared_on_what_all_have(roe, monkeypatch, capsys):
    """Each seed lacks another answer of eight: six have a score with all."""
    table = [[None if i == seed else i / 10 + seed for i in range(8)] for seed in (0, 1)]
    asked = judged_as(table, roe, monkeypatch)
    groups = summarize(of_seeds(asked))
    files = files_of(groups)
    score = json.loads(files[0].read_text())["scores"]["toy_safety"]["toy,none"]
    means = [sum(range(1, 8)) / 70, (0 + sum(range(2, 8))) / 70 + 1]
    assert score["values"] == pytest.approx(means)
    both = [i / 10 + 0.5 for i in range(2, 8)]
    low, high = score["ci95_documents"]
    assert min(both) <= low < sum(both) / 6 < high <= max(both)
    assert "toy-judge" in shown(capsys, groups)


@pytest.mark.parametrize(("aggregate", "tested"), [(weighted_perplexity, True), (max, False)])
def test_a_score_that_is_no_mean_is_tested_by_its_log_likelihoods_or_not_at_all(aggregate, tested):
    base = {number: (-9.0 - number % 7, 5) for number in range(40)}
    seeds = [[(log + 1 + seed / 10, words) for log, words in base.values()] for seed in range(5)]
    scores = (
        [aggregate(values) for values in seeds] if tested else [float(seed) for seed in range(5)]
    )
    score = aggregate([*base.values()]) if tested else 0.0
    other = TaskScores({"m": score}, {"m": base})
    if not tested:
        seeds = [[log for log, _ in values] for values in seeds]
        other = TaskScores({"m": score}, {"m": {number: log for number, (log, _) in base.items()}})
    equal_examples = partial(Rounding("float32").equal_examples, words=[1] * 40)
    found = difference_of(scores, seeds, [other], "m", aggregate, equal_examples)
    assert found.difference == pytest.approx(sum(scores) / 5 - score)
    assert (found.p_documents is not None) == tested == ("difference_p_both" in found.to_json())
    if found.p_documents is not None:
        assert found.p_documents < 0.01 and found.difference < 0


def test_documents_that_rounding_moved_are_ties():
    """Two of 40 documents really changed; the others by rounding, all in one direction."""
    base = {number: -9.0 - number for number in range(40)}
    seeds = [
        [log + (1.0 if number < 2 else 1e-6) for number, log in base.items()] for _ in range(2)
    ]
    equal_examples = partial(Rounding("float32").equal_examples, words=[9] * 40)
    scores = [float(np.mean(values)) for values in seeds]
    other = TaskScores({"m": float(np.mean([*base.values()]))}, {"m": base})
    found = difference_of(scores, seeds, [other], "m", None, equal_examples)
    assert not found.equal and found.p_documents is not None and found.p_documents > 0.2
    rounded = difference_of(
        scores, [[log + 1e-6 for log in base.values()]] * 2, [other], "m", None, equal_examples
    )
    assert rounded.equal and rounded.p_documents is None


def crossed_interval(values_SN: list[list[float]]) -> tuple[float, float]:
    """The interval of `significance.crossed_mean`, by loops over seeds and documents."""
    seeds, documents = len(values_SN), len(values_SN[0])
    mean = math.fsum(map(math.fsum, values_SN)) / (seeds * documents)
    of_seed = [math.fsum(row) / documents for row in values_SN]
    of_document = [math.fsum(row[i] for row in values_SN) / seeds for i in range(documents)]
    square_seeds = documents * math.fsum((one - mean) ** 2 for one in of_seed) / (seeds - 1)
    square_documents = seeds * math.fsum((one - mean) ** 2 for one in of_document) / (documents - 1)
    rests = []
    for seed, row in enumerate(values_SN):
        for i, value in enumerate(row):
            rests.append((value - of_seed[seed] - of_document[i] + mean) ** 2)
    square_rest = math.fsum(rests) / ((seeds - 1) * (documents - 1))
    parts = [max(square_seeds, square_rest), max(square_documents, square_rest), -square_rest]
    freedom = [seeds - 1, documents - 1, (seeds - 1) * (documents - 1)]
    degrees = sum(parts) ** 2 / sum(part**2 / df for part, df in zip(parts, freedom, strict=True))
    half = float(t.ppf(0.975, degrees)) * (sum(parts) / (seeds * documents)) ** 0.5
    return mean - half, mean + half


CANCELLING = {
    # 0 or 1: as many documents become right as become wrong
    "accuracy": ([[1.0, 0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0, 1.0]], [0.0, 1.0, 1.0, 0.0, 1.0]),
    # sums of tenths, whose differences cancel but for their last bits
    "tenths": ([[0.3, 0.7, 0.1, 0.6, 0.2], [0.7, 0.1, 0.6, 0.2, 0.3]], [0.1, 0.2, 0.3, 0.6, 0.7]),
}


@pytest.mark.parametrize("kind", CANCELLING)
def test_a_difference_of_five_seeds_that_cancels_is_0_with_the_interval_of_its_test(kind):
    rows, base = CANCELLING[kind]
    seeds = [rows[0], rows[1], rows[0], rows[1], rows[0]]
    scores = [float(np.mean(values)) for values in seeds]
    other = TaskScores({"m": float(np.mean(base))}, {"m": dict(enumerate(base))})
    equal_examples = partial(Rounding("float32").equal_examples, words=[9] * 5)
    found = difference_of(scores, seeds, [other], "m", None, equal_examples)
    differences = [
        [value - before for value, before in zip(row, base, strict=True)] for row in seeds
    ]
    expected = crossed_interval(differences)
    assert found.difference == 0.0 and found.p_both == pytest.approx(1.0)
    assert found.both_interval == pytest.approx(expected, abs=1e-12)


def test_bits_per_byte_have_the_interval_of_their_log_likelihoods():
    random = np.random.default_rng(0)
    lengths = [4, 9, 5, 7, 6, 8]
    base = [(-5.0 - i, length) for i, length in enumerate(lengths)]
    seeds = [[(log + random.normal(0.5, 0.2), length) for log, length in base] for _ in range(5)]
    scores = [bits_per_byte(values) for values in seeds]
    other = TaskScores({"m": bits_per_byte(base)}, {"m": dict(enumerate(base))})
    equal_examples = partial(Rounding("float32").equal_examples, words=[1] * 6)
    found = difference_of(scores, seeds, [other], "m", bits_per_byte, equal_examples)
    # bits of a document, so that their mean over documents is the difference of the scores
    scale = -len(lengths) / (sum(lengths) * math.log(2))
    moved = [
        [scale * (log - before) for (log, _), (before, _) in zip(row, base, strict=True)]
        for row in seeds
    ]
    expected = crossed_interval(moved)
    assert found.both_interval == pytest.approx(expected, abs=1e-12)
    assert found.difference == pytest.approx(math.fsum(expected) / 2, abs=1e-12)
