"""What differs between two recordings of the same commit, and therefore is not compared.

Everything here was found by recording a commit twice. Each entry hides a change of what it names,
so the list is short.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

KEYS = {
    "wall_seconds": "a duration",
    "load_seconds": "a duration",
    "counting_seconds": "a duration",
    "last_session_seconds": "a duration",
    "cost/toy": "the duration of a judgement by the judge `toy`",
    "seconds": "a duration",
    "duration": "of a trial",
    "datetime_start": "of a trial",
    "datetime_complete": "of a trial",
    "train_runtime": "a duration",
    "train_samples_per_second": "a speed",
    "train_steps_per_second": "a speed",
    "tokens_per_second": "a speed",
    "peak_memory_bytes": "memory of the process, which depends on the allocator",
}
"""Keys of JSON and YAML files and columns of CSV files, with the reason; `cost/toy` is the key
`toy` in a `cost`. Their values are not compared, but that they are there is."""

SOMETIMES = {
    "peak_working_bytes": (
        "memory of the process, which a line of responses.jsonl lacks where it is 0"
    )
}
"""Keys of which not even their presence is compared, with the reason."""

FILES = {
    ".holder": "the process that held the folder, and since when",
    "storage.db": "Optuna's database with the times of trials; trials.csv has its content",
}
"""Names of files whose content is not compared, with the reason. That they are there is
compared."""

PATTERNS = [
    (
        r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ \d+ ",
        "<time> <process> ",
        "the beginning of a line of run.log",
    ),
    (r"\b\d+(\.\d+)? (ms|s|min|h)\b", "<duration>", "durations in tables, messages and logs"),
    (r"[\d,]+ tokens per second", "<speed>", "the speed of a training"),
    (r"peak \d+(\.\d+)? [MG]iB", "<peak>", "memory of the process"),
    (
        r'data-heading="time" data-value="[^"]*"',
        'data-heading="time"',
        "durations that a page sorts by",
    ),
    (
        r"(<caption>The cost of each run[^<]*</caption>(?s:.*?)<tbody>)(?s:.*?)</tbody>",
        r"\1</tbody>",
        "a page's table of times, memory and speed; results.json has its tokens",
    ),
    (
        r"^Traceback \(most recent call last\):\n(  .*\n)+",
        "Traceback\n",
        "lines of code, which any refactoring moves; the error itself is compared",
    ),
    (r" {2,}", "  ", "columns of a table are as wide as the durations in them"),
    (r"─{2,}", "─", "the same of the line below the headings"),
]
"""(regular expression, replacement, reason): replaced in all texts, those in JSON files
included."""

COMPILED = [
    (re.compile(pattern, re.MULTILINE), replacement) for pattern, replacement, _ in PATTERNS
]


def normalized(text: str, places: Mapping[str, str]) -> str:
    """The text without what varies. `places` are the folders of the recording, by the name that
    replaces them."""
    for name, folder in places.items():
        text = text.replace(folder, name)
    for pattern, replacement in COMPILED:
        text = pattern.sub(replacement, text)
    return text
