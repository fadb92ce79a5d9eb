"""Training data. Broken by: a file that is read in another order or half, a wrong place in a message, a damaged file that
ends in a traceback, a generated data set that trains on a question of its task or has the wrong split.
"""

import csv
import gzip
import json
from pathlib import Path

import pytest

from moe_lab.config.schema import Config
from moe_lab.errors import TaskError
from moe_lab.methods.data_files import FORMATS, TOY_SIZES, data_files, read_data, read_rows
from moe_lab.tasks.toy.word_problems import differences

KNOWN = {"chats": "owner/chats"}
ROWS = [{"text": "a"}, {"text": "b\nb"}, {"text": "ä"}]


def files(dataset: str, **keys) -> list[Path]:
    found, source = data_files(Config(**keys), dataset, KNOWN, (*FORMATS, ".txt"))
    assert source is None
    return found


def write(path: Path) -> Path:
    """ROWS in the format that the suffix names."""
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(ROWS))
    else:
        path.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS), encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix, place", [(".jsonl", "line 5"), (".json", "row 3"), (".parquet", "row 3")])
def test_rows_of_every_format_come_in_order_with_their_place(suffix, place, tmp_path):
    found = list(read_rows(write(tmp_path / f"rows{suffix}")))
    assert [row for row, _ in found] == ROWS
    assert found[2][1] == f"{tmp_path / 'rows'}{suffix}, {place}"


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.json.gz", "rows.csv", "rows.csv.gz"])
def test_compressed_and_csv_files_have_the_same_rows(name, tmp_path):
    path = tmp_path / name
    inner = write(tmp_path / name.removesuffix(".gz")) if "csv" not in name else tmp_path / "rows.csv"
    if "csv" in name:
        inner.write_text('text\n"a"\n"b\nb"\nä\n', encoding="utf-8")
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(inner.read_bytes()))
    assert [row for row, _ in read_rows(path)] == ROWS


def test_texts_of_a_csv_file_stay_texts_and_its_messages_are_json(tmp_path):
    chat = [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]
    with (tmp_path / "chat.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", "messages"], ["007", json.dumps(chat)]])
    assert [row for row, _ in read_rows(tmp_path / "chat.csv")] == [{"text": "007", "messages": chat}]
    assert read_data(Config(), str(tmp_path / "chat.csv")).train == [chat]


def test_a_folder_is_its_train_files_or_all_files_in_order(tmp_path):
    for name in ("b.jsonl", "a.csv", "below/c.txt.gz", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert files(str(tmp_path)) == [tmp_path / name for name in ("a.csv", "b.jsonl", "below/c.txt.gz")]
    for name in ("train-00001.parquet", "train-00000.parquet", "training.jsonl"):
        (tmp_path / "below" / name).touch()
    found = [path.name for path in files(str(tmp_path))]
    assert found == ["train-00000.parquet", "train-00001.parquet"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskError, match="no file in this folder ends in"):
        files(str(tmp_path / "empty"))


def test_a_parquet_file_of_several_batches_is_read_to_its_end(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": [str(i) for i in range(2345)]}), tmp_path / "many.parquet")
    found = list(read_rows(tmp_path / "many.parquet"))
    assert [int(row["text"]) for row, _ in found] == list(range(2345))
    assert found[-1][1].endswith("row 2345")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        *(
            (f"broken{suffix}", content, "cannot be read")
            for suffix in (".jsonl", ".json", ".parquet")
            for content in (None, b"\xff\xfe\x00nonsense")
        ),
        ("a.jsonl", b'{"text": "a"}\n\n{"text":\n', ", line 3 is not JSON"),
        ("a.json", b"[", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(name, content, told, tmp_path):
    if content:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskError, match=f"{name}.*{told}"):
        list(read_rows(tmp_path / name))


def test_a_name_is_a_file_or_a_data_set(tmp_path):
    own = tmp_path / "own.txt"
    with pytest.raises(TaskError, match="there is no file .*own.txt"):
        files(str(own))
    own.mkdir()
    with pytest.raises(TaskError, match="there is no file .*own.txt"):
        files(str(own))
    own.rmdir()
    own.touch()
    assert files(str(own)) == [own]
    told = "=pile is unknown. Use toy, chats, owner/name .* ends in .jsonl, .* .txt;"
    with pytest.raises(TaskError, match=told):
        files("pile")
    with pytest.raises(TaskError, match="=a/b/c is unknown"):
        files("a/b/c")


@pytest.mark.parametrize("dataset, folder", [("chats", "chats"), ("some/texts", "texts")])
def test_data_dir_stands_for_the_hub_where_it_has_the_file(dataset, folder, tmp_path):
    with pytest.raises(TaskError, match="data set .* is not available offline"):
        files(dataset, data_dir=str(tmp_path))
    path = tmp_path / folder / "train.jsonl"
    path.parent.mkdir()
    path.touch()
    assert files(dataset, data_dir=str(tmp_path)) == [path]


def test_subtractions_are_trained_on_and_held_out_by_their_splits():
    data = read_data(Config(), "toy_subtract", held_out=20)
    assert len(data.train) == TOY_SIZES["toy_subtract"] and len(data.validation) == 20
    asked = {row["question"] for split in ("test", "validation") for row in differences(split, 10_000)}
    assert {one[0]["content"] for one in data.validation} < asked
    assert not {one[0]["content"] for one in data.train} & asked


def test_the_first_conversations_are_the_same_for_any_number():
    few, many = (read_data(Config(), "toy_subtract", size=size).train for size in (30, 60))
    assert few == many[:30]
