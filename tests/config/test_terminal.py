"""Foreign text on stdout and stderr. Broken by an escape sequence that is sent, and by a name that begins a line."""

import io
import os
import subprocess
import sys

import pytest

from moe_lab.config.terminal import ShownStream, one_line, shown, shown_output, without_passwords
from moe_lab.errors import ConfigError, print_error
from moe_lab.reports.columns import print_table, texts
from moe_lab.results.stored_files import damaged

HOSTILE = "a\x1b[2J\x1b]0;title\x07b\x9b1m\x7f\r\u202ec\u2066\ud800\t"
SHOWN = r"a\x1b[2J\x1b]0;title\x07b\x9b1m\x7f\r\u202ec\u2066\ud800\t"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_control_characters_are_shown_and_letters_stay():
    assert shown(HOSTILE) == SHOWN
    assert shown("größe 数\nb │ \u2212") == "größe 数\nb │ \u2212"
    assert one_line("a\nError: b") == r"a\nError: b"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_neither_stream_sends_them(stream, kind, monkeypatch):
    written = kind()
    monkeypatch.setattr(sys, stream, written)
    with shown_output(), shown_output():
        print(HOSTILE, file=getattr(sys, stream))
    assert written.getvalue() == SHOWN + "\n" and getattr(sys, stream) is written


def test_tables_show_them_in_columns_of_the_right_width(capsys):
    with shown_output():
        print_table(HOSTILE, [texts("name", [HOSTILE, "x\nError: y"]), texts("n", ["1", "22"])])
    out = capsys.readouterr().out
    assert not set(HOSTILE) & set("\x1b\x07\x9b\x7f\r\u202e\u2066\ud800\t") & set(out)
    [first, second] = [line for line in out.splitlines() if line.rstrip()[-1:] in ("1", "2")]
    assert first.startswith(SHOWN) and second.startswith(r"x\nError: y")
    assert first.rindex("1") == second.index("2")


def test_bars_are_drawn_on_a_terminal(monkeypatch):
    from tqdm import tqdm

    written = Terminal()
    monkeypatch.setattr(sys, "stderr", written)
    with (
        shown_output(),
        tqdm(total=2, desc="x", disable=False) as bar,
        tqdm(total=2, disable=False, position=1),
    ):
        bar.update()
    assert "\rx:  50%" in written.getvalue().replace("\r\r", "\r") or "\rx:" in written.getvalue()
    assert "\\r" not in written.getvalue() and "\\x1b" not in written.getvalue()


def test_a_path_in_an_error_begins_no_line(tmp_path, capsys):
    with shown_output():
        print_error(damaged(tmp_path / "a\nError: all is lost", "it is gone"))
        print_error(ConfigError(HOSTILE))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and r"a\nError: all is lost is damaged" in lines[0]


def test_passwords_in_urls_are_not_printed(capsys):
    url = "https://user:pass@word@hub.example/a and socks5h://token@proxy:80, http://hub.example/a@b"
    expected = "https://...@hub.example/a and socks5h://...@proxy:80, http://hub.example/a@b"
    assert without_passwords(url) == expected
    with shown_output():
        print(url, file=sys.stderr)
    assert "user" not in capsys.readouterr().err


def test_an_ended_reader_is_written_no_further(monkeypatch):
    read, write = os.pipe()
    os.close(read)
    stream = ShownStream(os.fdopen(write, "w"))
    for _ in range(3):
        stream.write("x" * 100_000)
        stream.flush()


@pytest.mark.slow
def test_head_ends_a_command_quietly():
    command = f"{sys.executable} -m moe_lab --help | head -1; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert ended.stderr == "", "no traceback of a reader that leaves"
    assert ended.stdout.splitlines()[-1] in ("0", "141")
