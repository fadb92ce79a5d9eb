"""Summaries over seeds.

Broken by seeds of different runs that are mixed, and by a summary whose numbers
are not those of its runs.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.models.memory import ModelPool
from moe_lab.reports.scores import CommandTable
from moe_lab.reports.terminal import print_scores
from moe_lab.results.atomic import plain
from moe_lab.results.score_table import SeedGroup, family_of
from moe_lab.results.seed_summary import SeedSummary
from moe_lab.runs.execute import execute
from moe_lab.runs.prepare import prepare
from moe_lab.runs.run import Outcome
from moe_lab.runs.summaries import summarize, summary, write_summaries
from moe_lab.tasks.judges import toy
from tests.support.runs import config, small_data
from tests.support.stored_results import result_with

POOL = ModelPool()


def files_of(groups: list[SeedGroup]) -> list[Path]:
    """The files of summaries, which this writes."""
    write_summaries(groups)
    return [group.file for group in groups if group.file is not None]


def score_in(file: Path, task: str, metric: str) -> dict[str, Any]:
    return json.loads(file.read_text())["scores"][task][metric]


def shown(capsys: pytest.CaptureFixture[str], groups: list[SeedGroup]) -> str:
    """What the terminal shows of summaries."""
    capsys.readouterr()
    print_scores(CommandTable([], groups, family_of(groups)))
    return capsys.readouterr().out


def of_seeds(run_config: Config, seeds: int = 2, **changes: Any) -> list[Outcome]:
    """The configuration with other values, executed with each seed."""
    outcomes = []
    for seed in range(seeds):
        outcomes.append(execute(prepare(replace(run_config, seed=seed, **changes)), POOL))
    return outcomes


@pytest.fixture
def roe(tiny_olmoe_dir: Path, tmp_path: Path) -> Config:
    return config(
        tiny_olmoe_dir,
        small_data(tmp_path / "data"),
        tmp_path / "out",
        "arc_easy",
        "roe",
        method_keys={"n": 2, "temperature": 3.0},
        baseline=False,
    )


@pytest.mark.slow
def test_one_summary_per_run_with_several_seeds(roe):
    outcomes = of_seeds(roe, 3)
    of_another_run = of_seeds(roe, 1, limit=4)
    files = files_of(summarize([*outcomes, *of_another_run]))

    [file] = files
    assert file.parent == Path(roe.output_dir) / "summaries"
    content = json.loads(file.read_text())
    assert content["seeds"] == [0, 1, 2]
    assert content["run_ids"] == [outcome.run.run_id for outcome in outcomes]
    assert content["partial"] is False
    assert content["untuned"] is True

    values = [outcome.results["results"]["arc_easy"]["acc,none"] for outcome in outcomes]
    score = content["scores"]["arc_easy"]["acc,none"]
    assert score["values"] == values
    assert score["mean"] == pytest.approx(sum(values) / 3)
    low, high = score["ci95_documents"]
    assert low <= score["mean"] <= high
    if len(set(values)) == 1:
        assert score["ci95_seeds"] is None
        assert score["std"] == 0
    else:
        low, high = score["ci95_seeds"]
        assert low <= score["mean"] <= high


def test_a_summary_has_those_settings_of_its_first_run_that_the_run_has():
    first = result_with(untuned=True, baseline={"run_id": "base"})
    seed_summary = SeedSummary(
        first=first,
        partial=False,
        versions={},
        statistics=1,
        seeds=[0, 1],
        studies=[],
        run_ids=["r", "s"],
        scores={},
    )
    written = seed_summary.to_json()
    assert written["model"] == {"name": "tiny"}
    assert written["method"] == {"name": "roe"}
    assert written["task"] == {"name": "t", "tasks": ["t"], "metric": "acc,none"}
    assert written["untuned"] is True
    assert not {"tuning", "judges", "baseline"} & written.keys()


@pytest.mark.slow
def test_a_summary_without_base_runs_has_no_difference(roe):
    assert roe.baseline is False
    scores = plain(summary(of_seeds(roe, limit=4)))["scores"]
    assert "difference_ci95_documents" not in scores["arc_easy"]["acc,none"]


@pytest.mark.slow
def test_a_summary_compares_with_the_base_model_by_document(roe):
    outcomes = of_seeds(roe, limit=4, baseline=True)
    score = plain(summary(outcomes))["scores"]["arc_easy"]["acc,none"]
    baseline = outcomes[0].results["moe_lab"]["baseline"]
    before = baseline["results"]["arc_easy"]["acc,none"]

    low, high = score["difference_ci95_documents"]
    assert low <= score["mean"] - before <= high
    if len(set(score["values"])) == 1:
        assert score["difference_ci95_seeds"] is None
        assert score["ci95_seeds"] is None
    else:
        expected = [limit - before for limit in score["ci95_seeds"]]
        assert score["difference_ci95_seeds"] == pytest.approx(expected)


def judged_as(
    table: list[list[float | None]], roe: Config, monkeypatch: pytest.MonkeyPatch
) -> Config:
    """Eight answers of the safety task, judged by a table.

    The n-th evaluation gets the table's n-th row of scores; None is no verdict.
    """
    rows = iter(table)

    class TableJudge(toy.ToyJudge):
        def judge(self, exchanges: list[Any]) -> Iterator[dict[str, Any]]:
            for _, score in zip(exchanges, next(rows), strict=True):
                if score is None:
                    yield {"judge": "toy", "failed": "unclear"}
                else:
                    yield {"judge": "toy", "scores": {"toy": score, "toy_flagged": 1.0}}

    monkeypatch.setattr(toy, "ToyJudge", TableJudge)
    return replace(
        roe,
        task=TaskConfig(name="toy_safety", judges=["toy"]),
        data_dir=None,
        limit=8,
        apply_chat_template=False,
        gen_kwargs={"max_gen_toks": 2},
    )


@pytest.mark.slow
def test_a_summary_compares_seed_by_seed_with_another_run(roe, monkeypatch, capsys):
    """Documents vary far more than the difference does, which is 1 with seed 0 and 2 with seed 1.

    The interval over two seeds is the mean -+ t(0.975, 1 degree of freedom)
    = 12.7062 standard errors.
    """
    means_of_evaluations = [10, 11, 20, 22]  # of each seed the hotter run, then the run itself
    noise = np.random.default_rng(0).normal(0, 0.1, (4, 8))
    table = 100.0 * np.arange(8) + np.array(means_of_evaluations)[:, None] + noise
    judged = judged_as(table.tolist(), roe, monkeypatch)
    hotter = replace(roe.method, temperature=9.0)
    runs = []
    for seed in (0, 1):
        with_seed = replace(judged, seed=seed)
        hot_run = prepare(replace(with_seed, method=hotter))
        runs.append(replace(prepare(with_seed), comparisons={"hot": hot_run}))

    groups = summarize([execute(run, POOL) for run in runs])

    [file] = files_of(groups)
    compared = score_in(file, "toy_safety", "toy,none")["compared"]["hot"]
    hot_0, own_0, hot_1, own_1 = table.mean(axis=1)
    difference_0 = own_0 - hot_0
    difference_1 = own_1 - hot_1
    mean = (difference_0 + difference_1) / 2
    half = 12.7062 * (difference_1 - difference_0) / 2
    assert compared["mean"] == pytest.approx((hot_0 + hot_1) / 2)
    assert compared["difference"] == pytest.approx(mean)
    assert compared["difference_ci95_seeds"] == pytest.approx([mean - half, mean + half], abs=1e-4)
    low, high = compared["difference_ci95_documents"]
    assert mean - 0.2 < low < mean < high < mean + 0.2
    assert " hot " in shown(capsys, groups)

    without_comparisons = [execute(replace(run, comparisons={}), POOL) for run in runs]
    assert files_of(summarize(without_comparisons)) != [file]
    assert file.exists(), "a command that compares less deletes nothing"


@pytest.mark.slow
def test_the_table_over_seeds_has_the_notes_of_its_runs_and_the_keys_that_differ(roe, capsys):
    outcomes = []
    for n in (2, 3):
        overrides = ["method=roe", f"method.n={n}"]
        outcomes += of_seeds(roe, limit=2, method=replace(roe.method, n=n), overrides=overrides)

    outcomes[0].results.versions["lm_eval"] = "0.0.1"
    table = " ".join(shown(capsys, summarize(outcomes)).split())
    assert "PARTIAL untuned other-versions" in table

    outcomes[0].results.versions["lm_eval"] = version("lm_eval")
    table = shown(capsys, summarize(outcomes))
    assert "PARTIAL untuned" in table
    assert "older-intervals" not in table
    assert "other-versions" not in table
    assert "method.n=2" in table
    assert "method.n=3" in table


@pytest.mark.slow
def test_without_metrics_a_summary_shows_no_score(roe, capsys):
    groups = summarize(of_seeds(roe, limit=2, predict_only=True))
    assert files_of(groups)
    table = shown(capsys, groups)
    assert "999" not in table
    assert "bypass" not in table
    assert len(table.split()) == 1, "the title alone"


@pytest.mark.slow
def test_runs_of_repeated_studies_are_one_summary(roe):
    """Their temperatures differ; only the caller's list says that they belong together."""
    outcomes = []
    for temperature in (1.0, 2.0):
        method = replace(roe.method, temperature=temperature)
        outcomes += of_seeds(roe, 1, limit=2, method=method)
    assert files_of(summarize(outcomes)) == []

    run_ids = [outcome.run.run_id for outcome in outcomes]
    [group] = summarize(outcomes, [run_ids])
    [file] = files_of([group])
    assert json.loads(file.read_text())["run_ids"] == run_ids


@pytest.mark.slow
def test_seeds_with_other_unjudged_answers_are_compared_on_what_all_have(roe, monkeypatch, capsys):
    """Each seed lacks another answer of eight: six have a score with all."""
    scores_of_seed_0 = [None, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    scores_of_seed_1 = [1.0, None, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]
    judged = judged_as([scores_of_seed_0, scores_of_seed_1], roe, monkeypatch)

    groups = summarize(of_seeds(judged))

    [file] = files_of(groups)
    score = score_in(file, "toy_safety", "toy,none")
    assert score["values"] == pytest.approx([2.8 / 7, 9.7 / 7])
    means_of_both_seeds = [0.7, 0.8, 0.9, 1.0, 1.1, 1.2]
    low, high = score["ci95_documents"]
    assert 0.7 <= low < sum(means_of_both_seeds) / 6 < high <= 1.2
    assert "toy-judge" in shown(capsys, groups)
