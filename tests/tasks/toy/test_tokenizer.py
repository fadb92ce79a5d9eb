"""The tokenizers of the toy models.

Broken by one that loses text, splits an answer, or masks a reply wrongly.
"""

import pytest
import yaml
from transformers import AutoTokenizer

from moe_lab.config.catalog import resource_folder
from moe_lab.config.schema import Config
from moe_lab.methods.pretrain.config import PretrainConfig
from moe_lab.methods.pretrain.corpus import read_corpus, tokenizer_of
from moe_lab.models.source import TINY
from moe_lab.tasks.toy import rules
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
    return AutoTokenizer.from_pretrained(TINY)


@pytest.mark.slow
def test_the_shipped_tokenizer_is_the_trained_one(tokenizer):
    assert train_tokenizer().backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_every_answer_is_one_token_of_its_own(tokenizer):
    answer_of: dict[int, str] = {}
    for answer in answers():
        ids = tokenizer(" " + answer).input_ids
        assert len(ids) == 1, answer
        assert ids[0] not in answer_of, (answer, answer_of[ids[0]])
        answer_of[ids[0]] = answer


def test_every_digit_is_a_token(tokenizer):
    assert tokenizer.tokenize("1234") == ["1", "2", "3", "4"]


def test_every_result_of_a_rule_is_one_token_of_its_model():
    model_file = resource_folder("conf") / "model" / "toy-rules.yaml"
    recipe = yaml.safe_load(model_file.read_text())["recipe"]
    config = Config(method=PretrainConfig(**recipe))
    rules_tokenizer = tokenizer_of(config, read_corpus(config, recipe["dataset"], None))

    results = set()
    for split, _ in rules.SHARES:
        for a, b in rules.pairs(split):
            results |= {str(result(a, b)) for result in rules.RESULTS.values()}
    split_results = [text for text in results if len(rules_tokenizer(f" {text}").input_ids) != 1]
    assert split_results == []


def test_the_special_tokens_are_one(tokenizer):
    assert tokenizer.eos_token == END
    assert tokenizer.pad_token == END
    assert tokenizer.bos_token == END


def test_the_chat_template_marks_the_reply(tokenizer):
    request = {"role": "user", "content": "Hi"}
    reply = {"role": "assistant", "content": "Yes"}
    prompt = tokenizer.apply_chat_template([request], tokenize=False, add_generation_prompt=True)
    chat = tokenizer.apply_chat_template([request, reply], tokenize=False)
    assert prompt == "User: Hi\nAssistant:"
    assert chat == f"User: Hi\nAssistant: Yes{END}\n"

    encoded = tokenizer.apply_chat_template(
        [request, reply], return_dict=True, return_assistant_tokens_mask=True
    )
    reply_ids = []
    for token, is_reply in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True):
        if is_reply:
            reply_ids.append(token)
    assert tokenizer.decode(reply_ids) == f" Yes{END}"
