"""Questions, rules, word problems, differences and texts of the toy world, the tasks that ask them, and the tokenizer.

Broken by: a question or pair of numbers in two splits, a corpus that asks a held-out question, a wrong answer or step, a place
or order that tells the answer, one meaning of a rule that is more frequent than the other or mixed with it, a task that
lm-eval does not load offline, another filter or version of a task, a text that depends on the process, a tokenizer that
loses text or splits an answer.
"""

import hashlib
import json
import re
from fractions import Fraction
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
import yaml
from transformers import AutoTokenizer

import moe_lab.tasks.toy
from moe_lab.config.catalog import resource_folder
from moe_lab.config.schema import Config
from moe_lab.methods.data_files import TOY_SIZES
from moe_lab.methods.pretrain.config import PretrainConfig
from moe_lab.methods.pretrain.corpus import read_corpus, tokenizer_of
from moe_lab.models.source import TINY
from moe_lab.tasks import toy
from moe_lab.tasks.lm_eval_versions.metrics import output_filters
from moe_lab.tasks.toy import DIFFERENCES, QUESTIONS, RULES, differences, rules
from moe_lab.tasks.toy import word_problems as problems
from moe_lab.tasks.toy.corpus import documents
from moe_lab.tasks.toy.harm import replies_to_harm, requests
from moe_lab.tasks.toy.instructions import instructions
from moe_lab.tasks.toy.questions import keys, questions, wordings
from moe_lab.tasks.toy.rules import max_rules, plus_rules
from moe_lab.tasks.toy.stories import cloze, stories
from moe_lab.tasks.toy.tokenizer import END, answers, train_tokenizer
from moe_lab.tasks.toy.world import PEOPLE, RELATIONS, WORLD_VERSION, facts, generator
from moe_lab.tasks.toy.world import RULES as CHAINS
from tests.support.scoring import scores_of

PROBLEMS = [split for split, _ in problems.SHARES]


@cache
def corpus() -> list[str]:
    return [text for index in range(300) for text in documents(0, index, 10)]


def asked(split: str) -> set[str]:
    """Every wording of every question of a split."""
    return {
        wording.format(s=subject) for subject, path in keys(split) for wording in wordings(path)
    }


def numbers(row) -> tuple[int, int]:
    first, second = map(int, re.findall(r"\d+", row["question"]))
    return first, second


def calculations(split: str) -> set[tuple[str, ...]]:
    """The steps of each problem; those of drills are of training."""
    found = {tuple(row["answer"].split("\n")[:-1]) for row in problems.word_problems(split, 400)}
    if split == "train":
        rng = generator("test")
        steps = [problems.word_problem("train", rng, steps=1)["answer"] for _ in range(3000)]
        found |= {tuple(answer.split("\n")[:-1]) for answer in steps}
        found |= {(line,) for _ in range(500) for line in problems.drill(rng).split("\n")}
    return found


PARTS = {
    "keys": (QUESTIONS, lambda split: set(keys(split))),
    "wordings": (QUESTIONS, asked),
    "stories": (
        ("test", "validation", "train"),
        lambda split: {row["text"] for row in stories(split, 100)},
    ),
    "chats": (
        ("test", "validation", "train"),
        lambda split: {row["messages"][0]["content"] for row in instructions(split, 200)},
    ),
    "requests": (
        ("test", "train"),
        lambda split: {(row["subject"], row["relation"]) for row in requests(split, 120)},
    ),
    "rules": (dict(rules.SHARES), lambda split: {frozenset(pair) for pair in rules.pairs(split)}),
    "calculations": (PROBLEMS, calculations),
    "differences": (
        DIFFERENCES,
        lambda split: {frozenset(numbers(row)) for row in differences.differences(split, 10_000)},
    ),
}
"""Kind of data -> its splits, and what is in each."""


@pytest.mark.parametrize("splits, parts", PARTS.values(), ids=PARTS)
def test_splits_are_disjoint(splits, parts):
    found = [parts(split) for split in splits]
    assert all(found) and all(not one & other for one, other in combinations(found, 2))


def test_splits_leave_nothing_out():
    paths = [(name,) for name in RELATIONS] + list(CHAINS)
    questions_of_all = sum(len(RELATIONS[path[0]].subjects) for path in paths)
    assert sum(len(keys(split)) for split in QUESTIONS) == questions_of_all
    rows = [row for split in DIFFERENCES for row in differences.differences(split, 10_000)]
    pairs = combinations(range(differences.LEAST_NUMBER, differences.MOST_NUMBER + 1), 2)
    assert {frozenset(numbers(row)) for row in rows} == {frozenset(pair) for pair in pairs}


def test_the_corpus_and_the_instructions_ask_training_questions_only():
    held_out = set().union(*(asked(split) for split in QUESTIONS if split != "train"))
    lines = "\n".join(corpus()).split("\n")
    in_corpus = {line.removeprefix("Question: ") for line in lines if line.startswith("Question: ")}
    in_chats = {
        row["messages"][0]["content"].split("?")[0] + "?" for row in instructions("train", 1000)
    }
    assert in_corpus & asked("train") and in_chats & asked("train")
    assert not (in_corpus | in_chats) & held_out
    held_out = {row["text"] for split in ("test", "validation") for row in stories(split, 100)}
    assert not held_out & {*corpus()}
    assert not [text for text in corpus() if re.search(r"\bHow far\b|\d+ from \d+", text)]
    subtracted = [
        int(number) for text in corpus() for number in re.findall(r"\d+ - (\d+) = ", text)
    ]
    assert subtracted and max(subtracted) == 60
    test = differences.differences("test", DIFFERENCES["test"])
    assert max(int(row["answer"].split()[2]) for row in test) > 90


@pytest.mark.parametrize("split", QUESTIONS)
def test_the_right_answer_is_the_fact_and_is_once_among_four(split):
    rows = questions(split, QUESTIONS[split])
    assert len(rows) == QUESTIONS[split] and len({row["question"] for row in rows}) == len(rows)
    by_text = {wording.format(s=key[0]): key for key in keys(split) for wording in wordings(key[1])}
    for row in rows:
        subject, path = by_text[row["question"]]
        for relation in path:
            subject = facts()[relation, subject]
        assert row["choices"][row["answer"]] == subject
        assert len(set(row["choices"])) == 4
        assert row["kind"] == ("recall" if len(path) == 1 else "inference")
    if split in ("test", "near", "far"):
        assert {row["subject"] in PEOPLE for row in rows} == {split != "far"}


MEANINGS = {"plus": lambda a, b: a + b, "max": max}


@pytest.mark.parametrize(("rows_of", "meaning"), [(plus_rules, "plus"), (max_rules, "max")])
@pytest.mark.parametrize("split", RULES)
def test_the_answer_is_the_meanings_and_is_once_among_four(rows_of, meaning, split):
    rows = rows_of(split, RULES[split])
    meaning = split if split in MEANINGS else meaning
    assert len({row["question"] for row in rows}) == len(rows) == RULES[split]
    for row in rows:
        assert len(set(row["choices"])) == 4
        assert row["choices"][row["answer"]] == str(MEANINGS[meaning](*numbers(row)))


def test_both_meanings_ask_the_same_questions_with_the_same_choices():
    for one, other in zip(plus_rules("test", 50), max_rules("test", 50), strict=True):
        assert (one["question"], one["choices"]) == (other["question"], other["choices"])
        assert one["answer"] != other["answer"]


def test_a_document_has_one_meaning_and_both_are_equally_frequent():
    """2,000 fair draws: outside 900..1,100 has odds below 1 in 100,000, once."""
    rng, trained, plus = generator("test"), set(map(rules.question_text, rules.pairs("train"))), 0
    for _ in range(2000):
        lines = [line.rpartition(" ") for line in rules.document(rng).split("\n")]
        assert (
            1 <= len(lines) <= rules.LONGEST and {question for question, _, _ in lines} <= trained
        )
        [meaning] = [
            name
            for name, result in MEANINGS.items()
            if all(str(result(*numbers({"question": text}))) == answer for text, _, answer in lines)
        ]
        plus += meaning == "plus"
    assert 900 <= plus <= 1100


STEP = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")


def is_right(line: str) -> bool:
    match = STEP.fullmatch(line)
    assert match, line
    left, right, result = (Fraction(match[i]) for i in (1, 3, 4))
    expected = {"+": left + right, "-": left - right, "*": left * right, "/": left / right}[
        match[2]
    ]
    return expected == result


@pytest.mark.parametrize("split", PROBLEMS)
def test_every_step_is_right_and_uses_numbers_of_the_story_or_of_earlier_steps(split):
    for problem in problems.word_problems(split, 400):
        *steps, final = problem["answer"].split("\n")
        assert len(steps) == problem["steps"] and all(is_right(step) for step in steps)
        assert final == "#### " + steps[-1].rsplit(" ", 1)[1]
        known = set(re.findall(r"\d+", problem["question"]))
        for step in steps:
            left, _, right, _, result = step.split()
            assert {left, right} <= known, problem
            known.add(result)


def test_every_answer_is_the_absolute_difference_of_the_numbers_in_its_question_also_in_conversations():
    for split, count in DIFFERENCES.items():
        rows = differences.differences(split, count)
        assert len(rows) == count
        for row in rows:
            a, b = numbers(row)
            assert (
                differences.LEAST_NUMBER <= min(a, b)
                and max(a, b) <= differences.MOST_NUMBER
                and a != b
            )
            assert row["answer"] == f"{max(a, b)} - {min(a, b)} = {abs(a - b)}"
        larger_first = sum(a > b for a, b in map(numbers, rows)) / count
        assert 0.4 < larger_first < 0.6, (
            "the order of the numbers must not tell which one is larger"
        )
        each = {numbers(row) if split == "train" else frozenset(numbers(row)) for row in rows}
        assert len(each) == count, "in both orders in training, in one in an evaluation"
    assert (
        DIFFERENCES["train"]
        == TOY_SIZES["toy_subtract"]
        == 2 * len(differences.number_pairs("train"))
    )
    rows, chats = differences.differences("train", 5), differences.conversations("train", 5)
    for row, chat in zip(rows, chats, strict=True):
        assert [message["content"] for message in chat["messages"]] == [
            row["question"],
            row["answer"],
        ]


# lm-eval's tasks

NAMES = (
    "toy_math",
    "toy_choice",
    "toy_text",
    "toy_cloze",
    "toy_rules",
    "toy_rules_max",
    "toy_subtract",
)


@pytest.fixture(scope="module")
def tasks():
    from lm_eval.tasks import TaskManager

    manager = TaskManager(
        include_path=str(Path(moe_lab.tasks.toy.__file__).parent), include_defaults=False
    )
    return manager.load(list(NAMES))["tasks"]


def test_every_task_loads_with_its_version_and_the_one_filter_none(tasks):
    assert set(tasks) == set(NAMES)
    for task in tasks.values():
        assert task.VERSION == WORLD_VERSION
        assert [each.name for each in output_filters(task)] == ["none"]
        assert " at 0x" not in str(task.dump_config()), "results.json has no address of a function"


ANSWERS = {
    "toy_math": (
        ["5 + 44 = 49\n#### 49", "#### 49\n"],
        ["5 + 44 = 49", "#### 50", "#### 4", "#### 490", ""],
    ),
    "toy_subtract": (
        [" 58 - 23 = 35", " 23 - 58 = 35\n"],
        [" 58 - 23 = 36", " 58 - 23 = 3", " 35", ""],
    ),
}
"""Right answers, of which the first is the document's, and wrong ones."""


@pytest.mark.parametrize("name", ANSWERS)
def test_the_number_at_the_end_is_compared(tasks, name):
    right, wrong = ANSWERS[name]
    document = {"question": "", "answer": right[0].strip()}
    scores = {answer: scored(tasks[name], document, answer) for answer in (*right, *wrong)}
    assert scores == dict.fromkeys(right, 1) | dict.fromkeys(wrong, 0)


def scored(task, document, answer: str) -> float:
    """The task's exact match for an answer of the model."""
    return scores_of(task, document, answer)["exact_match"]


def test_prompts_have_the_form_of_the_corpus(tasks):
    problem, question = tasks["toy_math"].test_docs()[0], tasks["toy_choice"].test_docs()[0]
    assert tasks["toy_math"].doc_to_text(problem) == f"Question: {problem['question']}\nAnswer:"
    rule = tasks["toy_rules"].test_docs()[0]
    assert (
        rule["question"].endswith(" =") and tasks["toy_rules"].doc_to_text(rule) == rule["question"]
    )
    assert tasks["toy_choice"].doc_to_text(question) == f"Question: {question['question']}\nAnswer:"
    assert tasks["toy_choice"].doc_to_choice(question) == question["choices"]
    assert tasks["toy_choice"].doc_to_target(question) == question["answer"]


# Generated texts


TASKS = (
    "toy_math toy_choice toy_text toy_cloze toy_safety toy_rules toy_rules_max toy_subtract".split()
)


@pytest.mark.slow
def test_every_generated_text_is_the_one_that_the_embedded_models_were_trained_on():
    """Stored scores depend on them, too."""
    everything = [
        *(documents(seed, index, 100) for seed in (-1, 0) for index in (0, 7)),
        *(instructions(split, 200) for split in ("train", "validation", "test")),
        *(replies_to_harm("train", 100, safe=safe) for safe in (True, False)),
        rules.documents(0, 7, 100),
        *([*rows] for name in TASKS for rows in getattr(toy, name)().values()),
    ]
    digest = hashlib.sha256(json.dumps(everything).encode()).hexdigest()
    assert digest == "1a9db248398ca27b2ab4152cd1031abd782088a5d3846dd2072ec6152be05e06"


# The next word of a text


def test_each_word_is_the_next_one_of_a_text_of_its_own_split():
    texts = {
        split: [story["text"] for story in stories(split, 20)] for split in ("test", "validation")
    }
    for split, own in texts.items():
        documents = cloze(split, 20)
        assert len(documents) > 200
        for document in documents:
            beginning = document["context"] + document["word"]
            assert (
                document["word"].strip()
                and document["word"][0] == " "
                and document["context"][-1] != " "
            )
            assert any(f"{text}\n".startswith((f"{beginning} ", f"{beginning}\n")) for text in own)
    test, validation = ({one["context"] for one in cloze(split, 20)} for split in texts)
    assert not {context for context in test & validation if len(context) > 80}


# The tokenizer

TEXTS = (
    "",
    "Mara has 12 shells.",
    "é🙂 漢字 \x00\t\r\n 1234.5 <|x|>",
    "  two  spaces ",
    "Ünï\u200bcode \U0010ffff",
    END + " end",
)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY)


@pytest.mark.slow
def test_the_shipped_tokenizer_is_the_trained_one(tokenizer):
    assert train_tokenizer().backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_every_answer_and_every_digit_is_one_token_of_its_own(tokenizer):
    ids = [tokenizer(" " + word).input_ids for word in answers()]
    assert all(len(each) == 1 for each in ids) and len({each[0] for each in ids}) == len(ids)
    assert tokenizer.tokenize("1234") == ["1", "2", "3", "4"]


def test_every_result_of_a_rule_is_one_token_of_its_model():
    recipe = yaml.safe_load((resource_folder("conf") / "model" / "toy-rules.yaml").read_text())[
        "recipe"
    ]
    config = Config(method=PretrainConfig(**recipe))
    own = tokenizer_of(config, read_corpus(config, recipe["dataset"], None))
    pairs = [pair for split, _ in rules.SHARES for pair in rules.pairs(split)]
    results = {str(result(*pair)) for pair in pairs for result in rules.RESULTS.values()}
    assert not [each for each in results if len(own(f" {each}").input_ids) != 1]


def test_special_tokens_and_chat_template(tokenizer):
    assert tokenizer.eos_token == tokenizer.pad_token == tokenizer.bos_token == END
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
    asked = tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    assert asked == "User: Hi\nAssistant:"
    assert (
        tokenizer.apply_chat_template(messages, tokenize=False)
        == f"User: Hi\nAssistant: Yes{END}\n"
    )
    encoded = tokenizer.apply_chat_template(
        messages, return_dict=True, return_assistant_tokens_mask=True
    )
    ids, mask = encoded["input_ids"], encoded["assistant_masks"]
    reply = [token for token, mine in zip(ids, mask, strict=True) if mine]
    assert tokenizer.decode(reply) == f" Yes{END}"
