"""Breaks when the shipped tokenizer is not the one that the code trains, loses text, or splits an answer."""

from pathlib import Path

import pytest

import moe_lab.models
from moe_lab.tasks.toy.tokenizer import END, answers, train_tokenizer

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
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(Path(moe_lab.models.__path__[0]) / "tiny")


@pytest.mark.slow
def test_the_shipped_tokenizer_is_the_trained_one(tokenizer):
    assert train_tokenizer().backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_every_answer_is_one_token_of_its_own(tokenizer):
    ids = [tokenizer(" " + word).input_ids for word in answers()]
    assert all(len(each) == 1 for each in ids) and len({each[0] for each in ids}) == len(ids)


def test_digits_stand_alone(tokenizer):
    assert tokenizer.tokenize("1234") == ["1", "2", "3", "4"]


def test_special_tokens_and_chat_template(tokenizer):
    assert tokenizer.eos_token == tokenizer.pad_token == tokenizer.bos_token == END
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
    asked = tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    assert asked == "User: Hi\nAssistant:"
    assert tokenizer.apply_chat_template(messages, tokenize=False) == f"User: Hi\nAssistant: Yes{END}\n"
    encoded = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    reply = [
        token for token, mine in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if mine
    ]
    assert tokenizer.decode(reply) == f" Yes{END}"
