"""Whose answers a perplexity is of. Broken by: bare answers that are scored behind steps, a study of another
id than GSM8K's own, a test document that is left out for a study on other data, an equation that is not in the answer.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.engine.lm import EngineLM
from moe_lab.errors import ConfigError, MoeLabError
from moe_lab.methods import get_method
from moe_lab.models import load
from moe_lab.runs.jobs import job_of
from moe_lab.runs.tuning.objective import Perplexity
from moe_lab.runs.tuning.study import prepare_study
from moe_lab.runs.tuning.texts import SOURCE, equation, has_bare_answers, with_equation
from tests.support.runs import choices, sums, tuned, worked_sums, write_jsonl

PERPLEXITY = {"metric": "perplexity"}


@pytest.fixture
def own_data(tmp_path):
    """Data that a test may change."""
    write_jsonl(tmp_path / "data" / "addsub" / "test.jsonl", sums(12))
    write_jsonl(tmp_path / "data" / "gsm8k" / "train.jsonl", worked_sums(20, start=50))
    return tmp_path / "data"


def addsub(model, data, output, **keys):
    tuning = PERPLEXITY | keys.pop("tuning", {})
    return tuned(model, data, output, "addsub", num_fewshot=0, tuning=tuning, **keys)


def test_a_task_with_bare_answers_takes_the_profile_of_gsm8ks_study(tiny_olmoe_dir, data, tmp_path):
    """Broken by: solutions that the model itself wrote, whose perplexity any averaging makes worse."""
    given = addsub(tiny_olmoe_dir, data, tmp_path, gen_kwargs={"max_gen_toks": 8})
    study = prepare_study(given)
    gsm8k = prepare_study(replace(given, task=SOURCE, gen_kwargs=None))
    assert study.study_id == gsm8k.study_id and study.folder == gsm8k.folder
    assert study.text == gsm8k.text == "data"
    assert study.samples == gsm8k.samples and list(study.samples) == ["gsm8k"]
    evaluated = study.tuned_config()
    assert evaluated.task.name == "addsub" and evaluated.gen_kwargs == {"max_gen_toks": 8}
    assert evaluated.method.temperature == str(gsm8k.folder / "best.yaml")
    assert job_of(given).studies[0].evaluated.task.name == "addsub"


def test_gsm8ks_option_is_what_a_study_on_it_takes():
    from moe_lab.cli.main import compose_or_explain
    from moe_lab.runs.config import to_config

    (cell,) = compose_or_explain(["task=gsm8k"])
    assert to_config(cell).task == SOURCE


def test_no_test_document_is_lost_to_a_study_on_gsm8k(tiny_olmoe_dir, own_data, tmp_path):
    """Broken by: tuning documents of the task itself. GSM8K's test split is not read."""
    from moe_lab.tasks.documents import select_documents
    from moe_lab.tasks.loading import load_tasks

    study = prepare_study(addsub(tiny_olmoe_dir, own_data, tmp_path))
    tasks = load_tasks(study.evaluated)
    assert len(select_documents(study.evaluated, tasks, frozenset(study.documents))["addsub"]) == 12


def test_the_task_of_gsm8k_asks_for_nothing_else(tiny_olmoe_dir, data, tmp_path):
    given = tuned(tiny_olmoe_dir, data, tmp_path, "gsm8k", num_fewshot=1, tuning=PERPLEXITY)
    for text in ("data", "gsm8k"):
        same = replace(given, tuning=replace(given.tuning, text=text))
        assert prepare_study(same).study_id == prepare_study(replace(given, task=SOURCE)).study_id


@pytest.mark.parametrize(
    "task, tuning, message",
    [
        ("addsub", {"text": "data"}, "tuning.text=data: the answers of addsub are bare"),
        ("addsub", {"text": "equations"}, r"tuning.text=equations: not every row of addsub has an equation"),
        (
            "addsub",
            {"text": "equations", "metric": "accuracy"},
            "tuning.text=equations says .* Leave one of them out",
        ),
        ("arc_easy", {"text": "gsm8k"}, "tuning.text=gsm8k: arc_easy generates no answers"),
    ],
)
def test_answers_that_there_are_not_are_refused(task, tuning, message, tiny_olmoe_dir, data, tmp_path):
    given = tuned(tiny_olmoe_dir, data, tmp_path, task, num_fewshot=0, tuning=PERPLEXITY | tuning)
    with pytest.raises(ConfigError, match=message):
        prepare_study(given)


@pytest.mark.parametrize("answers", [None, "bare"])
def test_without_gsm8ks_answers_the_choices_are_named_before_weights_load(
    answers, tiny_olmoe_dir, own_data, tmp_path, monkeypatch
):
    monkeypatch.setattr(load, "load_model", None)
    file = own_data / "gsm8k" / "train.jsonl"
    file.unlink()
    if answers == "bare":
        write_jsonl(file, sums(20, start=50))
    with pytest.raises(MoeLabError) as raised:
        prepare_study(addsub(tiny_olmoe_dir, own_data, tmp_path))
    message = str(raised.value)
    assert "tuning.text=gsm8k" in message and len(message.splitlines()) <= 3
    assert all(f"tuning.{choice}" in message for choice in ("text=equations", "metric=accuracy"))
    assert (str(file.parent) in message) == (answers is None)


@pytest.mark.parametrize(
    "document, answer, expected",
    [
        ({"Equation": "( 8.0 - 3.0 )"}, " #### 5", " ( 8.0 - 3.0 ) = 5\n#### 5"),
        ({"lEquations": ["X=(32.0+42.0)-35.0"]}, " #### 39", " X=(32.0+42.0)-35.0\n#### 39"),
        ({"equation": "1 + 1 = 2", "lEquations": ["no"]}, "#### 2", "1 + 1 = 2\n#### 2"),
    ],
)
def test_an_equation_stands_before_its_answer(document, answer, expected):
    assert with_equation(document, answer) == expected


@pytest.mark.parametrize("document", [{}, {"equation": None}, {"Equation": " "}, {"lEquations": []}])
def test_a_row_without_an_equation_has_none(document):
    assert equation(document) is None


def test_the_perplexity_of_equations_is_of_the_rows_with_them(
    tiny_olmoe_dir, own_data, tmp_path, olmoe, tokenizer
):
    rows = [row | {"equation": f"{i} + 2"} for i, row in enumerate(sums(12))]
    write_jsonl(own_data / "addsub" / "test.jsonl", rows)
    given = addsub(tiny_olmoe_dir, own_data, tmp_path, tuning={"text": "equations"})
    study = prepare_study(given)
    scored = [
        request.args[1] for request in Perplexity(study, EngineLM(olmoe, tokenizer, progress=False)).requests
    ]
    numbers = study.samples["addsub"]
    assert scored == [f" {i} + 2 = {i + 2}\n#### {i + 2}" for i in numbers]


def test_choices_have_no_bare_answers(tiny_olmoe_dir, own_data, tmp_path):
    write_jsonl(own_data / "arc_easy" / "test.jsonl", choices(10))
    given = tuned(tiny_olmoe_dir, own_data, tmp_path, "arc_easy", num_fewshot=0, tuning=PERPLEXITY)
    assert prepare_study(given).text == "data"
    assert given.task == TaskConfig(name="arc_easy")


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
    given = Config(
        method=get_method("roe").Config(),
        task=TaskConfig(name=task),
        data_dir=str(tmp_path / "data"),
        offline=True,
    )
    [found] = load_tasks(given)["tasks"].values()
    assert has_bare_answers(found) is wanted


def test_the_toy_word_problems_have_worked_answers_of_their_own():
    from moe_lab.tasks.loading import load_tasks

    [task] = load_tasks(Config(method=get_method("roe").Config(), offline=True))["tasks"].values()
    assert not has_bare_answers(task)
