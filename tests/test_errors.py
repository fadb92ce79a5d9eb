"""The boundary around readers of files that a user names.

Broken by a traceback, or by a message without the path.
"""

import json

import pytest

from moe_lab.errors import ConfigError, ModelError, TaskError, first_line, reading
from tests.support.command import run_command

DEEP = b"[" * 100_000
FILES = {
    "a deep conversation": ("method=finetune-freeze method.dataset", "a.jsonl", DEEP),
    "a parquet that is none": ("method=finetune-freeze method.dataset", "a.parquet", b"PAR1" * 10),
    "a corpus that is none": ("method=pretrain method.dataset", "a.parquet", b"PAR1" * 10),
    "a deep profile": ("method=roe method.temperature", "a.yaml", DEEP[:1200]),
    "a binary profile": ("method=roe method.temperature", "a.yaml", b"\x00\xff"),
    "a profile that is a list": ("method=scmoe method.profile", "a.yaml", b"- 1"),
    "counts that are none": ("method=c2r method.profile", "a.safetensors", b"\xff" * 20),
}


@pytest.mark.parametrize("keys, name, content", FILES.values(), ids=FILES)
def test_a_file_that_cannot_be_read_is_one_message_with_its_path(
    keys, name, content, tmp_path, capsys
):
    (tmp_path / name).write_bytes(content)
    command = f"{keys}={tmp_path / name} model=tiny limit=2 output_dir={tmp_path}/out"
    ended = run_command(capsys, *command.split())
    assert ended.code == 2
    assert ended.err.count("Error:") == 1
    assert "Traceback" not in ended.err
    assert str(tmp_path / name) in ended.err
    assert len(ended.err.splitlines()) <= 4


@pytest.mark.parametrize(
    "content", [DEEP, b"[1]", b'{"peft_type": "LORA", "r": "x"}', b"\xff", b'{"peft_type": "LORA"}']
)
def test_an_adapter_that_cannot_be_read_is_one_message(content, tmp_path, capsys):
    (tmp_path / "adapter_config.json").write_bytes(content)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"\x02\x00\x00\x00\x00\x00\x00\x00[]")
    place = f"output_dir={tmp_path}/out"
    ended = run_command(capsys, f"model.peft={tmp_path}", "model=tiny", "limit=2", place)
    assert ended.code == 2
    assert str(tmp_path) in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    "error",
    [EOFError(), RecursionError("deep"), MemoryError(), OverflowError("big"), KeyError("a")],
)
def test_any_exception_becomes_one_message_and_stays_its_cause(error):
    with pytest.raises(TaskError) as raised, reading("a.bin", "Save it again.", raises=TaskError):
        raise error
    assert str(raised.value) == f"a.bin cannot be read: {first_line(error)}. Save it again."
    assert raised.value.__cause__ is error


def test_own_errors_get_the_path_once_and_an_interruption_passes():
    with pytest.raises(ModelError, match=r"^a\.bin: no layer$"), reading("a.bin"), reading("a.bin"):
        raise ModelError("no layer")
    with (
        pytest.raises(ConfigError, match=r"^a\.bin, line 3 is odd: "),
        reading("a.bin"),
        reading("a.bin, line 3", says="is odd"),
    ):
        json.loads("{")
    with pytest.raises(KeyboardInterrupt), reading("a.bin"):
        raise KeyboardInterrupt


def test_a_first_line_is_short_and_there():
    assert first_line(ValueError('"\n\n a reason.\nmore')) == "a reason"
    assert first_line(KeyError()) == "KeyError"
    assert first_line(FileNotFoundError(2, "No such file", "a.bin")) == "No such file"
    assert len(first_line(ValueError("x" * 1000))) == 300
