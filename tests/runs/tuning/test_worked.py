"""The untouched model's own solutions as what perplexity is of. Broken by: a bare final answer or a wrong solution that
is scored, a text that is not behind its own prompt, a test document among them, a model that is asked twice.
"""

from __future__ import annotations

import json
import math

import pytest
import torch

from moe_lab.config.schema import Config, ModelConfig, TaskConfig, TuningConfig
from moe_lab.engine.lm import EngineLM
from moe_lab.errors import ConfigError
from moe_lab.methods import get_method
from moe_lab.models.load import load_model
from moe_lab.runs.tuning.objective import objective, with_first_space, worked_references
from moe_lab.runs.tuning.study import prepare_study
from moe_lab.runs.tuning.texts import BIAS, has_bare_answers
from moe_lab.tasks.task_functions import answer_number, same_number
from tests.support.runs import choices, sums, write_jsonl

PROMPT = (
    'Solve the problem step by step. End with the answer as "#### <number>".\n\nQuestion: {question}\nAnswer:'
)
STOPS = ("Question:", "</s>", "<|im_end|>", "<|endoftext|>")


@pytest.fixture(scope="module")
def tiny():
    return load_model(ModelConfig(name="tiny"), dtype="float32", device="cpu", offline=True)


def problem(i: int) -> dict[str, str]:
    question = f"Mado has {20 + i} stones. Mado buys {i + 3} more. How many stones does Mado have now?"
    return {"question": question, "answer": str(23 + 2 * i)}


def config(tmp_path, rows: list[dict], task: str = "addsub", **tuning) -> Config:
    write_jsonl(tmp_path / "data" / task / "test.jsonl", rows)
    return Config(
        method=get_method("roe").Config(n=2),
        task=TaskConfig(name=task),
        tuning=TuningConfig(
            **{"name": "tpe", "num_samples": 4, "metric": "perplexity", "text": "own"} | tuning
        ),
        data_dir=str(tmp_path / "data"),
        output_dir=str(tmp_path / "outputs"),
        gen_kwargs={"max_gen_toks": 24},
        device="cpu",
        offline=True,
    )


def solved_slowly(tiny, question: str) -> str:
    """What transformers generates greedily, up to the first stop string."""
    ids = torch.tensor([tiny.tokenizer(PROMPT.format(question=question)).input_ids])
    made = tiny.model.generate(ids, max_new_tokens=24, do_sample=False)[0, ids.shape[1] :]
    text = tiny.tokenizer.decode(made)
    return text[: min(text.index(stop) for stop in STOPS if stop in text)]


def test_perplexity_is_that_of_the_models_own_correct_solutions_behind_their_prompts(tiny, tmp_path):
    rows = [problem(i) for i in range(8)]
    study = prepare_study(config(tmp_path, rows))
    tuned_on = study.samples["addsub"]
    wrong = tuned_on[1]
    rows[wrong]["answer"] = "9999"  # the model's solution of it is wrong
    study = prepare_study(config(tmp_path, rows))
    assert study.samples["addsub"] == tuned_on

    cost = tokens = 0.0
    right = []
    for number in tuned_on:
        solution = solved_slowly(tiny, rows[number]["question"])
        if not same_number(answer_number(solution), rows[number]["answer"]):
            continue
        right.append(number)
        assert "+" in solution and "####" in solution
        context = tiny.tokenizer(PROMPT.format(question=rows[number]["question"])).input_ids
        answer = tiny.tokenizer(solution).input_ids
        with torch.no_grad():
            log_probs = tiny.model(torch.tensor([context + answer])).logits.double().log_softmax(-1)[0]
        for place, token in enumerate(answer, start=len(context)):
            cost -= log_probs[place - 1, token].item()
        tokens += len(answer)

    lm = EngineLM(tiny.model, tiny.tokenizer, progress=False)
    measured = objective(study, lm, tiny)(None, lambda *_: None)
    assert measured == pytest.approx(math.exp(cost / tokens), rel=1e-5)
    stored = json.loads((study.worked.folder / "references.json").read_text())
    assert [one["document"] for one in stored["solutions"]] == right
    assert wrong not in right and 0 < len(right) < 4
    counts = {"asked": 4, "correct": len(right), "folder": study.worked.folder.name}
    assert study.references() == counts | {"bias": BIAS}


def test_solutions_are_made_once_and_an_interruption_loses_none(tiny, tmp_path, monkeypatch):
    given = config(tmp_path, [problem(i) for i in range(6)], num_samples=3)
    answer, asked = EngineLM.answer, []

    def counted(self, kind, requests, on_answer):
        def keep(index, text):
            on_answer(index, text)
            asked.append(requests[index].args[0])
            if len(asked) == 2:
                raise KeyboardInterrupt

        answer(self, kind, requests, keep)

    monkeypatch.setattr(EngineLM, "answer", counted)
    study = prepare_study(given)
    with pytest.raises(KeyboardInterrupt):
        worked_references(study, tiny)
    found = worked_references(prepare_study(given), tiny)
    assert len(asked) == len(set(asked)) == 3
    file = study.worked.folder / "references.json"
    for damaged in ("[]", "null", "{", json.dumps(json.loads(file.read_text()) | {"solutions": "x"})):
        file.write_text(damaged)
        assert worked_references(study, None) == found, "made again from the stored answers"
    other = prepare_study(config(tmp_path, [problem(i) for i in range(6)], num_samples=3, n_trials=9))
    assert worked_references(other, None) == found, "no model is asked for what is stored"


@pytest.mark.parametrize(
    ("drops", "prompt", "text", "expected"),
    [
        (True, "Answer:", "Tom has", " Tom has"),
        (True, "Answer:", "\nTom has", "\nTom has"),
        (True, "Answer: ", "Tom has", "Tom has"),
        (False, "Answer:", "Tom has", "Tom has"),
    ],
)
def test_a_solution_stands_behind_its_prompt_as_it_was_generated(drops, prompt, text, expected):
    """Broken by decoders of SentencePiece tokenizers (Mixtral), which drop the space before the first word."""

    class Tokenizer:
        def encode(self, text, add_special_tokens):
            return list(text)

        def decode(self, ids):
            return "".join(ids).removeprefix(" ") if drops else "".join(ids)

    assert with_first_space(prompt, text, Tokenizer()) == expected


def test_no_test_document_is_asked(tiny, tmp_path):
    from moe_lab.tasks.documents import select_documents
    from moe_lab.tasks.loading import load_tasks

    study = prepare_study(config(tmp_path, [problem(i) for i in range(6)], num_samples=2))
    solved = {prompt for prompt, _ in worked_references(study, tiny)}
    tasks = load_tasks(study.config)
    tested = select_documents(study.config, tasks, frozenset(study.documents))["addsub"]
    documents = list(tasks["tasks"]["addsub"].task_docs)
    assert len(tested) == 4 and solved
    assert not solved & {PROMPT.format(question=documents[number]["question"]) for number in tested}


def test_a_task_without_a_solution_refuses_perplexity(tiny, tmp_path):
    rows = [problem(i) | {"answer": "9999"} for i in range(4)]
    given = config(tmp_path, rows, num_samples=1)
    study = prepare_study(given)
    with pytest.raises(ConfigError, match=r"solves none of the 1 tuning documents.*tuning.metric=accuracy"):
        worked_references(study, tiny)
    with pytest.raises(ConfigError, match="solves none"):
        prepare_study(given)  # the next time before weights load
    assert prepare_study(config(tmp_path, rows, num_samples=1, metric="accuracy", text=None)).worked is None


@pytest.mark.parametrize(
    "task, rows, wanted",
    [
        ("addsub", sums(6), True),
        ("gsm8k", [{"question": "1+1?", "answer": "1 + 1 = <<1+1=2>>2\n#### 2"}] * 6, False),
        ("gsm8k", [{"question": "1+1?", "answer": "#### 2"}] * 6, True),
        ("nq_open", [{"question": "Who?", "answer": ["Ann"]}] * 6, False),
        ("arc_easy", choices(6), False),
    ],
)
def test_which_tasks_have_bare_answers_behind_steps(task, rows, wanted, tmp_path):
    from moe_lab.tasks.loading import load_tasks

    for split in ("train", "validation", "test"):
        write_jsonl(tmp_path / "data" / task / f"{split}.jsonl", rows)
    given = config(tmp_path, rows, task)
    [found] = load_tasks(given)["tasks"].values()
    assert has_bare_answers(found) is wanted


def test_the_toy_word_problems_have_worked_answers_of_their_own():
    from moe_lab.tasks.loading import load_tasks

    [task] = load_tasks(Config(method=get_method("roe").Config(), offline=True))["tasks"].values()
    assert not has_bare_answers(task)
