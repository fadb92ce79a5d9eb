"""`metrics=confidence`: the same numbers as from the logs by hand, of choices and of generated
answers, however they come about; and what is refused.

Broken by: a softmax over other scores than the metric compares, a probability of another answer,
an answer without a stored probability that is left out in silence, another answer whose probability
is taken, a run's id that changes, a base model that is not paired.
"""

import json
import math
from pathlib import Path

import pytest
from sklearn.metrics import roc_auc_score

from moe_lab.config.schema import TaskConfig
from moe_lab.errors import ConfigError, ResultsError
from moe_lab.models.memory import ModelPool
from moe_lab.results.confidence import BINS
from moe_lab.results.response_log import request_key
from moe_lab.runs.execute import execute
from moe_lab.runs.prepare import prepare
from tests.support.command import run_command
from tests.support.runs import config, small_data

GENERATED = {"gen_kwargs": {"max_gen_toks": 6}}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data(tmp_path_factory.mktemp("data"))


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def stored(folder: Path) -> dict:
    return json.loads((folder / "confidence.json").read_text())


def softmax_of_chosen(scores):
    total = sum(math.exp(score) for score in scores)
    return math.exp(max(scores)) / total


def assert_summary(block, confidence, right):
    """ECE by a loop over bins, AUROC by scikit-learn."""
    error = 0.0
    for number in range(BINS):
        members = [i for i, c in enumerate(confidence) if min(int(c * BINS), BINS - 1) == number]
        error += abs(sum(right[i] - confidence[i] for i in members)) / len(confidence)
    assert block["ece"]["value"] == pytest.approx(error)
    if len(set(right)) == 2:
        assert block["auroc"]["value"] == pytest.approx(roc_auc_score(right, confidence))
    else:
        assert block["auroc"]["value"] is None
    assert block["accuracy"] == pytest.approx(sum(right) / len(right))


@pytest.mark.parametrize("metric", ["acc", "acc_norm"])
def test_of_choices_it_is_the_softmax_of_what_the_metric_compares(
    metric, tiny_olmoe_dir, data, tmp_path
):
    task = TaskConfig(name="arc_easy", metric=f"{metric},none")
    run_config = config(
        tiny_olmoe_dir, data, tmp_path, task_config=task, metrics="confidence", num_fewshot=0
    )
    outcome = execute(prepare(run_config), ModelPool())
    folder = outcome.path.parent
    confidence = []
    right = []
    for sample in lines(folder / "samples_arc_easy.jsonl"):
        scores = []
        for choice, response in zip(("red", "green", "blue"), sample["resps"], strict=True):
            score = float(response[0][0])
            scores.append(score / len(choice) if metric == "acc_norm" else score)
        confidence.append(softmax_of_chosen(scores))
        right.append(sample[metric])
    written = lines(folder / "confidence.jsonl")
    assert [line["confidence"] for line in written] == pytest.approx(confidence)
    assert [line["right"] for line in written] == right
    assert_summary(stored(folder)["tasks"]["arc_easy"], confidence, right)


def test_of_generated_answers_it_is_their_tokens_mean_however_they_are_stored(
    tiny_olmoe_dir, data, tmp_path, monkeypatch
):
    pool = ModelPool()
    keys = {"limit": 5, **GENERATED}
    plain = execute(prepare(config(tiny_olmoe_dir, data, tmp_path, "addsub", **keys)), pool)
    folder = plain.path.parent
    assert not (folder / "confidence.json").exists()
    answers = folder / "responses.jsonl"
    before = answers.read_text()
    run = prepare(config(tiny_olmoe_dir, data, tmp_path, "addsub", metrics="confidence", **keys))
    assert run.run_id == plain.run.run_id
    execute(run, pool)
    expected = [math.exp(line["log_probability"]) for line in lines(answers) if "key" in line]
    written = sorted(line["confidence"] for line in lines(folder / "confidence.jsonl"))
    assert written == pytest.approx(sorted(expected))
    assert answers.read_text() == before, "the stored answers have their probabilities"
    content = stored(folder)
    assert content["asked_again"] == 0

    # answers of a version that stored no probability
    without = []
    for line in lines(answers):
        line.pop("log_probability", None)
        without.append(json.dumps(line) + "\n")
    answers.write_text("".join(without))
    (folder / "confidence.json").unlink()
    execute(run, pool)
    assert stored(folder) == content | {"asked_again": 5}

    # one that is another answer now
    generated = [line for line in without if '"response": "' in line]
    other = generated[0].replace('"response": "', '"response": "x')
    answers.write_text("".join(without).replace(generated[0], other))
    (folder / "confidence.json").unlink()
    with pytest.raises(ResultsError, match="1 of 5 stored answers are others"):
        execute(run, pool)


def test_a_method_is_paired_with_the_base_model(tiny_olmoe_dir, data, tmp_path, capsys):
    ended = run_command(
        capsys,
        "method=roe",
        "method.n=2",
        "method.temperature=2.0",
        f"model.path={tiny_olmoe_dir}",
        "task=arc_easy",
        f"data_dir={data}",
        f"output_dir={tmp_path}",
        "metrics=confidence",
        "num_fewshot=0",
    )
    assert ended.code == 0
    assert "Confidence:" in ended.out
    [folder] = tmp_path.glob("runs/*-roe-*")
    [base] = tmp_path.glob("runs/*-base-*")
    difference = stored(folder)["differences"]["baseline"]["arc_easy"]["ece"]
    values = [stored(of_run)["tasks"]["arc_easy"]["ece"]["value"] for of_run in (folder, base)]
    assert difference["difference"] == pytest.approx(values[0] - values[1])
    low, high = difference["ci95"]
    assert low < difference["difference"] < high


def test_each_of_several_answers_has_its_own_and_stays_with_its_document(
    tiny_olmoe_dir, data, tmp_path
):
    gen_kwargs = {"max_gen_toks": 6, "temperature": 1.5}
    keys = {"limit": 4, "gen_kwargs": gen_kwargs, "metrics": "confidence"}
    run_config = config(tiny_olmoe_dir, data, tmp_path, "addsub", samples_per_document=3, **keys)
    outcome = execute(prepare(run_config), ModelPool())
    folder = outcome.path.parent
    probability_of = {}
    for line in lines(folder / "responses.jsonl"):
        if "key" in line:
            probability_of[line["key"]] = math.exp(line["log_probability"])
    expected = []
    for sample in lines(folder / "samples_addsub.jsonl"):
        prompt, settings = sample["arguments"]["gen_args_0"].values()
        for repeat in range(3):
            key = request_key("generate_until", (prompt, settings), repeat)
            expected.append((sample["doc_id"], pytest.approx(probability_of[key])))
    written = [
        (line["document"], line["confidence"]) for line in lines(folder / "confidence.jsonl")
    ]
    assert written == expected
    block = stored(folder)["tasks"]["addsub"]
    assert (block["documents"], block["answers"]) == (4, 12)
    accuracy = outcome.results["results"]["addsub"]["avg@3,numeric"]
    assert block["accuracy"] == pytest.approx(accuracy)


def test_several_tasks_have_their_documents_together(tiny_olmoe_dir, data, tmp_path):
    task = TaskConfig(name=["arc_easy", "addsub"])
    keys = {"limit": 4, "num_fewshot": 0, "metrics": "confidence", **GENERATED}
    run_config = config(tiny_olmoe_dir, data, tmp_path, task_config=task, **keys)
    folder = execute(prepare(run_config), ModelPool()).path.parent
    written = lines(folder / "confidence.jsonl")
    assert [line["task"] for line in written] == ["arc_easy"] * 4 + ["addsub"] * 4
    confidence = [line["confidence"] for line in written]
    assert_summary(stored(folder)["tasks"]["all"], confidence, [line["right"] for line in written])


@pytest.mark.parametrize(
    ("task", "keys", "says"),
    [
        ("toy_text", {}, "has neither choices nor generated answers"),
        ("toy_safety", {}, "is judged"),
        ("toy_math", {"task_config": TaskConfig(name="toy_math", self_consistency=3)}, "several"),
        ("toy_math", {"predict_only": True}, "predict_only=true computes none"),
    ],
)
def test_answers_without_a_confidence_are_refused(task, keys, says, tiny_olmoe_dir, tmp_path):
    run_config = config(tiny_olmoe_dir, None, tmp_path, task, metrics="confidence", **keys)
    run_config.data_dir = None
    with pytest.raises(ConfigError, match=says):
        prepare(run_config)


def test_a_model_that_lm_evals_own_code_runs_has_no_confidence_of_generated_answers(data, tmp_path):
    from tests.support.models import make_tokenizer, save_model, small_model

    folder = save_model(small_model("qwen3_next"), tmp_path / "model", make_tokenizer())
    run_config = config(
        folder, data, tmp_path, "addsub", metrics="confidence", limit=2, **GENERATED
    )
    with pytest.raises(ConfigError, match="tells no probability of generated tokens"):
        execute(prepare(run_config), ModelPool())
