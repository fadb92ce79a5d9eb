"""`flips.jsonl`. Broken by flips of another run that count as this one's, and by a torn file that is read."""

from __future__ import annotations

import pytest

from moe_lab.results.samples import FILE, Flip, Routing, read_flips, rounded, write_flips
from moe_lab.results.stored_files import DamagedError

LAYERS = [[[7, 0.5], [2, 0.25]], []]
FLIP = Flip("t", 3, "to_right", Routing([" ä", None], 5, "weight", LAYERS, LAYERS[::-1]))
UNROUTED = Flip("t", 4, "to_wrong")


def test_what_is_written_is_read(tmp_path):
    write_flips(tmp_path, {"run_id": "a"}, [FLIP, UNROUTED])
    assert read_flips(tmp_path) == read_flips(tmp_path, {"run_id": "a"}) == [FLIP, UNROUTED]
    assert read_flips(tmp_path, {"run_id": "b"}) is None and read_flips(tmp_path / "other") is None


@pytest.mark.parametrize("content", ["", '{"task": "t"}\n', '{"header": {}}\n{"task"'])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(DamagedError, match=FILE):
        read_flips(tmp_path)


def test_numbers_are_rounded():
    assert rounded([{7: 0.123456, 2: 1.0}, {}]) == [[[7, 0.1235], [2, 1.0]], []]
