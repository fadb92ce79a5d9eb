"""Foreign text in messages, tables and files: control characters as escapes, URLs without
passwords.

Names of models and tasks, logs and errors of libraries may have any characters.
"""

import os
import re
import sys
import traceback
from collections.abc import Mapping

from moe_lab.errors import MoeLabError

CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 without the newline, DEL, C1, characters that change the direction of text, and surrogates."""
USER = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://)[^/\s]+@")
"""A URL up to the end of its user and password, which may have an @ of its own."""


def shown(text: str) -> str:
    r"""The text with its control characters as escapes, such as `\x1b`; newlines stay."""
    return CONTROL.sub(_escape, text)


def _escape(character: re.Match[str]) -> str:
    r"""The escape of a character, such as `\x1b`."""
    return repr(character[0])[1:-1]


def one_line(text: object) -> str:
    r"""As `shown`, with newlines as `\n`: for a name, which must not begin a line of its own."""
    return shown(str(text)).replace("\n", "\\n")


SECRET = re.compile(
    r"(^|[_-])(api_?key|key|token|password|passwd|secret|credentials?)$", re.IGNORECASE
)
"""The names of keys whose values are secrets."""


def without_secrets(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings with `***` for texts under the name of a secret, and without passwords in URLs."""
    shown_settings: dict[str, object] = {}
    for name, value in settings.items():
        if not isinstance(value, str):
            shown_settings[name] = value
        elif SECRET.search(name) and value.lower() not in ("true", "false", "none", ""):
            shown_settings[name] = "***"
        else:
            shown_settings[name] = without_passwords(value)
    return shown_settings


def without_passwords(text: str) -> str:
    """The text with `...` instead of user and password in URLs."""
    return USER.sub(r"\1...@", text)


def print_line(text: str) -> None:
    """Print a line on stdout that may have foreign text."""
    print(shown(without_passwords(text)))


def print_message(text: str) -> None:
    """Print a line on stderr that may have foreign text."""
    print(shown(without_passwords(text)), file=sys.stderr)


def print_error(error: BaseException) -> None:
    """A user's error as its message, a defect (or anything under HYDRA_FULL_ERROR=1) with its
    traceback."""
    if os.environ.get("HYDRA_FULL_ERROR") == "1" or not isinstance(error, MoeLabError):
        print_message("".join(traceback.format_exception(error)).rstrip())
    else:
        print_message(f"Error: {error}")
