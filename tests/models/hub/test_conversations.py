"""Conversations from the hub. Broken by: files of another split or commit, a fetch where the cache or data_dir has it,
a gated or missing data set whose message does not say what to do.
"""

from __future__ import annotations

import json
from io import BytesIO

import pytest

from moe_lab.config.schema import Config
from moe_lab.errors import TaskError
from moe_lab.methods.data_files import Data, read_data
from tests.support.hub.commands import new_command
from tests.support.hub.repositories import Repository

TURNS = [[f"Ask {number}", f"Say {number}"] for number in range(4)]
LIMA = {
    "README.md": b"LIMA",
    "lima.py": b"raise SystemExit",
    "train.jsonl": "".join(json.dumps({"conversations": turns}) + "\n" for turns in TURNS).encode(),
    "test.jsonl": b"not for training",
}


def read(dataset: str, offline: bool = False, **keys) -> Data:
    return read_data(Config(offline=offline, **keys), dataset)


def said(data: Data) -> list[list[str]]:
    return [[message["content"] for message in conversation] for conversation in data.train]


def test_lima_is_read_at_a_commit_and_then_from_the_cache(client, hub):
    lima = hub.add(Repository("GAIR/lima", "datasets"))
    commit = lima.commit(LIMA)
    first = read("lima")
    assert said(first) == TURNS and first.source == {"data_set": "GAIR/lima", "commit": commit}
    assert [message["role"] for message in first.train[0]] == ["user", "assistant"]
    new_command()
    asked = len(hub.log)
    assert read("lima", offline=True) == first and len(hub.log) == asked


def test_a_data_set_in_parts_is_read_in_their_order(client, hub):
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = {}
    for part in (1, 0):
        rows = [
            {"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b}], "source": "x"}
            for a, b in TURNS[2 * part : 2 * part + 2]
        ]
        file = BytesIO()
        pq.write_table(pa.Table.from_pylist(rows), file)
        parts[f"data/train-0000{part}-of-00002.parquet"] = file.getvalue()
    hub.add(Repository("me/chats", "datasets")).commit(
        parts | {"data/train_sft-00000-of-00001.parquet": b"other"}
    )
    assert said(read("me/chats")) == TURNS


def test_what_cannot_be_had_is_told(client, hub, tmp_path):
    hub.add(Repository("GAIR/lima", "datasets", gated=True)).commit(LIMA)
    hub.add(Repository("me/none", "datasets")).commit({"data/test.jsonl": b"{}"})
    with pytest.raises(TaskError, match="GAIR/lima is gated.*HF_TOKEN"):
        read("lima")
    with pytest.raises(TaskError, match="me/missing is not on the hub"):
        read("me/missing")
    with pytest.raises(TaskError, match="me/none has no file of a train split"):
        read("me/none")
    with pytest.raises(TaskError, match="is not available offline"):
        read("me/elsewhere", offline=True)


def test_a_file_of_data_dir_is_taken_and_the_hub_is_not_asked(client, hub, tmp_path):
    with pytest.raises(TaskError, match="me/chats is not on the hub"):
        read("me/chats", data_dir=str(tmp_path))
    hub.log.clear()
    (tmp_path / "chats").mkdir()
    (tmp_path / "chats" / "train.jsonl").write_bytes(LIMA["train.jsonl"])
    assert said(read("me/chats", data_dir=str(tmp_path))) == TURNS
    assert not hub.log
