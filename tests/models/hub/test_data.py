"""Data sets, conversations and corpora from the hub.

Broken by: files of another split or commit, parts in another order, a fetch where the cache
or data_dir has it, a data set that cannot be had and is tried for long, or whose message names
another cause.
"""

import json
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from moe_lab.config.schema import Config, TaskConfig
from moe_lab.errors import TaskError
from moe_lab.methods import get_method
from moe_lab.methods.data_files import Data, read_data
from moe_lab.methods.library_rows import library_identity
from moe_lab.methods.pretrain.corpus import read_corpus
from moe_lab.tasks.loading import load_tasks
from tests.support.hub.commands import new_command
from tests.support.hub.content import GSM8K
from tests.support.hub.repositories import Repository


def data_set(hub, name: str, files: dict[str, bytes], **keys) -> str:
    """The commit of a new data set."""
    return hub.add(Repository(name, "datasets", **keys)).commit(files)


def parquet(*rows: dict) -> bytes:
    file = BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), file)
    return file.getvalue()


# Tasks


def load(name, **keys):
    base = get_method("base").Config(name="base")
    return load_tasks(Config(method=base, task=TaskConfig(name=name, **keys)))


def test_a_data_set_that_is_not_there_is_told_after_one_request(client, hub):
    with pytest.raises(
        TaskError, match=r"Task hellaswag: The data set Rowan/hellaswag is not on the hub"
    ):
        load("hellaswag")
    assert [a.path for a in hub.log if "hellaswag" in a.path] == ["api/datasets/Rowan/hellaswag"]


@pytest.fixture
def online(client, tmp_path, monkeypatch):
    """datasets asks the loopback hub, too."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", constants.ENDPOINT)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


def test_a_gated_data_set_and_a_token_that_is_refused_are_told(online, hub, monkeypatch):
    hub.repositories["datasets", GSM8K].gated = True
    with pytest.raises(TaskError, match=r"is a gated dataset(.|\n)*data_dir=<folder>"):
        load("gsm8k")
    new_command()
    monkeypatch.setenv("HF_TOKEN", "hf_mistypedSecret")
    with pytest.raises(TaskError, match="401") as raised:
        load("gsm8k")
    assert "hf_mistypedSecret" not in str(raised.value)


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("dataset_name: algebra\ntest_split: test", r"BuilderConfig 'algebra' not found.*main"),
        ("dataset_name: main\ntest_split: holdout", "holdout"),
    ],
    ids=["configuration", "split"],
)
def test_a_configuration_or_split_that_it_lacks_is_told(online, tmp_path, task, says):
    (tmp_path / "mine.yaml").write_text(
        f"task: mine\ndataset_path: {GSM8K}\n{task}\noutput_type: generate_until\n"
        "doc_to_text: '{{question}}'\ndoc_to_target: '{{answer}}'\nmetric_list:\n"
        "  - metric: exact_match\n"
    )
    with pytest.raises(TaskError, match=says):
        load("mine", include_path=str(tmp_path))


# Conversations

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
    commit = data_set(hub, "GAIR/lima", LIMA)
    first = read("lima")
    assert said(first) == TURNS
    assert first.source == {"data_set": "GAIR/lima", "commit": commit}
    assert [message["role"] for message in first.train[0]] == ["user", "assistant"]
    new_command()
    request_count = len(hub.log)
    assert read("lima", offline=True) == first
    assert len(hub.log) == request_count


def test_a_data_set_in_parts_is_read_in_their_order(client, hub):
    parts = {"data/train_sft-00000-of-00001.parquet": b"other"}
    for part in (1, 0):
        turns = [
            [{"role": "user", "content": a}, {"role": "assistant", "content": b}]
            for a, b in TURNS[2 * part : 2 * part + 2]
        ]
        file = parquet(*({"messages": messages, "source": "x"} for messages in turns))
        parts[f"data/train-0000{part}-of-00002.parquet"] = file
    data_set(hub, "me/chats", parts)
    assert said(read("me/chats")) == TURNS


def test_what_cannot_be_had_is_told(client, hub):
    data_set(hub, "GAIR/lima", LIMA, gated=True)
    data_set(hub, "me/none", {"data/test.jsonl": b"{}"})
    for name, says in (
        ("lima", "GAIR/lima is gated.*HF_TOKEN"),
        ("me/missing", "me/missing is not on the hub"),
        ("me/none", "me/none needs one complete train split .*, and has none"),
    ):
        with pytest.raises(TaskError, match=says):
            read(name)
    with pytest.raises(TaskError, match="is not available offline"):
        read("me/elsewhere", offline=True)


def test_a_file_of_data_dir_is_taken_and_the_hub_is_not_asked(client, hub, tmp_path):
    (tmp_path / "chats").mkdir()
    (tmp_path / "chats" / "train.jsonl").write_bytes(LIMA["train.jsonl"])
    assert said(read("me/chats", data_dir=str(tmp_path))) == TURNS
    assert not hub.log


# Corpora


def test_minipile_is_read_at_a_commit_in_the_order_of_its_parts(client, hub):
    files = {
        "data/train-00001-of-00002-2bb9d088068a84c9.parquet": parquet({"text": "c"}),
        "data/train-00000-of-00002-6fbcb5acda05b3c0.parquet": parquet(
            {"text": "a\n\na"}, {"text": "b"}
        ),
        "data/validation-00000-of-00001.parquet": parquet({"text": "held out"}),
        "data/test-00000-of-00001.parquet": parquet({"text": "not for training"}),
    }
    commit = data_set(hub, "JeanKaddour/minipile", files)
    corpus = read_corpus(Config(offline=False), "minipile", None)
    assert list(corpus.documents()) == ["a\n\na", "b", "c"]
    assert corpus.identity == {"data_set": "JeanKaddour/minipile", "commit": commit, "size": None}
    new_command()
    request_count = len(hub.log)
    second_corpus = read_corpus(Config(offline=True), "minipile", 2)
    assert list(second_corpus.documents()) == ["a\n\na", "b"], "from the cache"
    assert len(hub.log) == request_count, "from the cache"
    assert second_corpus.identity["commit"] == commit
    assert second_corpus.identity != corpus.identity


@pytest.mark.parametrize(
    "names",
    [
        ("a-v1/train.jsonl", "b/train-00000-of-00001.parquet"),
        ("data/train-00000-of-00002.parquet",),
    ],
)
def test_what_is_no_single_whole_split_is_refused(names, client, hub):
    """Broken by two data sets read as one, and by missing parts of an interrupted download."""
    data_set(hub, "me/parts", dict.fromkeys(names, b""))
    with pytest.raises(TaskError, match=f"me/parts needs one complete train split.*{names[0]}"):
        read_corpus(Config(offline=False), "me/parts", None)
    assert not [line for line in hub.log if "train" in str(line)], "nothing was fetched"


def test_a_configuration_and_a_split_of_the_hub_are_read(online, hub):
    """`method.dataset.path`, `.name` and `.split`, as datasets.load_dataset takes them."""
    rows = {}
    for name in ("easy", "hard"):
        rows[name] = [{"prompt": f"{name} {n}?", "completion": str(n)} for n in range(3)]
    card = (
        "---\nconfigs:\n"
        "- {config_name: easy, data_files: [{split: test, path: easy.parquet}]}\n"
        "- {config_name: hard, data_files: [{split: test, path: hard.parquet}]}\n---\n"
    )
    commit = data_set(
        hub,
        "owner/answers",
        {
            "README.md": card.encode(),
            "easy.parquet": parquet(*rows["easy"]),
            "hard.parquet": parquet(*rows["hard"]),
        },
    )
    arguments = {"path": "owner/answers", "name": "hard", "split": "test"}
    data = read_data(Config(), arguments)
    assert [messages[0]["content"] for messages in data.train] == ["hard 0?", "hard 1?", "hard 2?"]
    assert library_identity(arguments, offline=False)["datasets"]["commit"] == commit
    with pytest.raises(TaskError, match=r"method.dataset.path=owner/answers .*train"):
        read_data(Config(), {"path": "owner/answers", "name": "hard"})
