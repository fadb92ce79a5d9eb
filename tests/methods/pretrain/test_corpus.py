"""Corpus, tokenizer and packed rows of a pre-training.

Broken by: a document that is cut, joined with another, left out, or held out and trained on, also
as a duplicate; an identity that two corpora or two tokenizers share; a file without text that is
only found in the training; text that a trained tokenizer loses; a token lost or twice at the end of
a row; an epoch that leaves a row out or repeats the order of another one.
"""

import json
from hashlib import sha256
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from moe_lab.config.schema import Config, ModelConfig
from moe_lab.errors import ModelError, TaskError
from moe_lab.methods.pretrain import packing as module
from moe_lab.methods.pretrain.corpus import (
    END,
    GENERATED,
    Corpus,
    _train,
    read_corpus,
    tokenizer_identity,
    tokenizer_of,
)
from moe_lab.methods.pretrain.packing import PackedRows, pack, pack_once, require_rows
from moe_lab.tasks.loading import task_cache
from tests.support.models import make_tokenizer
from tests.support.pretrainings import design


def corpus_of(path: Path, content: str | bytes, size: int | None = None) -> Corpus:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_corpus(Config(), str(path), size)


def json_lines(*texts: str) -> str:
    return "".join(json.dumps({"text": text, "other": 1}) + "\n" for text in texts)


@pytest.mark.parametrize("size", (1, 2, 3, 4, None))
def test_a_size_takes_the_first_documents_with_their_texts_as_they_are(size, tmp_path):
    texts = ["a\n\nb", " c ", "ä€😀"]
    found = corpus_of(tmp_path / "a.jsonl", json_lines(*texts), size)
    assert list(found.documents()) == texts[:size]
    assert list(found.documents()) == texts[:size], "again from the first on"


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_corpus_has_no_end_and_is_always_the_same(name):
    toy = read_corpus(Config(seed=3), name, None)
    texts = list(islice(toy.documents(), 250))
    assert texts == list(islice(read_corpus(Config(), name, 250).documents(), 999))
    assert len(texts) == 250 and all(text.strip() for text in texts)
    assert texts[100:200] != texts[:100] != texts[200:]


def test_an_identity_is_that_of_the_documents(tmp_path):
    """Not of the path."""
    one = corpus_of(tmp_path / "a.jsonl", json_lines("a", "b"))
    assert corpus_of(tmp_path / "copy.jsonl", json_lines("a", "b")).identity == one.identity
    others = [
        corpus_of(tmp_path / "b.jsonl", json_lines("a", "c")),
        corpus_of(tmp_path / "c.jsonl", json_lines("a", "b"), size=1),
        read_corpus(Config(), "toy", None),
        read_corpus(Config(), "toy", 1),
        read_corpus(Config(), "toy_rules", None),
    ]
    identities = [json.dumps(each.identity) for each in (one, *others)]
    assert len(set(identities)) == len(identities)
    assert str(tmp_path) not in "".join(identities)
    folder = read_corpus(Config(), str(tmp_path), None)
    assert list(folder.documents()) == ["a", "b", "c"], "all files, by name, each document once"
    corpus_of(tmp_path / "copy.jsonl", json_lines("a", "d"))
    assert read_corpus(Config(), str(tmp_path), None) != folder


@pytest.mark.parametrize(
    "content, told",
    [
        (b"", "has no text"),
        (b'{"text": " "}\n', "has no text"),
        (b'{"content": "a"}\n', "line 1: no text. A row needs a column `text`"),
        (b'{"text": ["a"]}\n', "line 1: no text"),
        (b'{"text": null}\n', "line 1: no text"),
        (b'\n["a"]\n', "line 2: no text"),
    ],
)
def test_what_is_no_text_is_refused_at_once(content, told, tmp_path):
    with pytest.raises(TaskError, match=told):
        corpus_of(tmp_path / "a.jsonl", content)


def test_a_later_row_without_text_is_found_when_it_is_read(tmp_path):
    file, lines = tmp_path / "a.jsonl", json_lines("a", "b") + "{}\n"
    with pytest.raises(TaskError, match="line 3: no text"):
        list(corpus_of(file, lines).documents())
    assert list(corpus_of(file, lines, size=2).documents()) == ["a", "b"]


TEXT = "Grüße aus Köln! 😀 \n\tdef f(x):\n    return x\n"


@pytest.fixture
def cat_corpus(tmp_path):
    texts = [
        f"the cat {number % 7} saw the other {'abcdefgh'[number % 5 :]} cat"
        for number in range(200)
    ]
    return corpus_of(tmp_path / "own.jsonl", json_lines(*texts))


def trained(cat_corpus, vocab_size: int = 300):
    return tokenizer_of(Config(method=design(tokenizer="train", vocab_size=vocab_size)), cat_corpus)


@pytest.mark.parametrize("vocab_size", (257, 280))
def test_a_trained_tokenizer_has_all_bytes_and_the_end_token(vocab_size, cat_corpus):
    tokenizer = trained(cat_corpus, vocab_size)
    assert len(tokenizer) == vocab_size
    assert tokenizer.eos_token == tokenizer.pad_token == tokenizer.bos_token == END
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == TEXT and max(ids) < vocab_size
    assert tokenizer.eos_token_id not in ids
    words = tokenizer(" the cat", add_special_tokens=False).input_ids
    assert (len(words) < 8) == (vocab_size > 257), "merges of the corpus"


def test_a_trained_tokenizer_is_the_same_when_trained_again_and_when_saved(cat_corpus, tmp_path):
    first = trained(cat_corpus)
    assert trained(cat_corpus) is first, "trained once in a process"
    _train.cache_clear()
    again = trained(cat_corpus)
    assert again is not first
    assert tokenizer_identity(first) == tokenizer_identity(again)

    first.save_pretrained(tmp_path / "saved")
    saved = AutoTokenizer.from_pretrained(tmp_path / "saved")
    for text in (TEXT, " the cat saw", END):
        assert saved(text).input_ids == first(text).input_ids
    assert saved.eos_token_id == saved.pad_token_id == first.eos_token_id


def test_an_identity_is_that_of_the_tokens(cat_corpus):
    tokenizer = trained(cat_corpus)
    before = tokenizer_identity(tokenizer)
    tokenizer(["a", "b c d"], padding=True, truncation=True, max_length=2)
    assert tokenizer_identity(tokenizer) == before, "use changes nothing"
    renamed = make_tokenizer()
    renamed.add_special_tokens({"eos_token": "<|other|>"})
    others = {
        tokenizer_identity(other) for other in (make_tokenizer(), trained(cat_corpus, 270), renamed)
    }
    assert len(others - {before}) == 3


def given(tokenizer, folder):
    tokenizer.save_pretrained(folder)
    return tokenizer_of(
        Config(method=design(), model=ModelConfig(name="mine", tokenizer=str(folder))), None
    )


def test_the_models_own_is_taken_with_a_padding_token(tmp_path):
    plain = make_tokenizer()
    plain.pad_token = None
    found = given(plain, tmp_path)
    assert found.pad_token_id == found.eos_token_id == 256
    assert found(TEXT).input_ids == make_tokenizer()(TEXT).input_ids


def test_one_without_an_end_token_is_refused_with_what_to_do(tmp_path):
    plain = make_tokenizer()
    plain.eos_token = None
    told = (
        "model=mine has no token for the end of a document.*another one, or method.tokenizer=train"
    )
    with pytest.raises(ModelError, match=told):
        given(plain, tmp_path)


END_ID = 256


def corpus_with(tmp_path: Path, *texts: str) -> Corpus:
    return corpus_of(tmp_path / "own.jsonl", json_lines(*texts))


def ids(text: str) -> list[int]:
    return make_tokenizer()(text).input_ids


def packed(texts: Corpus, rows: int, held_out: int, length: int) -> tuple[list, list]:
    train, held = pack(texts, make_tokenizer(), rows=rows, held_out=held_out, length=length)
    assert train.dtype == held.dtype == np.int32
    return train.tolist(), held.tolist()


def test_documents_are_joined_by_the_end_token_and_cut_into_rows(tmp_path):
    texts = corpus_with(tmp_path, "abcde", "fg", "x", "hijklmnop", "qr")
    train, held = packed(texts, rows=9, held_out=1, length=4)
    assert held == [ids("abcd")]
    stream = [*ids("fg"), END_ID, *ids("x"), END_ID, *ids("hijklmnop"), END_ID, *ids("qr"), END_ID]
    assert train == [stream[start : start + 4] for start in (0, 4, 8, 12)]


REPEATED = ["", "ab", "ab ", " \n", "cdef", "ab", "gh", "cdef", "", "ijkl", "mnop"]


def test_empty_documents_and_duplicates_are_left_out_and_counted(tmp_path):
    """Broken by validation rows of end tokens and by a document both held out and trained on."""
    texts = corpus_with(tmp_path, *REPEATED)
    once = list(dict.fromkeys(text.strip() for text in REPEATED if text.strip()))
    assert list(texts.documents()) == once == ["ab", "cdef", "gh", "ijkl", "mnop"]
    assert texts.left_out.counts() == {"empty": 3, "duplicates": 3}
    train, held = packed(texts, rows=9, held_out=2, length=4)
    assert held == [[*ids("ab"), END_ID, *ids("c")], [*ids("def"), END_ID]]
    assert train == [[*ids("gh"), END_ID, *ids("i")], [*ids("jkl"), END_ID], ids("mnop")]
    assert corpus_of(tmp_path / "own.jsonl", json_lines(*REPEATED), size=3).left_out.counts() == {
        "empty": 1,
        "duplicates": 1,
    }, "of the first three alone"


def test_ids_change_only_where_documents_are_left_out(tmp_path):
    content = json_lines("a", "b")
    plain = corpus_of(tmp_path / "a.jsonl", content)
    digest = sha256(content.encode()).hexdigest()
    assert (
        plain.identity == {"sha256": digest, "format": ".jsonl", "size": None} and not plain.notes
    )
    texts = corpus_with(tmp_path, *REPEATED)
    assert texts.identity["left_out"] == {"empty": 3, "duplicates": 3}
    assert texts.notes == ["documents left out: 3 empty ones, 3 duplicates of earlier ones"]
    assert read_corpus(Config(), "toy", None).notes == []


def test_a_corpus_is_searched_once_for_all_runs(tmp_path, monkeypatch):
    """By its content: a changed file is searched anew."""
    read, original = [], Corpus._find_left_out
    monkeypatch.setattr(Corpus, "_find_left_out", lambda own: read.append(own) or original(own))
    with task_cache():
        for texts, searched in ((REPEATED, 1), (REPEATED, 1), (["a", "a"], 2)):
            assert corpus_with(tmp_path, *texts).left_out.duplicates and len(read) == searched


def test_the_rest_of_the_last_held_out_document_is_left_out(tmp_path):
    """Also where the held-out rows end with a document, or in its end token."""
    cases = {
        ("abcdefgh", "ijkl"): ("abcd", "ijkl"),
        ("abc", "ijkl"): ("abc\0", "ijkl"),
        ("abcd", "ijkl"): ("abcd", "ijkl"),
        ("ab", "cdefg", "ijkl"): ("ab\0c", "ijkl"),
    }
    for texts, (held, first) in cases.items():
        train, out = packed(corpus_with(tmp_path, *texts), rows=5, held_out=1, length=4)
        assert out == [[END_ID if letter == "\0" else ids(letter)[0] for letter in held]]
        assert train == [ids(first)]


@pytest.mark.parametrize("batch", (1, 2, 3, 1000))
def test_tokenizing_in_groups_changes_nothing(batch, tmp_path, monkeypatch):
    texts = corpus_with(tmp_path, *("abcdefghijk"[: 1 + number % 11] for number in range(20)))
    expected = packed(texts, rows=9, held_out=2, length=5)
    monkeypatch.setattr(module, "DOCUMENTS", batch)
    assert packed(texts, rows=9, held_out=2, length=5) == expected
    assert len(expected[0]) == 9 and len(expected[1]) == 2


def test_no_more_is_read_than_is_needed(monkeypatch):
    monkeypatch.setattr(module, "DOCUMENTS", 10)
    taken = []

    class Endless:
        def documents(self):
            return (taken.append(number) or "abc" for number in count())

    train, held = packed(Endless(), rows=8, held_out=2, length=4)
    assert len(train) == 8 and len(taken) <= 20


def test_memory_is_taken_for_the_rows_that_there_are(tmp_path):
    """Broken by memory for all rows of a training that reads a small corpus many times.

    Here that is four terabytes.
    """
    train, held = packed(corpus_with(tmp_path, "abcd", "efgh"), rows=2**38, held_out=1, length=4)
    assert (held, train) == ([ids("abcd")], [ids("efgh")])


def test_special_tokens_are_not_added_by_the_tokenizer(tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|end|> $A <|end|>", special_tokens=[("<|end|>", END_ID)]
    )
    assert tokenizer("a").input_ids[0] == END_ID, "what packing must not take"
    train, _ = pack(corpus_with(tmp_path, "abc", "def"), tokenizer, rows=1, held_out=1, length=4)
    assert train.tolist() == [[*ids("def"), END_ID]]


@pytest.mark.parametrize(
    "texts, held_out, told",
    [
        (("abc",), 1, "fill 1 of method.validation_rows=1 validation rows of 4 tokens"),
        (("ab",), 1, "fill 0 of method.validation_rows=1 validation rows of 4 tokens"),
        (("abc", "abd", "abe"), 5, "fill 3 of method.validation_rows=5 validation rows"),
        (("abc", "ab"), 1, "fill 1 of"),
        (("a" * 99,), 1, "fill 1 of"),
    ],
)
def test_a_corpus_that_is_too_short_is_refused(texts, held_out, told, tmp_path):
    with pytest.raises(TaskError, match=f"{told}.* Give more text or shorter documents, or lower"):
        packed(corpus_with(tmp_path, *texts), rows=2, held_out=held_out, length=4)


def test_a_corpus_is_looked_at_once_for_all_runs(tmp_path, monkeypatch):
    """By its content: another corpus, tokenizer or shape is looked at anew."""
    looked, plain = [], make_tokenizer()
    monkeypatch.setattr(module, "pack", lambda *args, **options: looked.append(options))
    other = make_tokenizer()
    other.add_special_tokens({"eos_token": "<|other|>"})
    texts = ("abc", "def")
    with task_cache():
        for tokenizer, held_out, seen in (
            (plain, 1, 1),
            (plain, 1, 1),
            (other, 1, 2),
            (plain, 2, 3),
        ):
            require_rows(corpus_with(tmp_path, *texts), tokenizer, held_out=held_out, length=4)
            assert len(looked) == seen
        require_rows(corpus_with(tmp_path, "abc", "xyz"), plain, held_out=1, length=4)
    assert len(looked) == 4


def test_designs_in_turn_share_their_rows(tmp_path):
    """Those of the same corpus, tokenizer and sizes; the rows of others are not kept."""
    texts, tokenizer = ("abcdef", "ghij", "klmn", "opqr"), make_tokenizer()
    sizes = {"rows": 2, "held_out": 1, "length": 4}
    first = pack_once(corpus_with(tmp_path, *texts), tokenizer, **sizes)
    assert pack_once(corpus_with(tmp_path, *texts), make_tokenizer(), **sizes) is first
    longer = pack_once(corpus_with(tmp_path, *texts), tokenizer, **sizes | {"rows": 3})
    assert len(longer[0]) == 3 and longer[0][:2].tolist() == first[0].tolist()
    assert pack_once(corpus_with(tmp_path, *texts[1:]), tokenizer, **sizes)[1].tolist() == [
        ids("ghij")
    ]
    assert pack_once(corpus_with(tmp_path, *texts), tokenizer, **sizes) is not first


def test_every_epoch_has_each_row_once_in_an_order_of_its_own():
    rows = np.arange(7 * 3, dtype=np.int32).reshape(7, 3)
    packed_rows = PackedRows(rows, seed=5, count=16)
    assert len(packed_rows) == 16
    read = [packed_rows[index] for index in range(16)]
    for index, each in enumerate(read):
        assert (
            torch.equal(each["input_ids"], each["labels"])
            and each["input_ids"].dtype == torch.int64
        )
        assert each["row"].item() == index, "the key of its noise"
    order = [each["input_ids"].tolist() for each in read]
    epochs = [order[:7], order[7:14]]
    for epoch in epochs:
        assert sorted(epoch) == rows.tolist() and epoch != rows.tolist()
    assert epochs[0] != epochs[1]
    backwards = PackedRows(rows, seed=5, count=16)
    assert [backwards[index]["input_ids"].tolist() for index in reversed(range(16))] == order[::-1]
    other = PackedRows(rows, seed=6, count=16)
    assert [other[index]["input_ids"].tolist() for index in range(7)] != epochs[0]
