"""Corpus, tokenizer and packed rows of a pre-training.

Broken by: a document that is cut, joined with another, left out, or held out and trained on, also
as a duplicate; an identity that two corpora or two tokenizers share; a file without text that is
only found in the training; text that a trained tokenizer loses; a token lost or twice at the end of
a row; an epoch that leaves a row out or repeats the order of another one.
"""

import json
from hashlib import sha256
from itertools import islice
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
    corpus = corpus_of(tmp_path / "a.jsonl", json_lines(*texts), size)
    assert list(corpus.documents()) == texts[:size]
    assert list(corpus.documents()) == texts[:size], "again from the first on"


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_corpus_has_no_end_and_is_always_the_same(name):
    endless = read_corpus(Config(seed=3), name, None)
    texts = list(islice(endless.documents(), 250))
    of_size_250 = read_corpus(Config(), name, 250)
    assert list(islice(of_size_250.documents(), 999)) == texts
    assert len(texts) == 250
    assert all(text.strip() for text in texts)
    assert texts[100:200] != texts[:100]
    assert texts[200:] != texts[:100]


def test_an_identity_is_that_of_the_documents(tmp_path):
    """Not of the path."""
    corpus = corpus_of(tmp_path / "a.jsonl", json_lines("a", "b"))
    copied_corpus = corpus_of(tmp_path / "copy.jsonl", json_lines("a", "b"))
    assert copied_corpus.identity == corpus.identity
    different = [
        corpus,
        corpus_of(tmp_path / "b.jsonl", json_lines("a", "c")),
        corpus_of(tmp_path / "c.jsonl", json_lines("a", "b"), size=1),
        read_corpus(Config(), "toy", None),
        read_corpus(Config(), "toy", 1),
        read_corpus(Config(), "toy_rules", None),
    ]
    identities = [json.dumps(corpus.identity) for corpus in different]
    assert len(set(identities)) == len(identities), identities
    for identity in identities:
        assert str(tmp_path) not in identity

    folder = read_corpus(Config(), str(tmp_path), None)
    assert list(folder.documents()) == ["a", "b", "c"], "all files, by name, each document once"
    corpus_of(tmp_path / "copy.jsonl", json_lines("a", "d"))
    assert read_corpus(Config(), str(tmp_path), None) != folder


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no text"),
        (b'{"text": " "}\n', "has no text"),
        (b'{"content": "a"}\n', "line 1: no text. A row needs a column `text`"),
        (b'{"text": ["a"]}\n', "line 1: no text"),
        (b'{"text": null}\n', "line 1: no text"),
        (b'\n["a"]\n', "line 2: no text"),
    ],
)
def test_what_is_no_text_is_refused_at_once(content, message, tmp_path):
    with pytest.raises(TaskError, match=message):
        corpus_of(tmp_path / "a.jsonl", content)


def test_a_later_row_without_text_is_found_when_it_is_read(tmp_path):
    file = tmp_path / "a.jsonl"
    lines = json_lines("a", "b") + "{}\n"
    with pytest.raises(TaskError, match="line 3: no text"):
        list(corpus_of(file, lines).documents())
    assert list(corpus_of(file, lines, size=2).documents()) == ["a", "b"]


TEXT = "Grüße aus Köln! 😀 \n\tdef f(x):\n    return x\n"


@pytest.fixture
def cat_corpus(tmp_path):
    texts = []
    for number in range(200):
        letters = "abcdefgh"[number % 5 :]
        texts.append(f"the cat {number % 7} saw the other {letters} cat")
    return corpus_of(tmp_path / "own.jsonl", json_lines(*texts))


def trained(cat_corpus, vocab_size: int = 300):
    config = Config(method=design(tokenizer="train", vocab_size=vocab_size))
    return tokenizer_of(config, cat_corpus)


@pytest.mark.parametrize("vocab_size", (257, 280))
def test_a_trained_tokenizer_has_all_bytes_and_the_end_token(vocab_size, cat_corpus):
    tokenizer = trained(cat_corpus, vocab_size)
    assert len(tokenizer) == vocab_size
    assert tokenizer.eos_token == END
    assert tokenizer.pad_token == END
    assert tokenizer.bos_token == END
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == TEXT
    assert max(ids) < vocab_size
    assert tokenizer.eos_token_id not in ids
    two_words = tokenizer(" the cat", add_special_tokens=False).input_ids
    has_merges = vocab_size > 257
    assert (len(two_words) < 8) == has_merges, "merges of the corpus"


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
    assert saved.eos_token_id == first.eos_token_id
    assert saved.pad_token_id == first.eos_token_id


def test_an_identity_is_that_of_the_tokens(cat_corpus):
    tokenizer = trained(cat_corpus)
    identity = tokenizer_identity(tokenizer)
    tokenizer(["a", "b c d"], padding=True, truncation=True, max_length=2)
    assert tokenizer_identity(tokenizer) == identity, "use changes nothing"
    renamed = make_tokenizer()
    renamed.add_special_tokens({"eos_token": "<|other|>"})
    identities = {identity}
    for other_tokenizer in (make_tokenizer(), trained(cat_corpus, 270), renamed):
        identities.add(tokenizer_identity(other_tokenizer))
    assert len(identities) == 4


def tokenizer_of_model(tokenizer, folder):
    """The tokenizer of a pre-training with `model.tokenizer=<folder of this tokenizer>`."""
    tokenizer.save_pretrained(folder)
    model = ModelConfig(name="mine", tokenizer=str(folder))
    return tokenizer_of(Config(method=design(), model=model), None)


def test_the_models_own_is_taken_with_a_padding_token(tmp_path):
    without_padding = make_tokenizer()
    without_padding.pad_token = None
    tokenizer = tokenizer_of_model(without_padding, tmp_path)
    assert tokenizer.eos_token_id == 256
    assert tokenizer.pad_token_id == 256
    assert tokenizer(TEXT).input_ids == make_tokenizer()(TEXT).input_ids


def test_one_without_an_end_token_is_refused_with_what_to_do(tmp_path):
    without_end = make_tokenizer()
    without_end.eos_token = None
    message = (
        "model=mine has no token for the end of a document.*another one, or method.tokenizer=train"
    )
    with pytest.raises(ModelError, match=message):
        tokenizer_of_model(without_end, tmp_path)


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
    assert list(texts.documents()) == ["ab", "cdef", "gh", "ijkl", "mnop"]
    assert texts.left_out.counts() == {"empty": 3, "duplicates": 3}
    train, held = packed(texts, rows=9, held_out=2, length=4)
    assert held == [[*ids("ab"), END_ID, *ids("c")], [*ids("def"), END_ID]]
    assert train == [[*ids("gh"), END_ID, *ids("i")], [*ids("jkl"), END_ID], ids("mnop")]
    first_three = corpus_of(tmp_path / "own.jsonl", json_lines(*REPEATED), size=3)
    assert first_three.left_out.counts() == {"empty": 1, "duplicates": 1}


def test_ids_change_only_where_documents_are_left_out(tmp_path):
    content = json_lines("a", "b")
    plain = corpus_of(tmp_path / "a.jsonl", content)
    digest = sha256(content.encode()).hexdigest()
    assert plain.identity == {"sha256": digest, "format": ".jsonl", "size": None}
    assert plain.notes == []
    texts = corpus_with(tmp_path, *REPEATED)
    assert texts.identity["left_out"] == {"empty": 3, "duplicates": 3}
    assert texts.notes == ["documents left out: 3 empty ones, 3 duplicates of earlier ones"]
    assert read_corpus(Config(), "toy", None).notes == []


def test_a_corpus_is_searched_once_for_all_runs(tmp_path, monkeypatch):
    """By its content: a changed file is searched anew."""
    find_left_out = Corpus._find_left_out
    searched = []

    def record(corpus):
        searched.append(corpus)
        return find_left_out(corpus)

    monkeypatch.setattr(Corpus, "_find_left_out", record)
    with task_cache():
        for texts, count in ((REPEATED, 1), (REPEATED, 1), (["a", "a"], 2)):
            assert corpus_with(tmp_path, *texts).left_out.duplicates
            assert len(searched) == count


def test_the_rest_of_the_last_held_out_document_is_left_out(tmp_path):
    """Also where the held-out rows end with a document, or in its end token."""
    cases = [
        (("abcdefgh", "ijkl"), ids("abcd")),
        (("abc", "ijkl"), [*ids("abc"), END_ID]),
        (("abcd", "ijkl"), ids("abcd")),
        (("ab", "cdefg", "ijkl"), [*ids("ab"), END_ID, *ids("c")]),
    ]
    for texts, expected in cases:
        train, held_out = packed(corpus_with(tmp_path, *texts), rows=5, held_out=1, length=4)
        assert held_out == [expected]
        assert train == [ids("ijkl")]


@pytest.mark.parametrize("batch", (1, 2, 3, 1000))
def test_tokenizing_in_groups_changes_nothing(batch, tmp_path, monkeypatch):
    texts = corpus_with(tmp_path, *("abcdefghijk"[: 1 + number % 11] for number in range(20)))
    train, held_out = packed(texts, rows=9, held_out=2, length=5)
    assert len(train) == 9
    assert len(held_out) == 2
    monkeypatch.setattr(module, "DOCUMENTS", batch)
    assert packed(texts, rows=9, held_out=2, length=5) == (train, held_out)


def test_no_more_is_read_than_is_needed(monkeypatch):
    monkeypatch.setattr(module, "DOCUMENTS", 10)
    documents_read = 0

    class Endless:
        def documents(self):
            nonlocal documents_read
            while True:
                documents_read += 1
                yield "abc"

    train, _ = packed(Endless(), rows=8, held_out=2, length=4)
    assert len(train) == 8
    assert documents_read <= 20


def test_memory_is_taken_for_the_rows_that_there_are(tmp_path):
    """Broken by memory for all rows of a training that reads a small corpus many times.

    Here that is four terabytes.
    """
    texts = corpus_with(tmp_path, "abcd", "efgh")
    train, held_out = packed(texts, rows=2**38, held_out=1, length=4)
    assert held_out == [ids("abcd")]
    assert train == [ids("efgh")]


def test_special_tokens_are_not_added_by_the_tokenizer(tmp_path):
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|end|> $A <|end|>", special_tokens=[("<|end|>", END_ID)]
    )
    assert tokenizer("a").input_ids[0] == END_ID, "what packing must not take"
    train, _ = pack(corpus_with(tmp_path, "abc", "def"), tokenizer, rows=1, held_out=1, length=4)
    assert train.tolist() == [[*ids("def"), END_ID]]


@pytest.mark.parametrize(
    ("texts", "held_out", "message"),
    [
        (("abc",), 1, "fill 1 of method.validation_rows=1 validation rows of 4 tokens"),
        (("ab",), 1, "fill 0 of method.validation_rows=1 validation rows of 4 tokens"),
        (("abc", "abd", "abe"), 5, "fill 3 of method.validation_rows=5 validation rows"),
        (("abc", "ab"), 1, "fill 1 of"),
        (("a" * 99,), 1, "fill 1 of"),
    ],
)
def test_a_corpus_that_is_too_short_is_refused(texts, held_out, message, tmp_path):
    remedy = "Give more text or shorter documents, or lower"
    with pytest.raises(TaskError, match=f"{message}.* {remedy}"):
        packed(corpus_with(tmp_path, *texts), rows=2, held_out=held_out, length=4)


def test_a_corpus_is_looked_at_once_for_all_runs(tmp_path, monkeypatch):
    """By its content: another corpus, tokenizer or shape is looked at anew."""
    packings = []

    def record(*args, **options):
        packings.append(options)

    monkeypatch.setattr(module, "pack", record)
    plain = make_tokenizer()
    with_other_end = make_tokenizer()
    with_other_end.add_special_tokens({"eos_token": "<|other|>"})
    with task_cache():
        for texts, tokenizer, held_out, count in (
            (("abc", "def"), plain, 1, 1),
            (("abc", "def"), plain, 1, 1),
            (("abc", "def"), with_other_end, 1, 2),
            (("abc", "def"), plain, 2, 3),
            (("abc", "xyz"), plain, 1, 4),
        ):
            corpus = corpus_with(tmp_path, *texts)
            require_rows(corpus, tokenizer, held_out=held_out, length=4)
            assert len(packings) == count


def test_designs_in_turn_share_their_rows(tmp_path):
    """Those of the same corpus, tokenizer and sizes; the rows of others are not kept."""
    texts = ("abcdef", "ghij", "klmn", "opqr")

    def packed_once(texts: tuple[str, ...], rows: int = 2):
        corpus = corpus_with(tmp_path, *texts)
        return pack_once(corpus, make_tokenizer(), rows=rows, held_out=1, length=4)

    packed_rows = packed_once(texts)
    assert packed_once(texts) is packed_rows
    two_rows, _ = packed_rows
    three_rows, _ = packed_once(texts, rows=3)
    assert len(three_rows) == 3
    assert three_rows[:2].tolist() == two_rows.tolist()
    _, held_out = packed_once(texts[1:])
    assert held_out.tolist() == [ids("ghij")]
    assert packed_once(texts) is not packed_rows


def test_every_epoch_has_each_row_once_in_an_order_of_its_own():
    rows = np.arange(7 * 3, dtype=np.int32).reshape(7, 3)
    packed_rows = PackedRows(rows, seed=5, count=16)
    assert len(packed_rows) == 16
    for index in range(16):
        item = packed_rows[index]
        assert torch.equal(item["input_ids"], item["labels"])
        assert item["input_ids"].dtype == torch.int64
        assert item["row"].item() == index, "the key of its noise"

    order = read(packed_rows, range(16))
    first_epoch = order[:7]
    second_epoch = order[7:14]
    for epoch in (first_epoch, second_epoch):
        assert sorted(epoch) == rows.tolist()
        assert epoch != rows.tolist()
    assert first_epoch != second_epoch

    read_backwards = read(PackedRows(rows, seed=5, count=16), range(15, -1, -1))
    assert read_backwards == order[::-1]
    assert read(PackedRows(rows, seed=6, count=16), range(7)) != first_epoch, "another seed"


def read(packed_rows: PackedRows, indices: range) -> list[list[int]]:
    return [packed_rows[index]["input_ids"].tolist() for index in indices]
