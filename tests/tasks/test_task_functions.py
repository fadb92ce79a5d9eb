"""Breaks if a function of a task YAML reads a document or an answer wrongly,
if a lettered question is not the document's or gives its answer away, or if another answer
than the majority's is evaluated.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.tasks._yaml_loader import load_yaml

from moe_lab.config.schema import TaskConfig
from moe_lab.errors import ConfigError, TaskError
from moe_lab.tasks.answer_numbers import answer_number, extract_answers, same_number, score_number
from moe_lab.tasks.documents import gold_choice
from moe_lab.tasks.letters import in_letters, lettered
from moe_lab.tasks.self_consistency import TEMPERATURE, voted
from moe_lab.tasks.task_functions import plain_question
from moe_lab.tasks.task_index import OWN_TASKS
from tests.support.documents import (
    BIGBENCH,
    COPA,
    HELLASWAG,
    KNOWREF,
    OPENBOOKQA,
    PIQA,
    SCIQ,
    SOCIAL_IQA,
    WINOGRANDE,
)
from tests.support.runs import choices, load_task, small_data, sums, write_jsonl
from tests.support.scoring import filtered, scores_of

# answer_format/

FIVE = choices(1)[0] | {
    "choices": {"text": list("vwxyz"), "label": list("12345")},
    "answerKey": "5",
}
CASES: dict[str, tuple[str, dict[str, Any], str, int]] = {
    "arc_challenge_answer_format": (
        "arc_challenge",
        FIVE,
        "Please choose the correct answer to the question: Which colour is number 0?\n\n"
        "Answer1: v Answer2: w Answer3: x Answer4: y Answer5: z\n\n"
        "Answer format: answer1/answer2/answer3/answer4/answer5\n\nthe correct answer is",
        4,
    ),
    "openbookqa_answer_format": (
        "openbookqa",
        OPENBOOKQA,
        "Please choose the correct answer to the question: Ice is\n\n"
        "Answer1: hot Answer2: cold Answer3: loud Answer4: old\n\n"
        "Answer format: answer1/answer2/answer3/answer4\n\nthe correct answer is",
        1,
    ),
    "hellaswag_answer_format": (
        "hellaswag",
        HELLASWAG,
        "Please choose the correct ending to complete the given sentence: Cooking: A pot boils. "
        "the cook\n\n"
        "Ending1: runs. Ending2: stirs it. Ending3: reads. Ending4: swims.\n\n"
        "Answer format: ending1/ending2/ending3/ending4\n\nthe correct answer is",
        1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_prompt_and_the_names_to_choose_from(name, tmp_path):
    folder, row, prompt, gold = CASES[name]
    for split in ("validation", "test"):
        write_jsonl(tmp_path / folder / f"{split}.jsonl", [row])
    task = load_task(tmp_path, name, data_folder=folder)
    task.build_all_requests()
    arguments = [instance.args for instance in task.instances]
    assert {context for context, _ in arguments} == {prompt}
    kind = "ending" if name.startswith("hellaswag") else "answer"
    for number, (_, answer) in enumerate(arguments, 1):
        assert answer == f" {kind}{number}"
    assert task.doc_to_target(task.task_docs[0]) == gold


def test_examples_end_with_their_answer(tmp_path):
    write_jsonl(tmp_path / "openbookqa" / "test.jsonl", [OPENBOOKQA])
    write_jsonl(
        tmp_path / "openbookqa" / "train.jsonl", [OPENBOOKQA | {"question_stem": "Fire is"}]
    )
    task = load_task(tmp_path, "openbookqa_answer_format", data_folder="openbookqa", num_fewshot=1)
    task.build_all_requests()
    assert "Fire is" in task.instances[0].args[0]
    assert "the correct answer is answer2\n\nPlease choose" in task.instances[0].args[0]


# arithmetic/


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3 + 4 = 7\n#### 7", "7"),
        ("#### 5 apples, not 6", "5"),
        ("First #### 3, no: #### 4", "4"),
        ("#### none, so 12", "12"),
        ("The answer is 1,234.", "1234"),
        ("It costs $1,234,567.50.", "1234567.50"),
        ("He has 12 apples.", "12"),
        ("so -7", "-7"),
        ("10-7", "7"),
        ("10 - 7 = 3.", "3"),
        ("It is 0.5", "0.5"),
        ("It is .5", ".5"),
        ("1, 2, 3", "3"),
        ("12,34", "34"),
        ("about 45%", "45"),
        ("#### 9{,}500", "9500"),
        (r"so it is $9\,500$", "9500"),
        ("#### 1,500", "1500"),
        ("#### \N{MINUS SIGN}7", "-7"),
        ("10\N{MINUS SIGN}7", "7"),
        ("5 \N{MINUS SIGN} 12 = \N{MINUS SIGN}7", "-7"),
        ("Each gets 2/3 of it", "2/3"),
        ("#### 2 / 3", "2/3"),
        (r"\boxed{-\frac{2}{3}}", "-2/3"),
        (r"1\frac{2}{3}", "1 2/3"),
        ("He eats 1 2/3 cakes", "1 2/3"),
        ("two thirds (2/3rds)", "2/3"),
        ("on 5/12/2020", "2020"),
        ("never 3/0", "0"),
        (r"costs \$12.50", "12.50"),
        ("#### 1e3", "1e3"),
        ("no number", ""),
        ("", ""),
    ],
)
def test_answer_number(text, number):
    assert answer_number(text) == number


@pytest.mark.parametrize(
    ("answer", "gold", "is_same"),
    [
        ("15.0", "15", True),
        ("15", "15.0", True),
        ("0.6666667", "0.6666666666666666", True),
        ("0.667", "0.6666666666666666", True),
        ("2/3", "0.6666666666666666", True),
        ("0.66", "0.6666666666666666", False),
        ("1 2/3", "1.6666666666666667", True),
        ("-1 1/2", "-1.5", True),
        ("3", "2.9999999999999996", True),
        ("12.5", "12.50", True),
        ("1000000.5", "1,000,000", False),
        ("22090620", "22090603", False),
        ("14.9996", "15", False),
        ("9500", "9{,}500", True),
        ("-7", "\N{MINUS SIGN}7", True),
        ("1e3", "1000", True),
        ("1" * 5000, "15", False),  # more digits than Python's int() reads
        ("1000002", "1000000", False),
        ("", "15", False),
        ("16", "15", False),
        ("-15", "15", False),
        ("0", "0.0", True),
    ],
)
def test_same_number(answer, gold, is_same):
    assert same_number(answer, gold) is is_same


def test_score_reads_the_filtered_answer():
    filtered = extract_answers([["He has 4 + 3 = 7 pens.\n#### 7"], ["I think 8"]], [{}, {}])
    assert filtered == [["7"], ["8"]]
    assert score_number({"answer": "7.0"}, filtered[0]) == {"exact_match": 1.0}
    assert score_number({"answer": "7.0"}, filtered[1]) == {"exact_match": 0.0}


@pytest.mark.parametrize("gold", [7, 7.0, "7", " 7 ", "7.00"])
def test_a_right_answer_may_be_a_number_of_json(gold, tmp_path):
    write_jsonl(tmp_path / "addsub" / "test.jsonl", [{"question": "3 + 4?", "answer": gold}])
    task = load_task(tmp_path, "addsub")
    (document,) = task.task_docs
    assert task.process_results(document, ["7"]) == {"exact_match": 1.0}
    assert task.process_results(document, ["8"]) == {"exact_match": 0.0}


@pytest.mark.parametrize("gold", ["50%", "7 pens", "", "seven", True])
def test_a_right_answer_that_is_no_number_is_named_before_anything_is_asked(gold, tmp_path):
    rows = [{"question": "3 + 4?", "answer": "7"}, {"question": "Half of all?", "answer": gold}]
    if not isinstance(gold, str):
        del rows[0]  # a column has one type
    write_jsonl(tmp_path / "svamp" / "test.jsonl", rows)
    with pytest.raises(
        TaskError, match=rf"Document \d \('Half of all\?'\) has answer={gold!r}: no number"
    ):
        load_task(tmp_path, "svamp")


@pytest.mark.parametrize("name", ["addsub", "singleeq", "multiarith", "svamp"])
def test_the_arithmetic_tasks_score_by_these_functions(name, tmp_path):
    write_jsonl(
        tmp_path / name / "test.jsonl", [{"question": "2 of 3?", "answer": "0.6666666666666666"}]
    )
    task = load_task(tmp_path, name)
    for text, value in (
        ("#### 2/3", 1.0),
        ("it is 0.667.", 1.0),
        ("#### 0.66", 0.0),
        ("#### 2", 0.0),
    ):
        answer = filtered(task, [text])["numeric"]
        assert task.process_results(task.task_docs[0], [answer]) == {"exact_match": value}


# references/


@pytest.mark.parametrize(
    "inputs, targets, question, options",
    [
        ("Q: Is ice cold?\nA:", ["Yes", "No"], "Q: Is ice cold?", ["Yes", "No"]),
        ("Is it?\nA. Yes\nB. No\nAnswer: ", ["Yes", "No"], "Is it?", ["Yes", "No"]),
        ("Which?\n\nA. Heat\nB. Big\nAnswer: ", ["A", "B"], "Which?", ["Heat", "Big"]),
        (
            "A. Li met B. Ray.\nQ: Who?\nA:",
            ["Ann", "Bob"],
            "A. Li met B. Ray.\nQ: Who?",
            ["Ann", "Bob"],
        ),
        ("Which?\nA. 1\nB. 2\nC. 3\nAnswer:", ["x", "y"], "Which?\nA. 1\nB. 2\nC. 3", ["x", "y"]),
    ],
)
def test_options_are_taken_out_of_the_prompt(inputs, targets, question, options):
    row = {"inputs": inputs, "multiple_choice_targets": targets, "multiple_choice_scores": [0, 1]}
    assert plain_question(row) == {"question": question, "options": options, "gold": 1}


def test_bigbench_keeps_the_rows_with_one_right_choice(tmp_path):
    none = BIGBENCH | {"multiple_choice_targets": [], "multiple_choice_scores": []}
    two_right = BIGBENCH | {"multiple_choice_scores": [1, 1]}
    write_jsonl(tmp_path / "bigbench" / "test.jsonl", [none, BIGBENCH, two_right])
    task = load_task(
        tmp_path, "bigbench_choice", data_folder="bigbench", answer="letters", num_fewshot=0
    )
    (document,) = task.task_docs
    assert task.doc_to_text(document) == "Q: Is ice cold?\nA. Yes\nB. No\nAnswer:"
    assert gold_choice(task, document) == 0


def test_a_task_without_its_files_or_without_choices_is_refused(tmp_path):
    with pytest.raises(TaskError, match=r"data_dir=<folder> with bigbench/test.jsonl"):
        load_task(None, "bigbench_choice", num_fewshot=0)
    with pytest.raises(TaskError, match="no multiple-choice task"):
        load(tmp_path, "toy_text")


# Letters


MMLU = {"question": "1 + 1 = ?", "choices": list("1234"), "answer": 1, "subject": "x"}
LETTERED = {
    "winogrande": (
        WINOGRANDE,
        "Question: Sandra thanked Sam because _ had helped.\nA. Sandra\nB. Sam\nAnswer:",
    ),
    "copa": (COPA, "It rained therefore\nA. sun.\nB. wet.\nAnswer:"),
    "piqa": (PIQA, "Question: Boil water.\nA. Freeze it.\nB. Heat it.\nAnswer:"),
    "knowref": (
        KNOWREF,
        (
            "Ann met Eve when [she] left.\n"
            "Question: Who is meant by the word in brackets?\nA. Ann\n"
            "B. Eve\nAnswer:"
        ),
    ),
}
"""Documents whose second choice is right, and their prompts."""


TRUTHFUL = {
    "question": "Is ice warm?",
    "mc1_targets": {"choices": ["No", "Yes", "At night"], "labels": [1, 0, 0]},
    "mc2_targets": {"choices": ["No", "It is cold", "Yes"], "labels": [1, 1, 0]},
}
DOCUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "arc_easy": (FIVE, "z"),
    "arc_challenge": (FIVE, "z"),
    "openbookqa": (OPENBOOKQA, "cold"),
    "social_iqa": (SOCIAL_IQA, SOCIAL_IQA["answer" + "ABC"[int(SOCIAL_IQA["label"]) - 1]]),
    "sciq": (SCIQ, "water"),
    "piqa": (PIQA, "Heat it."),
    "copa": (COPA, "wet."),
    "winogrande": (WINOGRANDE, "Sam"),
    "knowref": (KNOWREF, "Eve"),
    "truthfulqa_mc1": (TRUTHFUL, "No"),
    "hellaswag": (HELLASWAG, "stirs it."),
}
"""A document of a task of conf/task/, and the text of its right option."""


def load(folder: Path, name: str, **keys):
    return load_task(folder, name, **{"answer": "letters", **keys})


@pytest.mark.parametrize("name", LETTERED)
def test_the_prompt_is_the_one_written_by_hand(name, tmp_path):
    document, prompt = LETTERED[name]
    for split in ("validation", "test"):
        write_jsonl(tmp_path / name / f"{split}.jsonl", [document])
    task = load(tmp_path, name, num_fewshot=0)
    evaluated_document = task.task_docs[0]
    assert task.doc_to_text(evaluated_document) == prompt
    assert task.doc_to_choice(evaluated_document) == ["A", "B"]
    assert task.doc_to_target(evaluated_document) == 1
    assert [metric["metric"] for metric in task.config.metric_list] == ["acc"]
    [first, second, *_] = task.construct_requests(evaluated_document, prompt, doc_id=0)
    assert (first.args, second.args) == ((prompt, " A"), (prompt, " B"))


def test_the_right_letter_is_the_right_choice_in_every_document(tmp_path):
    rows = choices(50)
    write_jsonl(tmp_path / "arc_easy" / "test.jsonl", rows)
    write_jsonl(tmp_path / "arc_easy" / "train.jsonl", rows[:5])
    lettered = load(tmp_path, "arc_easy")
    in_text = load(tmp_path, "arc_easy", answer="text")
    for document, text_document in zip(lettered.task_docs, in_text.task_docs, strict=True):
        letter = lettered.doc_to_choice(document)[lettered.doc_to_target(document)]
        right = in_text.doc_to_choice(text_document)[in_text.doc_to_target(text_document)]
        assert f"\n{letter}. {right}\n" in lettered.doc_to_text(document)


def test_examples_are_in_letters_too(tmp_path):
    rows = choices(6)
    write_jsonl(tmp_path / "arc_easy" / "test.jsonl", rows[:2])
    write_jsonl(tmp_path / "arc_easy" / "train.jsonl", rows[2:])
    task = load(tmp_path, "arc_easy", num_fewshot=2)
    task.build_all_requests()
    prompt = task.instances[0].args[0]
    assert prompt.count("\nAnswer: ") == 2
    assert prompt.count("\nA. ") == 3
    assert prompt.endswith("\nAnswer:")


def test_a_fixed_place_of_the_right_answer_is_shuffled_the_same_way_each_time(tmp_path):
    rows = [SCIQ | {"question": f"What is wet {i}?"} for i in range(80)]
    for split in ("train", "validation", "test"):
        write_jsonl(tmp_path / "sciq" / f"{split}.jsonl", rows)
    first = load(tmp_path, "sciq")
    second_load = load(tmp_path, "sciq")
    golds = [first.doc_to_target(document) for document in first.task_docs]
    assert golds == [second_load.doc_to_target(document) for document in second_load.task_docs]
    # by chance: below 1e-3 for a fair shuffle
    for count in Counter(golds).values():
        assert count >= 8
    assert sorted(Counter(golds)) == [0, 1, 2, 3]
    for document, gold in zip(first.task_docs, golds, strict=True):
        assert f"\n{'ABCD'[gold]}. water\n" in first.doc_to_text(document)


@pytest.mark.parametrize("name", ["mmlu_virology", "toy_math"])
def test_what_is_in_letters_already_or_generated_stays_as_it_is(name, tmp_path):
    for split in ("dev", "validation", "test"):
        write_jsonl(tmp_path / "mmlu_virology" / f"{split}.jsonl", [MMLU])
    letters = load(tmp_path, name, answer="letters", num_fewshot=0)
    text = load(tmp_path, name, answer="text", num_fewshot=0)
    prompts_asked = [
        (
            name_of_task.doc_to_text(name_of_task.task_docs[0]),
            name_of_task.dump_config()["metric_list"],
        )
        for name_of_task in (letters, text)
    ]
    assert prompts_asked[0] == prompts_asked[1]


def test_the_metric_of_letters_is_plain_accuracy():
    assert (
        TaskConfig(name="arc_easy", metric="acc_norm,none", answer="letters").metric == "acc,none"
    )
    assert TaskConfig(name="arc_easy", metric="acc_norm,none").metric == "acc_norm,none"


def test_choices_that_begin_alike_keep_their_words():
    two = ["I hear that Mary Ann", "I hear that Mark"]
    settings = {"doc_to_text": 0, "doc_to_target": "won.", "doc_to_choice": two}
    columns = lettered(settings, {})
    assert (
        columns["letters_prompt"] == "Question: I hear that _ won.\nA. Mary Ann\nB. Mark\nAnswer:"
    )


def settings_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The settings of each multiple-choice task below a folder that has a name, without data."""
    settings_found = {}
    for file in sorted(folder.rglob("*.yaml")):
        try:
            settings = load_yaml(file)
        except ImportError:  # of a package that this task alone needs
            continue
        if settings.get("output_type") == "multiple_choice" and isinstance(
            settings.get("task"), str
        ):
            settings_found[settings["task"]] = settings
    return settings_found


LM_EVAL = Path(lm_eval.__file__).parent / "tasks"
SAMPLE = (
    "agieval",
    "arc",
    "bbq",
    "blimp",
    "crows_pairs",
    "mutual",
    "truthfulqa",
    "super_glue",
    "hellaswag",
    "piqa",
)


@pytest.mark.parametrize(
    "folder", [OWN_TASKS, *(LM_EVAL / name for name in SAMPLE)], ids=lambda folder: folder.name
)
def test_no_lettered_task_is_scored_by_a_function_of_its_own(folder):
    for name, settings in settings_of(folder).items():
        try:
            lettered_settings = in_letters(settings)
        except TaskError as error:
            no_choices = settings.get("doc_to_choice") is None
            assert no_choices or f"{name} scores its answers by a function of its own" in str(error)
            continue
        unchanged = lettered_settings is settings  # in letters already
        assert unchanged or lettered_settings.get("process_results") is None


@pytest.mark.parametrize("name", [*DOCUMENTS, "truthfulqa_mc2"])
def test_every_multiple_choice_task_of_conf_is_refused_or_scored_by_its_letter(name, tmp_path):
    if name == "truthfulqa_mc2":
        write_jsonl(tmp_path / "truthfulqa" / "validation.jsonl", [TRUTHFUL])
        with pytest.raises(
            TaskError, match="truthfulqa_mc2 scores its answers by a function of its own"
        ):
            load(tmp_path, name, data_folder="truthfulqa")
        return
    row, right = DOCUMENTS[name]
    for split in ("train", "validation", "test"):
        write_jsonl(tmp_path / name / f"{split}.jsonl", [row])
    task = load(tmp_path, name, data_folder=name, num_fewshot=0)
    document = task.task_docs[0]
    letters = task.doc_to_choice(document)
    for chosen, letter in enumerate(letters):
        scores = [(-float(place != chosen), False) for place in range(len(letters))]
        expected = f"\n{letter}. {right}\n" in task.doc_to_text(document)
        assert scores_of(task, document, *scores)["acc"] == float(expected)


def test_a_question_with_more_options_than_letters_is_refused():
    document = {
        "doc_to_text": "Which?",
        "doc_to_target": 3,
        "doc_to_choice": [str(i) for i in range(27)],
    }
    with pytest.raises(
        TaskError, match="a question has 27 options, and there are 26 letters: 'Which\\?'"
    ):
        lettered(document, {})
    columns = lettered(document | {"doc_to_choice": document["doc_to_choice"][:26]}, {})
    assert columns["letters"][-1] == "Z"
    assert "\nZ. " in columns["letters_prompt"]


@pytest.mark.parametrize("target", [[0, 1], "neither", 2, -1, None])
def test_a_question_without_one_right_option_is_refused(target):
    odd_document = {
        "doc_to_text": "Which?",
        "doc_to_target": lambda document: target,
        "doc_to_choice": ["a", "b"],
    }
    with pytest.raises(TaskError, match="needs one right option for each question"):
        lettered(odd_document, {})


def test_a_fixed_place_that_is_written_as_text_is_shuffled_too():
    settings = {"doc_to_target": "0", "doc_to_choice": ["right", "wrong"]}
    golds = {
        lettered(settings | {"doc_to_text": f"Which {i}?"}, {})["letters_gold"] for i in range(20)
    }
    assert golds == {0, 1}


# Self-consistency

TEXTS = [
    ["#### 4", "#### 5", "so 5", "no number", "it is 4.", "#### 5", "4", "#### 5"],
    ["#### 7", "#### 6", "6", "7"],
    ["none", "#### 9", "nothing"],
]
"""Sampled answers: a majority, a tie, and one of samples without an answer."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data(tmp_path_factory.mktemp("data"))


def load_voted(name: str, data: Path | None = None, votes: int | None = 8, **keys):
    return load_task(data, name, self_consistency=votes, **keys)


def vote_by_loop(answers: list[str]) -> str:
    """The answer with the most votes; of several, the one that came first."""
    best = ""
    most_votes = 0
    for answer in answers:
        votes = sum(candidate == answer for candidate in answers)
        if votes > most_votes:
            best = answer
            most_votes = votes
    return best


@pytest.mark.parametrize("texts", TEXTS)
def test_the_vote_is_that_of_a_loop(texts, data):
    expected = vote_by_loop([answer_number(text) for text in texts])
    assert filtered(load_voted("addsub", data), texts) == {"numeric": expected}
    strict = [text[5:] if text.startswith("####") else "[invalid]" for text in texts]
    assert filtered(load_voted("gsm8k", data, num_fewshot=0), texts)[
        "strict-match"
    ] == vote_by_loop(strict)
    assert filtered(load_voted("toy_math"), texts) == {"none": vote_by_loop(strict)}


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["#### 5", "#### 5", "#### 29", "#### 29.0", "#### 29.00"], {"29"}),
        (["#### 5", "#### 5", "#### 29.0", "#### 29.00", "#### 29.0"], {"29.0"}),
        (["#### 5", "#### 5", "#### 2/3", "#### 0.667", "#### 0.6667"], {"2/3"}),
        (["#### 1.0004", "#### 1", "#### 5", "#### 5"], {"5"}),
        (["#### 1,000", "#### 5", "#### 1000"], {"1000", "1,000"}),
    ],
)
def test_equal_numbers_are_one_answer_of_the_vote(texts, expected, data):
    assert filtered(load_voted("addsub", data), texts)["numeric"] in expected
    if "." not in "".join(texts) and "/" not in "".join(texts):
        gsm8k = load_voted("gsm8k", data, num_fewshot=0)
        assert filtered(gsm8k, texts)["strict-match"] in expected


def test_samples_are_asked_for_and_right_is_what_their_vote_says(data):
    settings = load_voted("addsub", data).config
    assert (settings.repeats, settings.generation_kwargs["do_sample"]) == (8, True)
    assert settings.generation_kwargs["temperature"] == TEMPERATURE
    warm = load_voted("addsub", data, gen_kwargs={"temperature": 0.3}).config.generation_kwargs
    assert (warm["do_sample"], warm["temperature"]) == (True, 0.3)
    greedy = load_voted("addsub", data, gen_kwargs={"temperature": 0}).config.generation_kwargs
    assert greedy["do_sample"] is False
    assert load_voted("addsub", data, votes=None).config.repeats == 1
    task = load_voted("addsub", data)
    document = {"answer": "5"}
    assert task.process_results(document, [filtered(task, TEXTS[0])["numeric"]]) == {
        "exact_match": 1.0
    }
    plain_task = load_voted("addsub", data, votes=None)
    assert plain_task.process_results(document, [filtered(plain_task, TEXTS[0])["numeric"]]) == {
        "exact_match": 0.0
    }


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("toy_choice", "toy_choice scores given texts"),
        ("toy_text", "toy_text scores given texts"),
        ("humaneval", "humaneval executes programs"),
        ("toy_safety", "toy_safety is judged"),
    ],
)
def test_tasks_without_an_extracted_answer_are_refused(name, says, tmp_path):
    write_jsonl(tmp_path / name / "test.jsonl", sums(1))
    with pytest.raises(TaskError, match=f"task.self_consistency=8.*{says}"):
        load_voted(name, tmp_path)


def test_filters_that_extract_nothing_samples_of_their_own_and_one_sample_are_refused():
    config = {"task": "my_task", "output_type": "generate_until"}
    for functions in (["take_first"], ["regex"], ["take_first", "regex"]):
        filters = [{"name": "none", "filter": [{"function": function} for function in functions]}]
        with pytest.raises(TaskError, match="my_task extracts none"):
            voted(config | {"filter_list": filters}, 3)
    with pytest.raises(TaskError, match="my_task extracts none"):
        voted(config, 3)
    with pytest.raises(TaskError, match="my_task has repeats of its own"):
        voted(config | {"repeats": 64}, 3)
    with pytest.raises(ConfigError, match="task.self_consistency=1"):
        TaskConfig(self_consistency=1)
