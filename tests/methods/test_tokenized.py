"""Training data, and conversations that are tokenized.

Broken by: a file that is read in another order or half, a wrong place in a message,
a damaged file that ends in a traceback, a generated data set that trains on a question of its task
or has the wrong split; a loss on the questions' tokens, of an empty answer or of one of weight 0,
an answer without its end, a truncation that is not counted, conversations that runs of a grid
encode again, or get from another tokenizer, data set or length.
"""

import codecs
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from moe_lab.config.schema import Config, ModelConfig
from moe_lab.errors import ConfigError, TaskError
from moe_lab.methods.data_files import TOY_SIZES, Data, data_files, read_data, read_rows
from moe_lab.methods.finetune_freeze import prepared
from moe_lab.methods.finetune_freeze.config import FinetuneConfig
from moe_lab.methods.tokenized import EMPTY, NO_LOSS, Pad, Row, Rows, encode, encode_all
from moe_lab.models.tokenizer import PLAIN_TEMPLATE, load_tokenizer, with_template
from moe_lab.tasks.loading import task_cache
from moe_lab.tasks.toy.differences import differences
from moe_lab.tasks.toy.instructions import instructions
from tests.support.models import make_tokenizer
from tests.support.runs import write_jsonl

KNOWN = {"chats": "owner/chats"}


def files(dataset: str, **keys) -> list[Path]:
    data_paths, source = data_files(Config(**keys), dataset, KNOWN)
    assert source is None
    return data_paths


@pytest.mark.parametrize("suffix, place", [(".jsonl", "line 4689"), (".parquet", "row 2345")])
def test_rows_of_every_format_come_in_order_with_their_place(suffix, place, tmp_path):
    """Parquet in several batches, JSON with empty lines between the rows."""
    rows = [{"text": f"ä\n{number}"} for number in range(2345)]
    file = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    else:
        file.write_text(
            "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8"
        )
    rows_read = list(read_rows(file))
    assert [row for row, _ in rows_read] == rows
    assert rows_read[-1][1] == f"{file}, {place}"


def test_a_folder_is_all_its_files_in_order(tmp_path):
    for name in ("b.jsonl", "a.parquet", "below/c.jsonl", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert files(str(tmp_path)) == [
        tmp_path / name for name in ("a.parquet", "b.jsonl", "below/c.jsonl")
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("broken.jsonl", None, "cannot be read"),
        ("broken.jsonl", b"\xff\xfe\x00nonsense", "cannot be read"),
        ("broken.parquet", None, "cannot be read"),
        ("broken.parquet", b"\xff\xfe\x00nonsense", "cannot be read"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text":\n', ", line 3 is not JSON"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(name, content, message, tmp_path):
    if content:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskError, match=f"{name}.*{message}"):
        list(read_rows(tmp_path / name))


def test_a_name_is_a_file_or_a_data_set(tmp_path):
    own_file = tmp_path / "own.jsonl"
    with pytest.raises(TaskError, match="there is no file .*own.jsonl"):
        files(str(own_file))
    own_file.touch()
    assert files(str(own_file)) == [own_file]
    for name in ("pile", "a/b/c"):
        message = f"={name} is unknown. Use toy, chats, owner/name .* of .csv, .json"
        with pytest.raises(TaskError, match=message):
            files(name)


@pytest.mark.parametrize("dataset, folder", [("chats", "chats"), ("some/texts", "texts")])
def test_data_dir_stands_for_the_hub_where_it_has_the_file(dataset, folder, tmp_path):
    with pytest.raises(TaskError, match="data set .* is not available offline"):
        files(dataset, data_dir=str(tmp_path))
    path = tmp_path / folder / "train.jsonl"
    path.parent.mkdir()
    path.touch()
    assert files(dataset, data_dir=str(tmp_path)) == [path]


def questions_of(conversations: list[Any]) -> set[str]:
    return {messages[0]["content"] for messages in conversations}


def test_generated_data_are_trained_on_and_held_out_by_their_splits():
    held_out_instructions = instructions("validation", 20)
    held_out_differences = [*differences("test", 10_000), *differences("validation", 10_000)]
    held_out_questions = {
        "toy": {row["messages"][0]["content"] for row in held_out_instructions},
        "toy_subtract": {row["question"] for row in held_out_differences},
    }
    for name, questions in held_out_questions.items():
        data = read_data(Config(), name, held_out=20)
        assert len(data.train) == TOY_SIZES[name]
        assert len(data.validation) == 20
        assert questions_of(data.validation) <= questions
        assert questions_of(data.train).isdisjoint(questions)
    assert read(Config(), "toy", 20) == [row["messages"] for row in instructions("train", 20)]


def test_the_first_conversations_are_the_same_for_any_number():
    few = read_data(Config(), "toy_subtract", size=30).train
    many = read_data(Config(), "toy_subtract", size=60).train
    assert few == many[:30]


def read(config, dataset, size=None) -> list:
    return read_data(config, dataset, size).train


TURNS = [
    {"role": "user", "content": "Where does Ann live?"},
    {"role": "assistant", "content": "In Rome."},
    {"role": "user", "content": "And Bob?"},
    {"role": "assistant", "content": "In Oslo, I think."},
]


def weighted(first: float | None, second: float | None) -> list[dict]:
    """`TURNS` with the weights of their two answers."""
    return [TURNS[0], {**TURNS[1], "weight": first}, TURNS[2], {**TURNS[3], "weight": second}]


@pytest.fixture
def tiny():
    return load_tokenizer(Config().model, offline=True)


def learned(tokenizer, row: Row) -> str:
    return tokenizer.decode([label for label in row.labels if label != NO_LOSS])


@pytest.mark.parametrize("marked", (True, False))
def test_the_answers_and_their_end_tokens_are_learned_and_nothing_else(marked, tiny):
    """Where the template marks them, and where they are located by the text of the first turns."""
    assert "{% generation %}" in tiny.chat_template
    if not marked:
        tiny.chat_template = re.sub("{% (end)?generation %}", "", tiny.chat_template)
    [row] = encode(tiny, [TURNS])
    assert learned(tiny, row) == " In Rome.<|endoftext|> In Oslo, I think.<|endoftext|>"
    beginning = "User: Where does Ann live?\nAssistant: In Rome.<|endoftext|>\nUser:"
    assert tiny.decode(row.ids).startswith(beginning)
    for token, label in zip(row.ids, row.labels, strict=True):
        assert label in (NO_LOSS, token)


@pytest.mark.parametrize("marked", (True, False))
def test_an_answer_of_weight_0_is_read_and_not_learned(marked, tiny, tmp_path):
    """Broken by a weight that is dropped: the answer was learned.

    The tokens are those of transformers.
    """
    file = tmp_path / "own.jsonl"
    write_jsonl(
        file, [{"messages": weighted(0, None)}, {"messages": weighted(1, 0.0)}, {"messages": TURNS}]
    )
    data = read_data(Config(), str(file))
    if not marked:
        tiny.chat_template = re.sub("{% (end)?generation %}", "", tiny.chat_template)
    rows = encode_all(tiny, data.train, 2048).rows
    answers_text = [" In Rome.<|endoftext|>", " In Oslo, I think.<|endoftext|>"]
    assert [learned(tiny, row) for row in rows] == [
        answers_text[1],
        answers_text[0],
        "".join(answers_text),
    ]
    ids = tiny.apply_chat_template(TURNS, return_dict=True)["input_ids"]
    assert all(row.ids == ids for row in rows), "the messages alone, without their weights"


def test_transformers_own_mask_is_what_is_learned_where_all_answers_are(tiny):
    options = {"return_dict": True, "return_assistant_tokens_mask": True}
    expected = [tiny.apply_chat_template(turns, **options) for turns in (TURNS, TURNS[:2])]
    for row, expected_mask in zip(encode(tiny, [TURNS, TURNS[:2]]), expected, strict=True):
        assert row.ids == expected_mask["input_ids"]
        assert [label != NO_LOSS for label in row.labels] == [
            bool(mask) for mask in expected_mask["assistant_masks"]
        ]


def test_conversations_without_an_answer_to_learn_are_left_out(tiny, tmp_path):
    """Also those whose template does not say which mark belongs to which answer."""
    file = tmp_path / "own.jsonl"
    write_jsonl(
        file, [{"messages": weighted(0, 0)}, {"messages": weighted(0, 1)}, {"messages": TURNS[:2]}]
    )
    data = read_data(Config(), str(file))
    assert encode_all(tiny, data.train, 2048).left_out == 1
    with pytest.raises(TaskError, match="No conversation has an answer to train on"):
        encode_all(tiny, data.train[:1], 2048)
    tiny.chat_template = tiny.chat_template.replace(
        "{% generation %}", "{% if loop.last %}{% generation %}"
    )
    tiny.chat_template = tiny.chat_template.replace(
        "{% endgeneration %}", "{% endgeneration %}{% endif %}"
    )
    made = encode_all(tiny, data.train, 2048)
    assert [learned(tiny, row) for row in made.rows] == [" In Rome.<|endoftext|>"]
    assert made.left_out == 2


EMPTY_TURNS = [TURNS[0], {"role": "assistant", "content": " \n"}]


@pytest.mark.parametrize("marked", (True, False))
def test_empty_answers_are_not_learned_and_counted(marked, tiny, tmp_path):
    """Broken by the label of their end token, which teaches the model to answer nothing."""
    file = tmp_path / "own.jsonl"
    stored = [EMPTY_TURNS, [*EMPTY_TURNS, *TURNS[2:]], TURNS]
    write_jsonl(file, [{"messages": messages} for messages in stored])
    data = read_data(Config(), str(file))
    assert data.digest != Data(train=stored, validation=[]).digest, "a new id"
    if not marked:
        tiny.chat_template = re.sub("{% (end)?generation %}", "", tiny.chat_template)
    made = encode_all(tiny, data.train, 2048)
    last = " In Oslo, I think.<|endoftext|>"
    assert [learned(tiny, row) for row in made.rows] == [last, f" In Rome.<|endoftext|>{last}"]
    assert (made.empty_answers, made.left_out) == (2, 1)
    assert [note.partition(":")[2].split()[0] for note in made.notes("training")] == ["2", "1"]
    assert encode_all(tiny, [TURNS], 2048).notes("training") == []


def test_what_is_trained_on_is_not_held_out(made, tmp_path):
    """Broken by a duplicate that is in both parts: the validation loss is that of training data."""
    questions = ["A", "B", "C", "A", "D", "D", "B", "E"]
    file = tmp_path / "own.jsonl"
    write_jsonl(file, [{"messages": conversation(question)} for question in questions])
    data = read_data(Config(), str(file), held_out=5)
    assert data.train == [conversation(question) for question in "ABC"]
    assert data.validation == [conversation(question) for question in "DE"]
    assert data.duplicates == 3
    prepared_data, _ = made(data, warmup_ratio=0.0)
    note = "left out of the validation data: 3 conversations that are trained on or occur twice"
    assert prepared_data.notes == [note]

    weighted = conversation("A")
    weighted[-1] = {**weighted[-1], "weight": 0}
    conversations = [conversation("A"), weighted, conversation("B")]
    write_jsonl(file, [{"messages": messages} for messages in conversations])
    data = read_data(Config(), str(file), held_out=2)
    assert data.validation == [conversation("B")], "the same texts with other weights"

    write_jsonl(file, [{"messages": conversation(question)} for question in "AAB"])
    whole = read_data(Config(), str(file))
    assert whole.train == [conversation(question) for question in "AAB"], "nothing is held out"
    assert read_data(Config(), str(file), held_out=1).duplicates == 0
    repeated_file = tmp_path / "again.jsonl"
    write_jsonl(repeated_file, [{"messages": conversation("A")}] * 2)
    message = "validation_size=1 holds out only conversations that are trained on"
    with pytest.raises(TaskError, match=message):
        read_data(Config(), str(repeated_file), held_out=1)


def test_weights_are_part_of_the_data(tmp_path):
    """Of answers alone: a weight of 1 is the default, and other messages are never learned."""

    def digest(*messages) -> str:
        file = tmp_path / "own.jsonl"
        write_jsonl(file, [{"messages": list(messages)}])
        return read_data(Config(), str(file)).digest

    plain = digest(*TURNS)
    assert plain == Data(train=[TURNS], validation=[]).digest, "ids of other data stay"
    assert digest(*weighted(1, None)) == digest({**TURNS[0], "weight": 0}, *TURNS[1:]) == plain
    assert len({plain, digest(*weighted(0, 1)), digest(*weighted(1, 0))}) == 3


@pytest.mark.parametrize(
    ("number", "weight", "error_message"),
    [
        *(
            (1, weight, f"weight={weight!r} of a message. Use 1 .*, 0 .*, or leave it out")
            for weight in (0.5, 2, -1)
        ),
        (1, "0", "weight='0' of a message"),
        (0, 1, "weight=1 of a message of the user. Only answers are trained on"),
    ],
)
def test_other_weights_are_refused_with_their_line(number, weight, error_message, tmp_path):
    messages = [dict(message) for message in TURNS]
    messages[number]["weight"] = weight
    write_jsonl(tmp_path / "own.jsonl", [{"messages": TURNS}, {"messages": messages}])
    with pytest.raises(TaskError, match=f"own.jsonl, line 2: {error_message}"):
        read(Config(), str(tmp_path / "own.jsonl"))


def test_a_tokenizer_without_a_template_is_given_the_plain_one(tiny):
    plain = make_tokenizer()
    own_template = tiny.chat_template
    for tokenizer in (plain, tiny):
        with_template(tokenizer)
    assert plain.chat_template == PLAIN_TEMPLATE
    assert tiny.chat_template == own_template
    [row] = encode(plain, [TURNS])
    beginning = "User: Where does Ann live?\nAssistant: In Rome.<|end|>\nUser: And"
    assert plain.decode(row.ids).startswith(beginning)
    assert learned(plain, row) == " In Rome.<|end|> In Oslo, I think.<|end|>"


def test_conversations_whose_earlier_turns_the_template_rewrites_are_left_out(tiny):
    """As templates do that write reasoning into the last answer only.

    Where that is all, it is an error.
    """
    tiny.chat_template = (
        "{% for m in messages %}{{ m.role }}: "
        "{% if loop.last and m.role == 'assistant' %}<think>{% endif %}"
        "{{ m.content }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    made = encode_all(tiny, [TURNS, TURNS[:2]], 2048)
    assert [learned(tiny, row) for row in made.rows] == ["<think>In Rome."]
    assert made.left_out == 1
    with pytest.raises(ConfigError, match="model.tokenizer="):
        encode_all(tiny, [TURNS, TURNS], 2048)
    tiny.chat_template = tiny.chat_template.replace(
        "{{ m.content }}",
        "{% if m.role == 'user' %}{{ m.content }}{% else %}{%- generation %}{{ m.content }}"
        "{% endgeneration %}{% endif %}",
    )
    [row] = encode_all(tiny, [TURNS], 2048).rows
    assert learned(tiny, row) == " In Rome.In Oslo, I think.", (
        "marked answers are found all the same"
    )


def test_empty_conversations_and_those_that_the_assistant_opens_are_left_out(tiny):
    made = encode_all(tiny, [[], TURNS, TURNS[1:]], 2048)
    assert made.rows == encode(tiny, [TURNS])
    assert made.left_out == 2
    with pytest.raises(TaskError, match="No conversation has an answer"):
        encode_all(tiny, [[], TURNS[1:]], 2048)


def test_long_rows_are_cut_behind_the_limit_and_counted(tiny):
    whole, first = encode(tiny, [TURNS, TURNS[:2]])
    cut = encode_all(tiny, [TURNS, TURNS[:2], TURNS[:1]], len(whole.ids) - 2)
    assert (cut.truncated, cut.left_out) == (1, 1), "the third has no answer"
    assert [len(row.ids) for row in cut.rows] == [len(whole.ids) - 2, len(first.ids)]
    assert cut.rows[0].labels == whole.labels[:-2]
    with pytest.raises(TaskError, match="No conversation has an answer"):
        encode_all(tiny, [TURNS[:1]], 2048)
    with pytest.raises(TaskError, match="method.length=3"):
        encode_all(tiny, [TURNS], 3)


def test_messages_after_the_limit_are_not_rendered(tiny):
    """Broken by work that is quadratic in the messages of a conversation.

    100,000 messages would take hours.
    """
    made = encode_all(tiny, [TURNS * 50_000], 24)
    assert made.rows == encode_all(tiny, [TURNS * 20], 24).rows
    assert made.truncated == 1


def test_padding_is_at_the_end_and_is_neither_read_nor_learned():
    batch = Pad(7)(
        [{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}, {"input_ids": [4], "labels": [4]}]
    )
    assert batch["input_ids"].tolist() == [[1, 2, 3], [4, 7, 7]]
    assert batch["labels"].tolist() == [[1, 2, 3], [4, NO_LOSS, NO_LOSS]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_rows_without_labels_are_in_a_batch_only_where_it_has_no_others():
    rows = Rows([Row([1, 2, 3], [1, 2, 3])])
    batch = Pad(7)([rows[0], rows[EMPTY]])
    assert batch["input_ids"].tolist() == [[1, 2, 3]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1]]
    empty = Pad(7)([rows[EMPTY], rows[EMPTY]])
    assert empty["labels"].tolist() == [[NO_LOSS, NO_LOSS]]
    assert empty["attention_mask"].all()


def test_files_of_messages_and_of_turns_are_the_same(tmp_path):
    (tmp_path / "lima").mkdir()
    turns = {"conversations": [message["content"] for message in TURNS]}
    (tmp_path / "lima" / "train.jsonl").write_text(
        json.dumps(turns) + "\n\n" + json.dumps(turns) + "\n"
    )
    (tmp_path / "own.jsonl").write_text(json.dumps({"messages": TURNS, "kind": "x"}) + "\n")
    config = Config(data_dir=str(tmp_path))
    assert read(config, "lima") == [TURNS, TURNS]
    assert read(config, "lima", 1) == read(config, f"{tmp_path}/own.jsonl")


def test_the_digest_is_of_both_parts():
    parts = ([TURNS, TURNS], []), ([TURNS], []), ([TURNS], [TURNS])
    assert (
        len({Data(train=train, validation=validation).digest for train, validation in parts}) == 3
    )


@pytest.mark.parametrize(
    "line",
    [
        '{"text": "a"}',
        "[1]",
        '{"messages": ["a"]}',
        '{"conversations": [null, "a"]}',
        '{"messages": [{"role": "bot", "content": "a"}]}',
        '{"messages": [{"role": "user", "content": null}]}',
    ],
)
def test_what_is_no_conversation_is_named_with_its_line(line, tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps({"messages": TURNS}) + "\n" + line + "\n")
    with pytest.raises(TaskError, match="own.jsonl, line 2.*no conversation"):
        read(Config(), str(file))
    file.write_text("\n")
    with pytest.raises(TaskError, match="has 0 conversations"):
        read(Config(), str(file))


def conversation(question: str) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": "In Rome, I think."},
    ]


DATA = Data(
    train=[conversation("Where does Ann live?")] * 8, validation=[], source={"data_set": "one"}
)


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Prepares data on the tiny model with changes, and how often anything was encoded."""
    calls: list[int] = []

    def encode(tokenizer, conversations, length, end):
        calls.append(length)
        return encode_all(tokenizer, conversations, length, end)

    monkeypatch.setattr(prepared, "encode_all", encode)

    def prepare(data: Data = DATA, model: ModelConfig | None = None, **settings):
        config = Config(model=model or ModelConfig(), offline=True)
        return prepared.prepare(
            config, FinetuneConfig(**settings), data, SimpleNamespace(max_length=2048)
        ), calls

    with task_cache():
        yield prepare


def test_what_only_the_tokenizer_shows_is_refused(made, tmp_path):
    """A phase without a step, once conversations are left out; a role that the template refuses."""
    with pytest.raises(ConfigError, match="phase 1 has no step"):
        made(replace(DATA, train=[*DATA.train[:4], []]), schedule="none-router", epochs=1)
    tokenizer = load_tokenizer(ModelConfig(), offline=True)
    refuse = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    )
    tokenizer.chat_template = refuse + tokenizer.chat_template
    tokenizer.save_pretrained(tmp_path)
    system = [{"role": "system", "content": "Be"}, *conversation("Hi")]
    with pytest.raises(TaskError, match="no system role"):
        made(replace(DATA, train=[system, *DATA.train]), ModelConfig(tokenizer=str(tmp_path)))


def test_the_same_is_encoded_once_and_keeps_its_own_source(made):
    first, _ = made(schedule="router")
    second_encoding, calls = made(
        replace(DATA, source={"data_set": "a copy"}), schedule="none-router"
    )
    assert calls == [2048]
    assert second_encoding.train is first.train
    assert (first.data.source, second_encoding.data.source) == (
        {"data_set": "one"},
        {"data_set": "a copy"},
    )


def test_what_differs_is_encoded_anew(made, tmp_path):
    first, _ = made()
    short = len(first.train.rows[0].ids) - 2
    assert len(made(length=short)[0].train.rows[0].ids) == short
    other_data = Data(train=[conversation("Who lives in Oslo?")] * 8, validation=DATA.train)
    assert made(other_data)[0].train.rows[0].ids != first.train.rows[0].ids
    make_tokenizer().save_pretrained(tmp_path)
    bytewise, calls = made(model=ModelConfig(tokenizer=str(tmp_path)))
    assert bytewise.train.rows[0].ids != first.train.rows[0].ids
    tokenizer = load_tokenizer(ModelConfig(tokenizer=str(tmp_path)), offline=True)
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}|{{ m.content }}|{% endfor %}" + (
        "{% if add_generation_prompt %}assistant|{% endif %}"
    )
    tokenizer.save_pretrained(tmp_path)
    framed, _ = made(model=ModelConfig(tokenizer=str(tmp_path)))
    assert framed.train.rows[0].ids != bytewise.train.rows[0].ids
    assert calls == [2048, short, 2048, 2048, 2048, 2048], "each once, and the held-out ones of one"


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path):
    row = {"messages": [{"role": "user", "content": "hello 😀"}]}
    file = tmp_path / "rows.jsonl"
    file.write_bytes(codecs.BOM_UTF8 + (json.dumps(row) + "\n").encode())
    assert [row_read for row_read, _ in read_rows(file)] == [row]


def test_half_of_a_character_is_refused_with_its_line(tmp_path):
    row = {"messages": [{"role": "user", "content": "hello \ud83d"}]}
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(TaskError, match=r"rows\.jsonl, line 1: half of a character"):
        list(read_rows(file))
