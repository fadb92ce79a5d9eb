"""What is made once. Broken by: a record of another id that is taken, a record without its files, work that is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moe_lab.errors import RunHeldError
from moe_lab.results.folder import Artifact, RunFolder


class Pair(Artifact):
    """A record and a file beside it."""

    def is_whole(self, content: dict[str, Any]) -> bool:
        return (self.folder / "other").exists()


def pair(tmp_path: Path, digest: str = "a" * 64) -> Pair:
    return Pair(folder=tmp_path / "pair", id=digest, record="record.json", scratch="parts")


def maker(artifact: Artifact, made: list[int]):
    def make() -> dict[str, Any]:
        (artifact.folder / "parts").mkdir(exist_ok=True)
        (artifact.folder / "other").touch()
        assert not (artifact.folder / "record.json").exists()
        made.append(1)
        return {"times": len(made)}

    return make


def test_it_is_made_once_and_again_where_something_is_gone(tmp_path):
    one, made = pair(tmp_path), []
    assert one.stored() is None
    assert one.load_or_make(maker(one, made)) == {"id": one.id, "times": 1}
    assert one.load_or_make(maker(one, made)) == one.stored() == {"id": one.id, "times": 1}
    assert not (one.folder / "parts").exists()
    (one.folder / "other").unlink()
    assert one.stored() is None and one.load_or_make(maker(one, made))["times"] == 2
    (one.folder / "record.json").write_text("[]")
    assert one.load_or_make(maker(one, made))["times"] == 3
    other = pair(tmp_path, "b" * 64)
    assert other.stored() is None and other.load_or_make(maker(other, made))["times"] == 4


def test_work_in_progress_stays_where_making_fails(tmp_path):
    one = pair(tmp_path)

    def fail() -> dict[str, Any]:
        (one.folder / "parts").mkdir()
        raise MemoryError

    with pytest.raises(MemoryError):
        one.load_or_make(fail)
    assert (one.folder / "parts").exists() and one.stored() is None


def test_another_maker_is_named(tmp_path):
    one = pair(tmp_path)
    with RunFolder(one.folder, one.id).held(), pytest.raises(RunHeldError):
        one.load_or_make(maker(one, []))
