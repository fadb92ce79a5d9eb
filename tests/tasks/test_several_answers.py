"""`samples_per_document=k`: pass@j, the mean over answers and their vote, of every kind of task;
intervals and tests of them over documents.

Broken by: a biased estimator (1 - (1 - c/k)^j), answers taken for documents, a filter that still
drops answers, a vote that is not that of `task.self_consistency`, greedy answers that are k times
the same, an answer that is asked again although it is stored.
"""

import json
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import betaln

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.engine.lm import EngineLM
from moe_lab.errors import ConfigError, TaskError
from moe_lab.methods import get_method
from moe_lab.models.memory import ModelPool
from moe_lab.results import randomization, statistics
from moe_lab.results.paired import paired
from moe_lab.results.statistics import score_interval
from moe_lab.runs.checks import check_votes
from moe_lab.runs.execute import execute
from moe_lab.runs.prepare import prepare
from moe_lab.tasks.several_answers import pass_at, reported, with_answers
from tests.support.documents import PROBLEMS
from tests.support.runs import config, load_task, small_data, write_jsonl
from tests.support.scoring import filtered


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = small_data(tmp_path_factory.mktemp("data"))
    write_jsonl(folder / "humaneval" / "test.jsonl", PROBLEMS)
    return folder


def test_pass_at_j_is_the_share_of_choices_with_a_right_answer():
    for count in range(2, 8):
        for right in range(count + 1):
            answers = [1] * right + [0] * (count - right)
            for j in range(1, count + 1):
                choices = list(combinations(answers, j))
                share = sum(any(choice) for choice in choices) / len(choices)
                assert pass_at(count, right, j) == pytest.approx(share)
    assert reported(8) == [1, 2, 4, 8]
    assert reported(6) == [1, 2, 4, 6]


ANSWERS = ["It is #### 5", "#### 7", "#### 5", "#### 5.0", "I do not know"]


@pytest.mark.parametrize(
    ("name", "document", "right"),
    [
        ("addsub", {"answer": "5"}, 3),
        ("gsm8k", {"question": "?", "answer": "2 + 3 = 5\n#### 5"}, 2),
        ("toy_math", {"question": "?", "answer": "2 + 3 = 5\n#### 5"}, 3),
        ("addsub", {"answer": "7"}, 1),
        ("addsub", {"answer": "8"}, 0),
    ],
)
def test_the_answers_of_a_document_are_scored_one_by_one(name, document, right, data):
    folder = None if name.startswith("toy") else data
    task = load_task(folder, name, samples_per_document=5, num_fewshot=0)
    assert task.config.repeats == 5
    assert task.config.generation_kwargs["do_sample"]
    [*_, answers] = [filtered(task, ANSWERS)[key] for key in sorted(filtered(task, ANSWERS))]
    single = load_task(folder, name, num_fewshot=0)
    metric = next(iter(single.aggregation()))
    scores = []
    for text in ANSWERS:
        [*_, answer] = [filtered(single, [text])[key] for key in sorted(filtered(single, [text]))]
        scores.append(single.process_results(document, [answer])[metric])
    assert sum(scores) == right
    values = task.process_results(document, [answers])
    expected = {"avg@5": right / 5}
    for j in (1, 2, 4, 5):
        expected[f"pass@{j}"] = pass_at(5, right, j)
    assert {key: values[key] for key in expected} == pytest.approx(expected)
    assert list(task.aggregation()) == list(values)


@pytest.mark.parametrize("name", ["addsub", "gsm8k", "toy_math"])
def test_the_vote_is_that_of_self_consistency(name, data):
    folder = None if name.startswith("toy") else data
    several = load_task(folder, name, samples_per_document=5, num_fewshot=0)
    voting = load_task(folder, name, self_consistency=5, num_fewshot=0)
    assert several.config.generation_kwargs == voting.config.generation_kwargs
    for gold in ("5", "7"):
        document = {"question": "?", "answer": f"so\n#### {gold}"}
        if name == "addsub":
            document = {"answer": gold}
        for key, answers in filtered(several, ANSWERS).items():
            vote = filtered(voting, ANSWERS)[key]
            [score] = voting.process_results(document, [vote]).values()
            assert several.process_results(document, [answers])["maj@5"] == score


def test_programs_have_no_vote(data):
    task = load_task(data, "humaneval", samples_per_document=3)
    values = task.process_results({}, [["passed", "failed: NameError", "passed"]])
    expected = {"avg@3": 2 / 3, "pass@1": 2 / 3, "pass@2": 1.0, "pass@3": 1.0}
    assert values == pytest.approx(expected)


def step(function, **arguments):
    return {"function": function, **arguments}


def test_filters_of_a_task_that_vote_themselves_are_left_out():
    first = {"name": "first", "filter": [step("regex"), step("take_first")]}
    vote = {"name": "vote", "filter": [step("regex"), step("majority_vote"), step("take_first")]}
    task = {"task": "own", "output_type": "generate_until", "repeats": 64}
    changed = with_answers({**task, "filter_list": [first, vote]}, 8)
    assert changed["repeats"] == 8
    [kept] = changed["filter_list"]
    assert kept["name"] == "first"
    assert [entry["function"] for entry in kept["filter"]] == ["regex", "custom"]
    with pytest.raises(TaskError, match="own has no filter that takes one answer"):
        with_answers({**task, "filter_list": [vote]}, 8)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("toy_choice", "toy_choice scores given texts"),
        ("toy_text", "toy_text scores given texts"),
        ("toy_safety", "toy_safety is judged"),
    ],
)
def test_tasks_without_answers_that_are_right_or_wrong_are_refused(name, says):
    with pytest.raises(TaskError, match=f"samples_per_document=4.*{says}"):
        load_task(None, name, samples_per_document=4)


def test_settings_that_contradict_it_are_refused():
    with pytest.raises(ConfigError, match="samples_per_document=1"):
        Config(samples_per_document=1)
    with pytest.raises(ConfigError, match="reports the vote, too"):
        Config(samples_per_document=4, task=TaskConfig(self_consistency=4))
    with pytest.raises(ConfigError, match="predict_only=true computes no score"):
        Config(samples_per_document=4, predict_only=True)
    task = TaskConfig(metric="exact_match,numeric")
    assert Config(samples_per_document=4, task=task).task.metric == "avg@4,numeric"
    task = TaskConfig(metric="pass@2,numeric")
    assert Config(samples_per_document=4, task=task).task.metric == "pass@2,numeric"


@pytest.mark.parametrize(
    ("method", "keys", "is_refused"),
    [
        ("base", {}, True),
        ("finetune-freeze", {}, True),
        ("roe", {"n": 1}, True),
        ("roe", {"n": 2, "temperature": 0.0}, True),
        ("roe", {"n": 2}, False),
    ],
)
@pytest.mark.parametrize("setting", ["samples_per_document", "task.self_consistency"])
def test_greedy_answers_without_noise_are_refused(setting, method, keys, is_refused):
    method_config = get_method(method).Config(**{"name": method, **keys})
    if setting == "samples_per_document":
        run_config = Config(samples_per_document=4, method=method_config)
    else:
        run_config = Config(task=TaskConfig(self_consistency=4), method=method_config)
    task = SimpleNamespace(get_config={"generation_kwargs": {"do_sample": False}}.get)
    run_method = get_method(method)(method_config)
    if is_refused:
        with pytest.raises(ConfigError, match=f"{setting}=4: without sampling"):
            check_votes(run_method, run_config, {"tasks": {"x": task}})
    else:
        check_votes(run_method, run_config, {"tasks": {"x": task}})


def test_a_run_asks_for_each_answer_once(tiny_olmoe_dir, data, tmp_path, monkeypatch):
    asked = []
    answer = EngineLM.answer

    def counted(self, kind, requests, on_answer):
        asked.append(len(requests))
        answer(self, kind, requests, on_answer)

    monkeypatch.setattr(EngineLM, "answer", counted)
    run_config = config(
        tiny_olmoe_dir,
        data,
        tmp_path,
        "addsub",
        samples_per_document=3,
        limit=4,
        gen_kwargs={"max_gen_toks": 6, "temperature": 1.5},
    )
    outcome = execute(prepare(run_config), ModelPool())
    assert asked == [12]
    folder = outcome.path.parent
    lines = (folder / "samples_addsub.jsonl").read_text().splitlines()
    for line in map(json.loads, lines):
        assert len(set(line["resps"][0])) == 3, "each answer has samples of its own"
    scores = outcome.results["results"]["addsub"]
    assert scores["avg@3,numeric"] == scores["pass@1,numeric"]

    answers = folder / "responses.jsonl"
    stored = answers.read_text().splitlines(keepends=True)
    lost = max(i for i, line in enumerate(stored) if '"response"' in line)
    answers.write_text("".join(stored[:lost]))
    (folder / "results.json").unlink()
    again = execute(prepare(run_config), ModelPool())
    assert asked == [12, 1]
    assert again.results["results"] == outcome.results["results"]


# Simulated experiments: a document's answers are right with a probability of its own, which is
# drawn from Beta(A, B).

A, B = 0.6, 0.9
COUNT = 8
DOCUMENTS = 150


def true_pass_at(j):
    """The mean over documents of 1 - (1 - p)^j."""
    return 1 - np.exp(betaln(A, B + j) - betaln(A, B))


def values_of(random, probability_N, j):
    right_N = random.binomial(COUNT, probability_N)
    return [pass_at(COUNT, int(right), j) for right in right_N]


@pytest.fixture
def fewer_resamples(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 1000)
    monkeypatch.setattr(randomization, "SWAPS", 999)


def test_it_is_unbiased_and_the_plain_estimate_is_not():
    random = np.random.default_rng(0)
    probability_N = random.beta(A, B, 100_000)
    right_N = random.binomial(COUNT, probability_N)
    pass_of = {right: pass_at(COUNT, right, 4) for right in range(COUNT + 1)}
    unbiased = np.mean([pass_of[int(right)] for right in right_N])
    plain = np.mean(1 - (1 - right_N / COUNT) ** 4)
    assert unbiased == pytest.approx(true_pass_at(4), abs=0.006)
    assert plain < true_pass_at(4) - 0.01


@pytest.mark.slow
@pytest.mark.parametrize("j", [1, 4, 8])
def test_intervals_cover(j, fewer_resamples):
    """1,000 experiments: three standard errors of 95% are 2.1%."""
    covered = 0
    for number in range(1000):
        random = np.random.default_rng(number)
        values = values_of(random, random.beta(A, B, DOCUMENTS), j)
        low, high = score_interval(values)
        covered += low <= true_pass_at(j) <= high
    assert covered / 1000 == pytest.approx(0.95, abs=0.021)


@pytest.mark.slow
@pytest.mark.parametrize("j", [1, 4, 8])
def test_a_method_that_helps_as_many_documents_as_it_harms_is_significant_in_5_percent(
    j, fewer_resamples
):
    """2,000 experiments, three standard errors of 5% are 1.5%. pass@k of k answers is 0 or 1, and
    McNemar's exact test rejects less often than it says. A test that takes answers for documents
    rejects several times as often."""
    rejected = 0
    rejected_by_answers = 0
    for number in range(2000):
        random = np.random.default_rng(number)
        probability_N = random.beta(A, B, DOCUMENTS)
        changed_N = random.beta(A, B, DOCUMENTS)
        is_swapped_N = random.random(DOCUMENTS) < 0.5
        own_N = np.where(is_swapped_N, changed_N, probability_N)
        base_N = np.where(is_swapped_N, probability_N, changed_N)
        difference = paired(values_of(random, own_N, j), values_of(random, base_N, j))
        p = difference.p_mcnemar if difference.p_permutation is None else difference.p_permutation
        rejected += p < 0.05
        answers_N = random.random((2, COUNT, DOCUMENTS)) < np.stack([own_N, base_N])[:, None]
        by_answers = paired(*answers_N.reshape(2, -1).astype(int).tolist())
        rejected_by_answers += by_answers.p_mcnemar < 0.05
    assert rejected / 2000 <= 0.065
    if j < COUNT:
        assert rejected / 2000 >= 0.035
    assert rejected_by_answers / 2000 > 0.15
