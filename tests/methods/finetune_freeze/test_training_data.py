"""Breaks when runs of a grid encode the same conversations again, or get those of another tokenizer, data set or length."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from moe_lab.config.schema import Config, ModelConfig
from moe_lab.methods.conversations.read import Data
from moe_lab.methods.conversations.tokenize import encode_all
from moe_lab.methods.finetune_freeze import training_data as prepared
from moe_lab.methods.finetune_freeze.config import FinetuneConfig
from moe_lab.models.tokenizer import load_tokenizer
from tests.support.models import make_tokenizer


def conversation(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": "In Rome, I think."}]


DATA = Data(train=[conversation("Where does Ann live?")] * 8, validation=[], source={"data_set": "one"})
FACTS = SimpleNamespace(max_length=2048)


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Prepares data on the tiny model with changes, and how often anything was encoded."""
    calls: list[int] = []

    def encode(tokenizer, conversations, length):
        calls.append(length)
        return encode_all(tokenizer, conversations, length)

    monkeypatch.setattr(prepared, "encode_all", encode)
    monkeypatch.setattr(prepared, "_last", {})

    def prepare(data: Data = DATA, model: ModelConfig | None = None, **settings):
        config = Config(model=model or ModelConfig(), offline=True)
        return prepared.prepare(config, FinetuneConfig(**settings).recipe(), data, FACTS), calls

    return prepare


def test_the_same_is_encoded_once_and_keeps_its_own_source(made):
    first, _ = made(schedule="router")
    again, calls = made(replace(DATA, source={"data_set": "a copy"}), schedule="none-router")
    assert calls == [2048] and again.train is first.train
    assert (first.data.source, again.data.source) == ({"data_set": "one"}, {"data_set": "a copy"})


def test_what_differs_is_encoded_anew(made, tmp_path):
    first, _ = made()
    short = len(first.train.rows[0].ids) - 2
    assert len(made(length=short)[0].train.rows[0].ids) == short
    other = Data(train=[conversation("Who lives in Oslo?")] * 8, validation=DATA.train)
    assert made(other)[0].train.rows[0].ids != first.train.rows[0].ids
    make_tokenizer().save_pretrained(tmp_path)
    bytewise, calls = made(model=ModelConfig(tokenizer=str(tmp_path)))
    assert bytewise.plain_template and bytewise.train.rows[0].ids != first.train.rows[0].ids
    tokenizer = load_tokenizer(ModelConfig(tokenizer=str(tmp_path)), offline=True)
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}|{{ m.content }}|{% endfor %}" + (
        "{% if add_generation_prompt %}assistant|{% endif %}"
    )
    tokenizer.save_pretrained(tmp_path)
    framed, _ = made(model=ModelConfig(tokenizer=str(tmp_path)))
    assert not framed.plain_template and framed.train.rows[0].ids != bytewise.train.rows[0].ids
    assert calls == [2048, short, 2048, 2048, 2048, 2048], "each once, and the held-out ones of one"
