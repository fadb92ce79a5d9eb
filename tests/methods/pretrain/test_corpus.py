"""The documents of a corpus. Broken by: a document that is cut, joined with another or left out, an identity that two
corpora share, a file without text that is only found in the training.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from moe_lab.config.schema import Config
from moe_lab.errors import TaskError
from moe_lab.methods.pretrain.corpus import GENERATED, Corpus, read_corpus


def corpus(path: Path, content: str | bytes, size: int | None = None) -> Corpus:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_corpus(Config(), str(path), size)


def json_lines(*texts: str) -> str:
    return "".join(json.dumps({"text": text, "other": 1}) + "\n" for text in texts)


@pytest.mark.parametrize("newline", ("\n", "\r\n"))
def test_empty_lines_part_the_documents_of_a_text_file(newline, tmp_path):
    text = newline.join(["", "a", "  b", "", " ", "", "c", "", "\td ", "e"])
    assert list(corpus(tmp_path / "a.txt", text).documents()) == ["a\n  b", "c", "\td \ne"]
    assert list(corpus(tmp_path / "b.txt", "one").documents()) == ["one"]


def test_json_lines_keep_their_texts(tmp_path):
    texts = ["a\n\nb", " c ", "ä€😀"]
    assert list(corpus(tmp_path / "a.jsonl", json_lines(*texts)).documents()) == texts


@pytest.mark.parametrize("suffix", (".txt", ".jsonl"))
def test_a_size_takes_the_first_documents(suffix, tmp_path):
    content = "a\n\nb\n\nc" if suffix == ".txt" else json_lines("a", "b", "c")
    for size in (1, 2, 3, 4, None):
        found = corpus(tmp_path / f"a{suffix}", content, size)
        assert list(found.documents()) == ["a", "b", "c"][:size]
        assert list(found.documents()) == ["a", "b", "c"][:size], "again from the first on"


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_corpus_has_no_end_and_is_always_the_same(name):
    toy = read_corpus(Config(seed=3), name, None)
    texts = list(islice(toy.documents(), 250))
    assert texts == list(islice(read_corpus(Config(), name, 250).documents(), 999))
    assert len(texts) == 250 and all(text.strip() for text in texts)
    assert texts[100:200] != texts[:100] != texts[200:]


def test_an_identity_is_that_of_the_documents(tmp_path):
    """Not of the path; the same bytes are other documents as another format."""
    one = corpus(tmp_path / "a.jsonl", json_lines("a", "b"))
    assert corpus(tmp_path / "copy.jsonl", json_lines("a", "b")).identity == one.identity
    others = [
        corpus(tmp_path / "a.txt", json_lines("a", "b")),
        corpus(tmp_path / "b.jsonl", json_lines("a", "c")),
        corpus(tmp_path / "c.jsonl", json_lines("a", "b"), size=1),
        read_corpus(Config(), "toy", None),
        read_corpus(Config(), "toy", 1),
        read_corpus(Config(), "toy_rules", None),
    ]
    identities = [json.dumps(each.identity) for each in (one, *others)]
    assert len(set(identities)) == len(identities)
    assert str(tmp_path) not in "".join(identities)


@pytest.mark.parametrize(
    "name, content, told",
    [
        ("a.txt", b"", "has no text"),
        ("a.txt", b" \n\n\t\n", "has no text"),
        ("a.jsonl", b"", "has no text"),
        ("a.jsonl", b'{"text": " "}\n', "has no text"),
        ("a.txt", bytes(range(256)), "cannot be read as text"),
        ("a.txt", "größer".encode("latin-1"), "cannot be read as text"),
        ("a.jsonl", b"\x1f\x8b\x08\xff", "cannot be read"),
        ("a.jsonl", b'{"content": "a"}\n', "line 1: no text. A row needs a column `text`"),
        ("a.jsonl", b'{"text": ["a"]}\n', "line 1: no text"),
        ("a.jsonl", b'{"text": null}\n', "line 1: no text"),
        ("a.jsonl", b'\n["a"]\n', "line 2: no text"),
        ("a.jsonl", b'{"text": "\\ud83d"}\n', "line 1: no text .*surrogates"),
        ("a.jsonl", b"just text\n", "line 1: no JSON"),
    ],
)
def test_what_is_no_text_is_refused_at_once(name, content, told, tmp_path):
    with pytest.raises(TaskError, match=told):
        corpus(tmp_path / name, content)


def test_a_later_row_without_text_is_found_when_it_is_read(tmp_path):
    found = corpus(tmp_path / "a.jsonl", json_lines("a", "b") + "{}\n")
    with pytest.raises(TaskError, match="line 3: no text"):
        list(found.documents())
    assert list(corpus(tmp_path / "a.jsonl", json_lines("a", "b") + "{}\n", size=2).documents()) == ["a", "b"]
