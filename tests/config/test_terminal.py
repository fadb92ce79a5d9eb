"""Foreign text in tables. Broken by an escape sequence that is sent, and by a name that begins a line."""

import subprocess
import sys

import pytest

from moe_lab.config.terminal import one_line, shown, without_passwords
from moe_lab.reports.columns import print_table, texts

HOSTILE = "a\x1b[2J\x1b]0;title\x07b\x9b1m\x7f\r\u202ec\u2066\ud800\t"
SHOWN = r"a\x1b[2J\x1b]0;title\x07b\x9b1m\x7f\r\u202ec\u2066\ud800\t"


def test_control_characters_are_shown_and_letters_stay():
    assert shown(HOSTILE) == SHOWN
    assert shown("größe 数\nb │ \u2212") == "größe 数\nb │ \u2212"
    assert one_line("a\nError: b") == r"a\nError: b"


def test_tables_show_them_in_columns_of_the_right_width(capsys):
    print_table(HOSTILE, [texts("name", [HOSTILE, "x\nError: y"]), texts("n", ["1", "22"])])
    out = capsys.readouterr().out
    assert not set(HOSTILE) & set("\x1b\x07\x9b\x7f\r\u202e\u2066\ud800\t") & set(out)
    [first, second] = [line for line in out.splitlines() if line.rstrip()[-1:] in ("1", "2")]
    assert first.startswith(SHOWN) and second.startswith(r"x\nError: y")
    assert first.rindex("1") == second.index("2")


def test_passwords_in_urls_are_left_out():
    url = "https://user:pass@word@hub.example/a and socks5h://token@proxy:80, http://hub.example/a@b"
    expected = "https://...@hub.example/a and socks5h://...@proxy:80, http://hub.example/a@b"
    assert without_passwords(url) == expected


@pytest.mark.slow
def test_head_ends_a_command_quietly():
    command = f"{sys.executable} -m moe_lab --help | head -1; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert ended.stderr == "", "no traceback of a reader that leaves"
    assert ended.stdout.splitlines()[-1] in ("0", "141")
