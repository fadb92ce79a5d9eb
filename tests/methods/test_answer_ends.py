"""The token that ends an answer is learned.

Broken by: a chat template whose answers end at the marker of the next role or outside
of `{% generation %}`, and that teaches a model to write without end; a model that is not taught
to stop in silence; a trained model whose generation goes on after the token that it learned.
"""

import json
import re
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, GenerationConfig

from moe_lab.config.schema import Config, ModelConfig
from moe_lab.methods.answer_ends import answer_end, end_tokens
from moe_lab.methods.finetune_freeze.config import NO_END
from moe_lab.methods.tokenized import NO_LOSS, Row, encode, encode_all
from moe_lab.models.tokenizer import PLAIN_TEMPLATE
from tests.support.command import run_command
from tests.support.ended import block_of
from tests.support.models import make_model, make_tokenizer, save_model
from tests.support.runs import write_jsonl

TURNS = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "No."},
]
MARKERS = ["<|user|>", "<|assistant|>", "<|im_start|>", "<|im_end|>"]
TURN = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
CHAT_ML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def marked(before: str, marked: str, after: str) -> str:
    """A template that marks a part of each answer."""
    return (
        "{% for message in messages %}{% if message.role == 'user' %}U "
        "{{ message.content }} {% else %}"
        "A "
        f"{before}{{% generation %}}{marked}{{% endgeneration %}}{after}{{% endif %}}{{% endfor %}}"
    )


CONTENT = "{{ message.content }}"
NEW_LINE = "{{ '\\n' }}"
"""A template loses a line break after a block."""
TABLE = {
    "the marker of the next role": (
        TURN,
        "<|user|>\nHi<|assistant|>\n[Yes.<|user|>]\nBye<|assistant|>\n[No.<|user|>]",
    ),
    "the marker of the next role after white space": (
        TURN.replace("content }}", "content }} "),
        "<|user|>\nHi <|assistant|>\n[Yes. <|user|>]\nBye <|assistant|>\n[No. <|user|>]",
    ),
    "a token of its own": (
        CHAT_ML,
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[Yes.<|im_end|>]\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n[No.<|im_end|>]\n",
    ),
    "the plain template": (
        PLAIN_TEMPLATE,
        "User: Hi\nAssistant:[ Yes.<|end|>]\nUser: Bye\nAssistant:[ No.<|end|>]\n",
    ),
    "only after the last answer": (
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% else %}{{ eos_token }}{% endif %}",
        None,
    ),
    "marked with its end": (
        marked("", CONTENT + "<|im_end|>", NEW_LINE),
        "U Hi A [Yes.<|im_end|>]\nU Bye A [No.<|im_end|>]\n",
    ),
    "marked with its end and a new line": (
        marked("", CONTENT + "<|im_end|>" + NEW_LINE, ""),
        "U Hi A [Yes.<|im_end|>\n]U Bye A [No.<|im_end|>\n]",
    ),
    "marked without its end": (
        marked("", CONTENT, "<|im_end|>" + NEW_LINE),
        "U Hi A [Yes.<|im_end|>]\nU Bye A [No.<|im_end|>]\n",
    ),
    "marked without white space and its end": (
        marked("", CONTENT, " {{ eos_token }}"),
        "U Hi A [Yes. <|end|>]U Bye A [No. <|end|>]",
    ),
    "marked, and the marker of the next role": (
        TURN.replace(
            CONTENT,
            "{% if message.role == 'user' %}{{ message.content }}{% else %}{% generation %}"
            "{{ message.content }}{% endgeneration %}{% endif %}",
        ),
        "<|user|>\nHi<|assistant|>\n[Yes.<|user|>]\nBye<|assistant|>\n[No.<|user|>]",
    ),
    "nothing": (
        "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}",
        "user: Hi\nassistant: [Yes.]\nuser: Bye\nassistant: [No.]\n",
    ),
    "nothing that is marked": (
        marked("", CONTENT, ", "),
        "U Hi A [Yes.], U Bye A [No.], ",
    ),
}
"""A template, and its text of TURNS with brackets around the tokens that are learned.

None: the template's earlier answers cannot be located.
"""


def with_markers(template: str, markers: list[str] = MARKERS):
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(markers, special_tokens=True)
    tokenizer.chat_template = template
    return tokenizer


def row_of(tokenizer, text: str) -> Row:
    """A row by hand: every byte and marker is a token, and those in brackets have labels."""
    ids = []
    labels = []
    for part in re.split(r"(\[[^]]*\])", text):
        tokens = tokenizer(part.strip("[]"), add_special_tokens=False).input_ids
        ids += tokens
        labels += tokens if part.startswith("[") else [NO_LOSS] * len(tokens)
    return Row(ids, labels)


@pytest.mark.parametrize("name", [name for name, (_, text) in TABLE.items() if text is not None])
def test_the_token_that_ends_an_answer_is_a_label(name):
    template, text = TABLE[name]
    tokenizer = with_markers(template)
    end = answer_end(tokenizer, frozenset({tokenizer.eos_token_id}))
    [row] = encode_all(tokenizer, [TURNS], 2048, end).rows
    assert row == row_of(tokenizer, text), tokenizer.decode(
        [label for label in row.labels if label >= 0]
    )
    assert (end.token is None) == name.startswith("nothing")


def test_an_end_after_the_last_answer_alone_is_found():
    tokenizer = with_markers(TABLE["only after the last answer"][0])
    end = answer_end(tokenizer, frozenset({tokenizer.eos_token_id}))
    assert end.token == tokenizer.eos_token_id
    [row] = encode_all(tokenizer, [TURNS[:2]], 2048, end).rows
    assert row == row_of(tokenizer, "user: Hi\nassistant: [Yes.\n<|end|>]")


def test_a_marker_that_is_no_token_ends_no_answer():
    """Broken by a model that is said to stop at a text that its generation does not know."""
    tokenizer = with_markers(TURN, [])
    end = answer_end(tokenizer, frozenset({tokenizer.eos_token_id}))
    assert end.token is None
    assert encode_all(tokenizer, [TURNS], 2048, end).rows == encode(tokenizer, [TURNS])


def test_what_is_cut_and_counted_is_the_completed_row():
    tokenizer = with_markers(TURN)
    end = answer_end(tokenizer, frozenset())
    length = len(row_of(tokenizer, TABLE["the marker of the next role"][1]).ids)
    assert encode_all(tokenizer, [TURNS], length, end).truncated == 0
    cut = encode_all(tokenizer, [TURNS], length - 1, end)
    assert cut.truncated == cut.completed == 1


def test_the_ends_of_a_model_are_those_of_its_files(tmp_path):
    """generation_config.json comes before config.json, as in transformers."""
    tokenizer = make_tokenizer()
    save_model(make_model("olmoe", eos_token_id=7), tmp_path)
    config = Config(model=ModelConfig(path=str(tmp_path)), offline=True)
    GenerationConfig(eos_token_id=[5, 6]).save_pretrained(tmp_path)
    assert end_tokens(config, tokenizer) == {5, 6, tokenizer.eos_token_id}
    (tmp_path / "generation_config.json").unlink()
    assert end_tokens(config, tokenizer) == {7, tokenizer.eos_token_id}


def command(capsys, folder: Path, model: Path, *keys: str):
    command = [
        "method=finetune-freeze",
        "task=toy_math",
        "limit=2",
        "method.dataset_size=8",
        "method.epochs=1",
    ]
    command += ["method.max_steps=4", "method.validation_size=0", "method.learning_rate=0.01"]
    return run_command(capsys, *command, f"model.path={model}", f"output_dir={folder}", *keys)


def model_with(template: str, folder: Path, markers: list[str]) -> Path:
    tokenizer = with_markers(template, markers)
    return save_model(make_model("olmoe", vocab_size=len(tokenizer)), folder, tokenizer)


@pytest.mark.parametrize("markers", ([], MARKERS))
def test_a_plan_says_which_model_is_not_taught_to_stop(markers, tmp_path, capsys):
    model = model_with(TURN, tmp_path / "model", markers)
    planned = command(capsys, tmp_path, model, "mode=plan")
    assert planned.code == 0, planned.err
    assert "To train: 1" in planned.out, planned.err
    assert (NO_END in planned.out) == (not markers)


EMPTY = [TURNS[0], {"role": "assistant", "content": ""}]


def test_a_plan_counts_empty_answers_and_what_is_left_out(tmp_path, capsys):
    """Broken by conversations that are left out in silence."""
    rows = [{"messages": TURNS}] * 4 + [{"messages": EMPTY}] * 3 + [{"messages": [*EMPTY, *TURNS]}]
    write_jsonl(tmp_path / "own.jsonl", rows)
    model = model_with(TURN, tmp_path / "model", MARKERS)
    planned = command(capsys, tmp_path, model, f"method.dataset={tmp_path}/own.jsonl", "mode=plan")
    assert planned.code == 0, planned.err
    output = " ".join(planned.out.split())
    assert "answers without text in the training data, which are not trained on: 4" in output
    assert "left out of the training data: 3 of 8 conversations" in output


@pytest.mark.slow
def test_a_run_and_its_results_count_empty_answers(tmp_path, capsys):
    write_jsonl(tmp_path / "own.jsonl", [{"messages": TURNS}] * 4 + [{"messages": EMPTY}])
    model = model_with(TURN, tmp_path / "model", MARKERS)
    ended = command(
        capsys, tmp_path, model, f"method.dataset={tmp_path}/own.jsonl", "method.warmup_ratio=0"
    )
    message = "answers without text in the training data, which are not trained on: 1"
    assert ended.code == 0, ended.err
    assert message in ended.err, ended.err
    assert message in ended.out, ended.err
    training = block_of(ended)["finetune_freeze"]["training"]
    assert (training["empty_answers"], training["left_out"], training["conversations"]) == (1, 1, 4)


@pytest.mark.slow
def test_a_run_says_it_and_a_trained_model_stops_at_the_token_that_it_learned(tmp_path, capsys):
    model = model_with(TURN, tmp_path / "endless", [])
    ended = command(capsys, tmp_path, model)
    assert ended.code == 0, ended.err
    assert NO_END in ended.err, ended.err
    assert NO_END in ended.out, ended.err
    assert block_of(ended)["finetune_freeze"]["training"]["answer_end"] is None

    model = model_with(TURN, tmp_path / "model", MARKERS)
    ended = command(capsys, tmp_path, model)
    assert NO_END not in ended.err + ended.out
    report = block_of(ended)["finetune_freeze"]
    assert report["training"]["answer_end"] == "<|user|>"
    trained = tmp_path / "models" / report["model"] / "model"
    user = make_tokenizer().vocab_size
    ends = json.loads((trained / "generation_config.json").read_text())["eos_token_id"]
    assert ends == [256, user], "that of the model, and the marker"
    assert AutoModelForCausalLM.from_pretrained(trained).generation_config.eos_token_id == ends
