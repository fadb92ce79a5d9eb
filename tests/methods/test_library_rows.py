"""`method.dataset.path=...`: data that `datasets.load_dataset` reads.

Broken by: a file that is read otherwise than its ending says, rows in another order, an argument
that does nothing, two data sets with one id, a secret that is taken, a run that starts without
data.
"""

import bz2
import gzip
import json
import lzma
from inspect import signature
from pathlib import Path
from typing import Any

import datasets
import pytest

from moe_lab.config.schema import Config
from moe_lab.errors import ConfigError, TaskError
from moe_lab.methods.data_files import read_data
from moe_lab.methods.library_rows import (
    REFUSED,
    check_arguments,
    library_identity,
    library_rows,
)
from moe_lab.methods.pretrain.corpus import read_corpus
from tests.support.command import run_command

ROWS = [{"prompt": f"Question {n}?", "completion": f'{n}, "so"'} for n in range(5)]
CONVERSATIONS = [
    [
        {"role": "user", "content": row["prompt"]},
        {"role": "assistant", "content": row["completion"]},
    ]
    for row in ROWS
]


def csv_text(rows: list[dict[str, str]], separator: str = ",") -> str:
    lines = [separator.join(rows[0])]
    for row in rows:
        cells = []
        for cell in row.values():
            quoted = cell.replace('"', '""')
            cells.append(f'"{quoted}"')
        lines.append(separator.join(cells))
    return "\n".join(lines) + "\n"


JSON_LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", csv_text(ROWS).encode()),
        ("a.tsv", csv_text(ROWS, "\t").encode()),
        ("a.json", json.dumps(ROWS).encode()),
        ("a.jsonl", JSON_LINES.encode()),
        ("a.csv.gz", gzip.compress(csv_text(ROWS).encode())),
        ("a.jsonl.xz", lzma.compress(JSON_LINES.encode())),
        ("a.jsonl.bz2", bz2.compress(JSON_LINES.encode())),
        ("a [1].csv", csv_text(ROWS).encode()),
    ],
)
def test_a_file_is_read_as_its_ending_says(name, content, tmp_path):
    file = tmp_path / name
    file.write_bytes(content)
    data = read_data(Config(), str(file), held_out=2)
    assert data.train == CONVERSATIONS[:3]
    assert data.validation == CONVERSATIONS[3:]


def test_a_folder_of_several_endings_is_read_in_the_order_of_its_paths(tmp_path):
    (tmp_path / "b.jsonl").write_text(json.dumps(ROWS[1]) + "\n")
    (tmp_path / "a.csv").write_text(csv_text(ROWS[:1]))
    (tmp_path / "c.md").write_text("nothing")
    data = read_data(Config(), str(tmp_path))
    assert data.train == CONVERSATIONS[:2]


def test_lines_of_a_text_are_documents(tmp_path):
    (tmp_path / "a.txt").write_text("First line\nSecond line\n")
    corpus = read_corpus(Config(), str(tmp_path / "a.txt"), None)
    assert list(corpus.documents()) == ["First line", "Second line"]


def test_arguments_of_datasets_are_passed_on(tmp_path):
    file = tmp_path / "a.data"
    file.write_text(csv_text(ROWS, ";"))
    arguments = {"path": "csv", "data_files": str(file), "sep": ";"}
    assert read_data(Config(), arguments).train == CONVERSATIONS
    part = arguments | {"split": "train[1:3]", "streaming": False}
    assert read_data(Config(), part).train == CONVERSATIONS[1:3]
    assert read_data(Config(), arguments).digest == read_data(Config(), arguments).digest


def test_a_folder_with_splits_is_read_by_its_split(tmp_path):
    (tmp_path / "train.csv").write_text(csv_text(ROWS[:2]))
    (tmp_path / "test.csv").write_text(csv_text(ROWS[2:]))
    arguments = {"path": str(tmp_path), "split": "test"}
    assert read_data(Config(), arguments).train == CONVERSATIONS[2:]
    assert read_data(Config(), {"path": str(tmp_path)}).train == CONVERSATIONS[:2]


@pytest.mark.parametrize(
    "named",
    [{"data_files": "a*.csv"}, {"data_dir": ""}, {"data_files": {"train": ["a*.csv"]}}],
    ids=str,
)
def test_the_identity_follows_files_that_are_not_named_one_by_one(named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "a1.csv"
    file.write_text("text\none\n")
    if "data_dir" in named:
        named = {"data_dir": str(tmp_path)}
    arguments = {"path": "csv", **named}
    before = library_identity(arguments, offline=True)
    assert len(before["datasets"]["files"]) == 1
    file.write_text("text\ntwo\n")
    assert library_identity(arguments, offline=True) != before


def test_the_identity_of_a_corpus_is_its_content_and_arguments(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("text\none\ntwo\n")
    arguments = {"path": "csv", "data_files": str(file)}
    identity = library_identity(arguments, offline=True)
    moved = tmp_path / "b.csv"
    moved.write_text(file.read_text())
    same = {"path": "csv", "data_files": {"train": [str(moved)]}, "streaming": True}
    assert library_identity(same, offline=True) == identity
    moved.write_text("text\none\nthree\n")
    assert library_identity(same, offline=True) != identity
    assert library_identity(arguments | {"split": "train[:1]"}, offline=True) != identity
    corpus = read_corpus(Config(), arguments, None)
    assert list(corpus.documents()) == ["one", "two"]
    assert str(tmp_path) not in str(corpus.identity)


def test_every_refused_argument_has_a_reason():
    known = set(signature(datasets.load_dataset).parameters)
    for name, reason in REFUSED.items():
        assert name in known | {"trust_remote_code"}
        assert len(reason) > 10
        with pytest.raises(ConfigError, match=f"method.dataset.{name} is not taken: "):
            given = {"path": "csv", "data_files": "a.csv", name: "secret7391"}
            check_arguments("method.dataset", given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "x"}, "method.dataset needs method.dataset.path"),
        ({"path": None}, "method.dataset needs method.dataset.path"),
        ({"path": "csv"}, "method.dataset.path=csv needs its files: method.dataset.data_files="),
        ({"path": __file__}, "is a file. Use method.dataset="),
        ({"path": "csv", "data_files": "a", "sepp": ";"}, "Unknown .*sepp.*Did you mean 'sep'"),
        (
            {"path": "csv", "data_files": {"train": ["https://me:secret7391@host/a.csv"]}},
            "data_files has a URL with a password",
        ),
        ({"path": "a/b", "splitt": "train"}, "Unknown argument .*splitt.*Did you mean 'split'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        read_data(Config(), arguments)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "a.json could not be read by datasets: "),
        ("a.csv", "prompt,completion\n", "0 conversations|no rows|could not be read"),
        ("a.csv", "question,answer\na,b\n", "a.csv, row 1: no conversation.*`prompt`"),
        ("a.csv", "prompt,completion\n1+1,2\n", "row 1: 2 of the assistant is a number"),
        ("a.txt", "a\nb\n", "a.txt, row 1: no conversation"),
    ],
)
def test_a_file_without_conversations_is_named(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(TaskError, match=message):
        read_data(Config(), str(tmp_path / name))


def test_a_builder_that_does_not_know_an_argument_says_so(tmp_path):
    (tmp_path / "a.csv").write_text(csv_text(ROWS))
    arguments: dict[str, Any] = {"path": "csv", "data_files": str(tmp_path / "a.csv"), "sepp": ";"}
    with pytest.raises(TaskError, match="sepp"):
        list(library_rows(arguments, "it"))


@pytest.mark.slow
def test_the_command_trains_on_a_csv(tmp_path, capsys):
    Path(tmp_path, "mine.csv").write_text(csv_text(ROWS))
    common = ["method.max_steps=2", "limit=2", "baseline=false", f"output_dir={tmp_path}/o"]
    by_name = run_command(
        capsys, "method=finetune-freeze", f"method.dataset={tmp_path}/mine.csv", *common
    )
    assert by_name.code == 0, by_name.err
    by_library = run_command(
        capsys,
        "method=finetune-freeze",
        "method.dataset.path=csv",
        f"method.dataset.data_files={tmp_path}/mine.csv",
        "method.dataset.split=train",
        *common,
    )
    assert by_library.code == 0, by_library.err
    assert "Trained: " not in by_library.err, "the same conversations are the same training"
    unknown = run_command(capsys, "method=pretrain", "method.dataset.splt=x", "mode=plan")
    assert unknown.code == 2
