"""`method=c3po` from the command line, on the embedded model and on a small one, and its keys.

Broken by: a test label that reaches anything but the oracle, optimization without steps
that changes an answer, a run that counts as stored though its references changed, a request
that is refused only after weights were loaded, two ids for one computation or one id for two,
names of layers that differ from the paper's Table 8.
"""

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

import moe_lab
from moe_lab.errors import ConfigError
from moe_lab.methods.c3po import engine as optimizing
from moe_lab.methods.c3po.method import C3PO, named_layers
from moe_lab.methods.references import embeddings
from moe_lab.runs.config import compose_or_explain, to_config
from moe_lab.runs.experiments.table_cells import coordinate
from tests.support.command import run_command
from tests.support.ended import block_of
from tests.support.runs import arc, facts, write_jsonl

OPTIMIZERS = ("ngd", "kernel_regression", "mode_finding", "oracle")


def command(capsys, folder, *keys):
    few = (
        []
        if any("reference" in key or "oracle" in key for key in keys)
        else ["method.reference_size=100"]
    )
    return run_command(capsys, "method=c3po", f"output_dir={folder}", *few, *keys)


def result(ended):
    block = block_of(ended)
    [samples] = Path(ended.out.splitlines()[-1]).parent.glob("samples_*.jsonl")
    return block, [json.loads(line)["resps"] for line in samples.read_text().splitlines()]


def scores(responses):
    """The log-likelihood of each choice, by question."""
    return [[float(choice[0][0]) for choice in choices] for choices in responses]


def near(responses, expected_responses, bound=1e-4):
    """Whether the scores of each question are those of the other run."""
    pairs = zip(scores(responses), scores(expected_responses), strict=True)
    return [score == pytest.approx(expected_score, abs=bound) for score, expected_score in pairs]


@pytest.fixture(scope="module")
def base(outputs) -> list:
    """What the base model answers to the first six questions."""
    keys = ["method=base", "task=toy_choice", "limit=6", f"output_dir={outputs}"]
    [run] = moe_lab.run(keys, quiet=True).runs
    lines = (run.folder / "samples_toy_choice.jsonl").read_text().splitlines()
    return [json.loads(line)["resps"] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_optimizer_answers_and_says_what_it_did(optimizer, outputs, capsys, flops):
    keys = ["task=toy_choice", "limit=8", "method.steps=4", f"method.optimizer={optimizer}"]
    ended = command(capsys, outputs, *keys)
    block, _ = result(ended)
    assert block["c3po"]["optimizer"] == optimizer
    assert block["c3po"]["layers"] == [3, 4, 5, 6, 7]
    assert (block["c3po"]["reference"]["set"] is None) == (optimizer == "oracle")
    flips = {key: block["c3po"][f"flipped_{key}"] for key in ("to_right", "to_wrong")}
    assert block["c3po"]["flops_per_sample"] > block["c3po"]["flops_plain_per_sample"] > 1e6
    paired = block["paired"]["toy_choice"]["acc,none"]
    assert paired["to_right"] - paired["to_wrong"] == round(8 * paired["difference"])
    assert flips == {key: paired[key] for key in flips}
    assert ("upper-bound" in ended.out) == (optimizer == "oracle")


@pytest.mark.slow
def test_each_core_expert_costs_its_operations(outputs, capsys, flops):
    """A step is linear in the core experts, and the plain model has none."""
    operations = {}
    for core in (4, 8, 12):
        keys = ["task=toy_choice", "limit=2", "method.steps=4", f"method.core_experts={core}"]
        block, _ = result(command(capsys, outputs, *keys))
        operations[core] = (
            block["c3po"]["flops_per_sample"],
            block["c3po"]["flops_plain_per_sample"],
        )
    assert operations[4][1] == operations[8][1] == operations[12][1]
    assert operations[12][0] - operations[8][0] == pytest.approx(
        operations[8][0] - operations[4][0], rel=0.05
    )
    assert operations[8][0] > 1.1 * operations[4][0]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_without_steps_the_answers_are_the_untouched_models(optimizer, outputs, base, capsys):
    keys = ["task=toy_choice", "limit=6", "method.steps=0", "method.shifts=0", "baseline=false"]
    keys += ["method.alpha=1.0"] if optimizer == "kernel_regression" else []
    _, responses = result(command(capsys, outputs, *keys, f"method.optimizer={optimizer}"))
    assert all(near(responses, base))


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        "method.kernel=matern method.epsilon=0.4 method.schedule=step method.tokens=first1",
        (
            "method.kernel=polynomial method.relax=topk method.layers=first2+last3 "
            "method.schedule=fixed"
        ),
        "method.kernel=linear method.update=gd method.parameters=weights method.core_experts=null",
        "method.tokens=middle1 method.loss=l2 method.reference=toy_choice:far method.k=5",
        "method.tokens=last3 method.layers=middle4 method.optimizer=kernel_regression",
        "method.tokens=first3 method.layers=all method.optimizer=mode_finding",
        "method.tokens=middle3 method.layers=[1,6] method.optimizer=oracle method.loss=l2",
        "method.tokens=last1 method.layers=first1+middle2+last1 task.answer=text",
    ],
)
def test_every_choice_runs_and_changes_something(keys, outputs, base, capsys):
    few = ["task=toy_choice", "limit=2", "method.steps=2", "baseline=false"]
    _, responses = result(command(capsys, outputs, *few, *keys.split()))
    assert responses != base[:2]


@pytest.mark.slow
def test_questions_without_a_neighbour_are_counted_and_keep_their_answers(outputs, base, capsys):
    """No reference of the toy world is so near to a question without being a near duplicate."""
    keys = ["task=toy_choice", "limit=6", "method.epsilon=0.0501", "baseline=false"]
    ended = command(capsys, outputs, *keys)
    block, responses = result(ended)
    without = block["c3po"]["reference"]["questions_without"]
    assert without > 0
    assert f"epsilon 0.0501: {without} of 6 questions had no neighbour" in ended.out
    assert sum(near(responses, base, 1e-5)) >= without


@pytest.mark.slow
def test_questions_are_read_once_for_their_embedding_too(outputs, capsys, monkeypatch):
    """Neighbours and answers are the same as with a separate pass for the embedding.

    A prompt of other tokens would need such a pass.
    """
    keys = (
        "task=toy_choice limit=6 method.learning_rate=[0.1,0.1] method.steps=3 baseline=false"
    ).split()
    command(capsys, outputs, *keys)
    passes = []
    hidden_states = embeddings.hidden_states

    def counted(texts, model):
        passes.append(len(texts))
        return hidden_states(texts, model)

    monkeypatch.setattr(embeddings, "hidden_states", counted)
    _, once = result(command(capsys, outputs, *keys, "rerun=true"))
    assert passes == []
    monkeypatch.setattr(optimizing, "text_ids", lambda *of: [[], *embeddings.text_ids(*of)[1:]])
    _, twice = result(command(capsys, outputs, *keys, "rerun=true"))
    assert passes == [6]
    assert all(near(once, twice))


@pytest.mark.slow
def test_a_prompt_with_too_few_tokens_is_named(outputs, capsys):
    ended = command(
        capsys, outputs, "task=toy_choice", "limit=4", "method.tokens=last99", "baseline=false"
    )
    assert ended.code == 2
    assert "method.tokens=last99: the prompt" in ended.err


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_test_labels_reach_nothing_but_the_oracle(optimizer, outputs, capsys):
    labels = []
    for answers in ("ABCABC", "CABBCA"):
        data = arc(outputs / answers, answers)
        keys = [
            f"data_dir={data}",
            "task=arc_easy",
            "method.reference=arc_easy:train",
            "method.k=1",
        ]
        keys += ["method.steps=3", "baseline=false"]
        ended = command(capsys, outputs / f"out-{answers}", *keys, f"method.optimizer={optimizer}")
        labels.append(result(ended)[1])
    assert (labels[0] == labels[1]) == (optimizer != "oracle")


@pytest.mark.slow
def test_the_oracle_refuses_prompts_with_several_right_answers(tmp_path, capsys):
    row = {
        "goal": "How to open a jar?",
        "sol1": "Turn the lid.",
        "sol2": "Eat the jar.",
        "label": 0,
    }
    other_row = row | {"sol1": "Drop it.", "sol2": "Warm the lid.", "label": 1}
    write_jsonl(tmp_path / "piqa" / "validation.jsonl", [row, other_row])
    keys = [f"data_dir={tmp_path}", "task=piqa", "task.answer=text", "method.optimizer=oracle"]
    ended = command(capsys, tmp_path / "out", *keys, "baseline=false")
    assert ended.code == 2
    assert "task.answer=letters" in ended.err


@pytest.mark.slow
def test_a_grid_over_methods_may_set_what_they_share(outputs, capsys):
    keys = ["method=c3po,icl", "task=toy_choice", "limit=2", "method.k=2", "mode=plan"]
    ended = run_command(capsys, "-m", f"output_dir={outputs}", *keys)
    assert ended.code == 0, ended.err
    assert "c3po" in ended.out
    assert "icl" in ended.out
    refused = run_command(capsys, "-m", f"output_dir={outputs}", *keys[1:], "method=c3po,roe")
    assert refused.code == 2
    assert "method=roe" in refused.err


def identity(**keys):
    return C3PO(C3PO.Config(**keys)).identity(facts())


@pytest.mark.parametrize(
    ("settings", "unread", "read"),
    [
        ({}, {"alpha": 0.2, "shifts": 3}, {"k": 7, "steps": 3, "kernel": "matern", "loss": "l2"}),
        (
            {"optimizer": "kernel_regression"},
            {"steps": 3, "parameters": "weights", "update": "gd", "relax": "topk", "shifts": 4},
            {"alpha": 0.5, "k": 4, "bandwidth": 0.3},
        ),
        (
            {"optimizer": "mode_finding"},
            {"steps": 3, "schedule": "fixed", "learning_rate": [0.1, 0.1]},
            {"alpha": 0.7, "shifts": 2, "epsilon": 0.3},
        ),
        ({"optimizer": "mode_finding", "epsilon": 0.3}, {}, {"k": 9}),
        (
            {"optimizer": "oracle"},
            {"k": 7, "reference": "arc_easy", "kernel": "matern"},
            {"steps": 3, "layers": "all", "core_experts": 6, "tokens": "last3"},
        ),
        ({"epsilon": 0.4}, {"k": 9}, {}),
    ],
)
def test_keys_that_make_a_difference_and_no_others_make_another_run(settings, unread, read):
    for key, value in (unread | read).items():
        assert (identity(**settings) == identity(**settings | {key: value})) == (key in unread), key


def test_other_radii_are_taken():
    """Mode finding has a ball of pathways, of which none are dropped."""
    C3PO.Config(epsilon=0.06)
    C3PO.Config(epsilon=0.05, most_similar=1.0)
    for optimizer in ("mode_finding", "oracle"):
        C3PO.Config(epsilon=0.01, optimizer=optimizer)


@pytest.mark.parametrize(
    ("keys", "expected_cell"),
    [
        ({"update": "gd"}, {"update": "gd", "k": "3", "epsilon": "-"}),
        ({"optimizer": "kernel_regression"}, {"update": "-", "k": "3"}),
        ({"epsilon": 0.5}, {"update": "adam", "k": "-", "epsilon": "0.5"}),
    ],
    ids=str,
)
def test_a_table_shows_a_dash_for_what_makes_no_difference(keys, expected_cell):
    settings = C3PO.Config(**keys)
    cell = SimpleNamespace(choices={}, values={"method": asdict(settings)})
    prepared = SimpleNamespace(config=SimpleNamespace(method=settings), cell=cell)
    for key, value in expected_cell.items():
        assert coordinate(prepared, f"method.{key}") == value


def test_the_default_learning_rate_is_the_papers_as_it_is_written():
    """Broken by: 10e-2 to 10e-5 read as 0.01 to 0.00001, at which nearly no expert changes."""
    (cell,) = compose_or_explain(["method=c3po"])
    assert to_config(cell).method.learning_rate == C3PO.Config().learning_rate == [10e-2, 10e-5]


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("last5", [11, 12, 13, 14, 15]),
        ("first2+last3", [0, 1, 13, 14, 15]),
        ("middle4", [6, 7, 8, 9]),
        ("middle5", [5, 6, 7, 8, 9]),
        ("all", list(range(16))),
        ([3, 1], [1, 3]),
    ],
)
def test_names_mean_the_papers_layers(name, layers):
    assert named_layers(name, 16) == layers


@pytest.mark.parametrize(
    "name", ["last17", "last0", "end5", "first9+last9", [16], [], "last", "last5+", [1, 1]]
)
def test_layers_that_there_are_not_are_refused(name):
    with pytest.raises(ConfigError, match=r"method\.layers="):
        named_layers(name, 16)


def test_a_run_without_a_question_reports_no_dropped_reference():
    block = C3PO(C3PO.Config()).report(facts(), {}, {})["c3po"]
    assert block["reference"] == {"too_similar": 0, "questions_without": 0, "set": None}
