"""Training data. Broken by: a file that is read in another order or half, a wrong place in a message, a damaged file that
ends in a traceback, a generated data set that trains on a question of its task or has the wrong split.
"""

import json
from pathlib import Path

import pytest

from moe_lab.config.schema import Config
from moe_lab.errors import TaskError
from moe_lab.methods.data_files import TOY_SIZES, data_files, read_data, read_rows
from moe_lab.tasks.toy.word_problems import differences

KNOWN = {"chats": "owner/chats"}
ROWS = [{"text": "a"}, {"text": "b\nb"}, {"text": "ä"}]


def files(dataset: str, **keys) -> list[Path]:
    found, source = data_files(Config(**keys), dataset, KNOWN)
    assert source is None
    return found


def write(path: Path) -> Path:
    """ROWS in the format that the suffix names."""
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        path.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS), encoding="utf-8")
    return path


@pytest.mark.parametrize("suffix, place", [(".jsonl", "line 5"), (".parquet", "row 3")])
def test_rows_of_every_format_come_in_order_with_their_place(suffix, place, tmp_path):
    found = list(read_rows(write(tmp_path / f"rows{suffix}")))
    assert [row for row, _ in found] == ROWS
    assert found[2][1] == f"{tmp_path / 'rows'}{suffix}, {place}"


def test_a_folder_is_all_its_files_in_order(tmp_path):
    for name in ("b.jsonl", "a.parquet", "below/c.jsonl", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert files(str(tmp_path)) == [tmp_path / name for name in ("a.parquet", "b.jsonl", "below/c.jsonl")]


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
            for suffix in (".jsonl", ".parquet")
            for content in (None, b"\xff\xfe\x00nonsense")
        ),
        ("a.jsonl", b'{"text": "a"}\n\n{"text":\n', ", line 3 is not JSON"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(name, content, told, tmp_path):
    if content:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskError, match=f"{name}.*{told}"):
        list(read_rows(tmp_path / name))


def test_a_name_is_a_file_or_a_data_set(tmp_path):
    own = tmp_path / "own.jsonl"
    with pytest.raises(TaskError, match="there is no file .*own.jsonl"):
        files(str(own))
    own.touch()
    assert files(str(own)) == [own]
    for name in ("pile", "a/b/c"):
        with pytest.raises(
            TaskError, match=f"={name} is unknown. Use toy, chats, owner/name .* of .jsonl or .parq"
        ):
            files(name)


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
