"""Breaks when a generated text depends on the process or is in two splits, or when the tokenizer loses text or splits an
answer.
"""

import hashlib
import json

import pytest
import yaml
from transformers import AutoTokenizer

from moe_lab.config.catalog import resource_folder
from moe_lab.config.schema import Config
from moe_lab.methods.pretrain.config import PretrainConfig
from moe_lab.methods.pretrain.corpus import read_corpus, tokenizer_of
from moe_lab.models.source import TINY
from moe_lab.tasks import toy
from moe_lab.tasks.toy import rules
from moe_lab.tasks.toy.corpus import END, answers, cloze, documents, stories, train_tokenizer
from moe_lab.tasks.toy.questions import instructions, replies_to_harm

TASKS = "toy_math toy_choice toy_text toy_cloze toy_safety toy_rules toy_rules_max toy_subtract".split()


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
    texts = {split: [story["text"] for story in stories(split, 20)] for split in ("test", "validation")}
    for split, own in texts.items():
        documents = cloze(split, 20)
        assert len(documents) > 200
        for document in documents:
            beginning = document["context"] + document["word"]
            assert document["word"].strip() and document["word"][0] == " " and document["context"][-1] != " "
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


def test_every_answer_is_one_token_of_its_own(tokenizer):
    ids = [tokenizer(" " + word).input_ids for word in answers()]
    assert all(len(each) == 1 for each in ids) and len({each[0] for each in ids}) == len(ids)


def test_every_result_of_a_rule_is_one_token_of_its_model():
    recipe = yaml.safe_load((resource_folder("conf") / "model" / "toy-rules.yaml").read_text())["recipe"]
    config = Config(method=PretrainConfig(**recipe))
    own = tokenizer_of(config, read_corpus(config, recipe["dataset"], None))
    pairs = [pair for split, _ in rules.SHARES for pair in rules.pairs(split)]
    results = {str(result(*pair)) for pair in pairs for result in rules.RESULTS.values()}
    assert not [each for each in results if len(own(f" {each}").input_ids) != 1]


def test_digits_stand_alone(tokenizer):
    assert tokenizer.tokenize("1234") == ["1", "2", "3", "4"]


def test_special_tokens_and_chat_template(tokenizer):
    assert tokenizer.eos_token == tokenizer.pad_token == tokenizer.bos_token == END
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
    asked = tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    assert asked == "User: Hi\nAssistant:"
    assert tokenizer.apply_chat_template(messages, tokenize=False) == f"User: Hi\nAssistant: Yes{END}\n"
    encoded = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    ids, mask = encoded["input_ids"], encoded["assistant_masks"]
    reply = [token for token, mine in zip(ids, mask, strict=True) if mine]
    assert tokenizer.decode(reply) == f" Yes{END}"
