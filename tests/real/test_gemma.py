"""A published dense model with its 262,144 tokens, on real data:
`make test-real DATA_DIR=<local data>`.

Broken by: scores or texts other than those of lm-eval's own `hf`, a memory that grows with the
vocabulary, a refusal that does not say what the model lacks, and a training that changes nothing.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Ended, run_command

Command = Callable[..., Ended]
GIB = 2**30


@pytest.fixture
def command(gemma: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command on the model, on local data where `DATA_DIR` names some."""
    keys = [f"model.path={gemma}", f"output_dir={tmp_path}", "device=cpu"]
    if data := os.environ.get("DATA_DIR"):
        keys.append(f"data_dir={data}")
    return lambda *overrides: run_command(capsys, *overrides, *keys)


@pytest.fixture(scope="module")
def hf(gemma: Path) -> Any:
    """lm-eval's own model."""
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(gemma), device="cpu", dtype="float32", batch_size=2)


def answers(folder: Path) -> list[tuple[tuple[Any, ...], Any]]:
    """(arguments, answer) of each request of the only run in the folder."""
    (path,) = folder.glob("runs/*/samples_*.jsonl")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    first = {line["doc_id"]: line for line in reversed(lines)}
    pairs = []
    for line in first.values():
        for arguments, [answer] in zip(line["arguments"].values(), line["resps"], strict=True):
            pairs.append((tuple(arguments.values()), answer))
    return pairs


def ask(lm: Any, kind: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
    from moe_lab.models.lm_eval_internals import instance_of

    return list(
        getattr(lm, kind)([instance_of(kind, arguments_of_one) for arguments_of_one in arguments])
    )


@pytest.mark.parametrize(("task", "limit"), [("arc_easy", 16), ("piqa", 12), ("winogrande", 12)])
def test_choices_have_the_log_likelihoods_of_lm_eval(task, limit, command, hf, tmp_path):
    assert command("method=base", f"task={task}", f"limit={limit}").code == 0
    arguments, scores = zip(*answers(tmp_path), strict=True)
    expected = ask(hf, "loglikelihood", arguments)
    assert [float(value) for value, _ in scores] == pytest.approx(
        [value for value, _ in expected], rel=1e-5, abs=1e-3
    )
    assert [greedy for _, greedy in scores] == [str(greedy) for _, greedy in expected]


def test_the_perplexity_of_wikitext_is_that_of_lm_eval(command, hf, tmp_path):
    assert command("method=base", "task=wikitext", "limit=1").code == 0
    arguments, scores = zip(*answers(tmp_path), strict=True)
    expected = ask(hf, "loglikelihood_rolling", arguments)
    assert [float(value) for value in scores] == pytest.approx(expected, rel=1e-5)
    (path,) = tmp_path.glob("runs/*/results.json")
    peak = json.loads(path.read_text(encoding="utf-8"))["moe_lab"]["cost"]["peak_memory_bytes"]
    assert peak < 8 * GIB, (
        "the logits of one window take 2 GiB, their softmax must not take as much again and again"
    )


def test_texts_end_at_stop_strings_as_those_of_lm_eval(command, hf, tmp_path):
    limits = "gen_kwargs={until: ['.', Question], max_gen_toks: 24, do_sample: false}"
    assert command("method=base", "task=gsm8k", "num_fewshot=1", "limit=8", limits).code == 0
    arguments, texts = zip(*answers(tmp_path), strict=True)
    for text in texts:
        assert "." not in text
        assert "Question" not in text
    assert any(texts)
    assert list(texts) == ask(hf, "generate_until", arguments)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["method=roe", "task=gsm8k"], "No router was found"),
        (["method=c3po", "task=arc_easy"], "No router was found"),
        (["method=base", "task=arc_easy", "tuning=tpe"], "tuning"),
        (["method=base", "task=arc_easy", "apply_chat_template=true"], "no chat template"),
        (["method=base", "task=arc_easy", "metrics=expert"], "No router was found"),
    ],
)
def test_a_refusal_says_what_the_dense_model_lacks(overrides, message, command):
    ended = command(*overrides, "limit=2")
    assert ended.code == 2
    assert message in ended.err


def test_a_dense_model_is_fine_tuned(command, tmp_path):
    training = [
        "method.dataset_size=16",
        "method.epochs=2",
        "method.learning_rate=1e-5",
        "method.length=128",
    ]
    keys = ["task=toy_choice", "limit=8", *training, "method.compare_with_full=false"]
    ended = command("method=finetune-freeze", *keys)
    assert ended.code == 0, ended.err
    (log,) = tmp_path.glob("models/*/log.jsonl")
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0]
