"""Lines of progress in a log, and bars in a terminal.

Broken by: a log that stays empty for minutes, a line or bar that does not say what it is about, an
escape sequence in a log, a name that begins a line.
"""

import io
import logging
import sys
import time
from typing import Any

import pytest

from moe_lab.config import progress
from moe_lab.config.progress import Progress, bars_of_libraries_hidden, naming
from moe_lab.config.terminal import one_line, print_error, shown, without_passwords
from moe_lab.errors import ConfigError
from moe_lab.reports.columns import print_table, texts
from moe_lab.results.run_log import WarningsOnce


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines every 20 milliseconds."""
    monkeypatch.setattr(progress, "INTERVAL", 0.02)


def wait_for(capsys: pytest.CaptureFixture[str], lines: int) -> list[str]:
    """The lines on stderr once there are that many, or after 5 seconds."""
    text = ""
    end = time.monotonic() + 5
    while text.count("\n") < lines and time.monotonic() < end:
        time.sleep(0.01)
        text += capsys.readouterr().err
    return text.splitlines()


def test_without_a_terminal_lines_come_by_themselves(often, capsys):
    """Also while one request takes longer than the interval."""
    with (
        naming("tiny-roe-toy_math-01234567"),
        Progress(4000, "generate_until", "request", initial=1000) as it,
    ):
        first = wait_for(capsys, 2)
        it.update(1000)
        it.at(it.done, "loss=2.500")
        later = wait_for(capsys, 2)
        it.at(4000)
    assert first[0] == "tiny-roe-toy_math-01234567: generate_until, 1000 of 4000 requests, ? left"
    assert later[-1].startswith(
        "tiny-roe-toy_math-01234567: generate_until, 2000 of 4000 requests, loss=2.500, 00:0"
    )
    assert later[-1].endswith(" left")
    assert "\r" not in "".join(later)
    last = capsys.readouterr().err.splitlines()
    assert last[-1].endswith("4000 of 4000 requests, loss=2.500, 00:00 left")
    time.sleep(0.05)
    assert capsys.readouterr().err == "", "nothing follows the end"


def test_what_is_short_or_hidden_says_nothing(capsys, monkeypatch, often):
    with Progress(3, "loglikelihood", "request", shown=False) as it:
        it.update(2)
        time.sleep(0.05)
    assert it.done == 2
    monkeypatch.setattr(progress, "INTERVAL", 30.0)
    with Progress(3, "loglikelihood", "request") as it:
        it.update(3)
    assert capsys.readouterr().err == ""


def test_an_error_ends_the_lines(often, capsys):
    with pytest.raises(ValueError), Progress(2, "training", "step"):
        wait_for(capsys, 1)
        raise ValueError
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr().err == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_has_the_name_of_its_run_while_the_block_lasts(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with naming("tiny-roe-toy_math-01234567"), Progress(4, "loglikelihood", "request") as it:
        it.update(3)
        it.at(4, "best=1.5")
    shown: Any = sys.stderr
    assert (
        "tiny-roe-toy_math-01234567: loglikelihood: 100%" in shown.getvalue()
        and "4/4" in shown.getvalue()
    )
    with naming("a"):
        with naming("b"):
            assert Progress(1, "x", "step", shown=False).title == "b: x"
        assert Progress(1, "x", "step", shown=False).title == "a: x"
    assert Progress(1, "x", "step", shown=False).title == "x"


def test_bars_of_libraries_are_hidden_where_there_is_no_terminal(capsys, monkeypatch):
    """tqdm is imported already, as in a notebook."""
    from tqdm import tqdm

    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    with bars_of_libraries_hidden():
        assert list(tqdm([1, 2])) == [1, 2]
        assert capsys.readouterr().err == ""
        list(tqdm([1, 2], disable=False))
    assert "2/2" in capsys.readouterr().err, "a bar that is asked for is shown"
    list(tqdm([1, 2]))
    assert "2/2" in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with bars_of_libraries_hidden():
        list(tqdm([1, 2]))
    assert "2/2" in capsys.readouterr().err, "a terminal shows bars"


# Foreign text in tables

HOSTILE = "a\x1b[2J\x1b]0;title\x07b\x9b1m\x7f\r\u202ec\u2066\ud800\t"
SHOWN = r"a\x1b[2J\x1b]0;title\x07b\x9b1m\x7f\r\u202ec\u2066\ud800\t"


def test_control_characters_are_shown_and_letters_stay():
    assert shown(HOSTILE) == SHOWN
    assert shown("größe 数\nb │ \u2212") == "größe 数\nb │ \u2212"
    assert one_line("a\nError: b") == r"a\nError: b"


def test_tables_show_control_characters_in_columns_of_the_right_width(capsys):
    print_table(HOSTILE, [texts("name", [HOSTILE, "x\nError: y"]), texts("n", ["1", "22"])])
    out = capsys.readouterr().out
    for character in "\x1b\x07\x9b\x7f\r\u202e\u2066\ud800\t":
        assert character in HOSTILE
        assert character not in out
    [first, second] = [line for line in out.splitlines() if line.rstrip()[-1:] in ("1", "2")]
    assert first.startswith(SHOWN)
    assert second.startswith(r"x\nError: y")
    assert first.rindex("1") == second.index("2")


def test_passwords_in_urls_are_left_out():
    url = (
        "https://user:pass@word@hub.example/a and socks5h://token@proxy:80, http://hub.example/a@b"
    )
    expected = "https://...@hub.example/a and socks5h://...@proxy:80, http://hub.example/a@b"
    assert without_passwords(url) == expected


def test_errors_and_warnings_are_printed_without_passwords_and_control_characters(capsys):
    hostile = "https://me:secret@hub.example/x \x1b[31mred"
    print_error(ConfigError(hostile))
    print_error(ValueError(hostile))
    WarningsOnce().emit(logging.LogRecord("x", logging.WARNING, "x", 1, hostile, (), None))
    err = capsys.readouterr().err
    assert err.count(r"https://...@hub.example/x \x1b[31mred") == 3
    assert "secret" not in err
    assert "\x1b" not in err
