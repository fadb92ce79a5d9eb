"""Breaks if a file's digest leaves out some of it, is computed again without need, or is a stale one."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest

import moe_lab.models.file_digest as file_digest
from moe_lab.models.file_digest import CHUNK, WHOLE_BYTES, digest_of

LARGE = WHOLE_BYTES + 1
AN_HOUR = 3600


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MOE_LAB_CACHE", str(tmp_path / "cache"))
    forget(monkeypatch)
    return tmp_path / "cache" / "digests"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """One entry per time that a large file is read."""
    reads: list[Path] = []
    whole = file_digest._hash

    def counted(file: Path, size: int) -> str:
        reads.append(file)
        return whole(file, size)

    monkeypatch.setattr(file_digest, "_hash", counted)
    return reads


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    monkeypatch.setattr(file_digest, "_known", {})


def old_file(path: Path, content: bytes) -> Path:
    """A file that nobody has changed for an hour, as far as its times say (its change time is what it is)."""
    path.write_bytes(content)
    then = time.time() - AN_HOUR
    os.utime(path, (then, then))
    return path


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as settled at once."""
    monkeypatch.setattr(file_digest, "SETTLED_NS", -(10**12))


def test_a_small_file_keeps_its_digest(tmp_path: Path) -> None:
    content = bytes(range(256)) * 1024
    (tmp_path / "model.bin").write_bytes(content)
    assert digest_of(tmp_path / "model.bin") == hashlib.sha256(b"262144" + content).hexdigest()


@pytest.mark.parametrize("size", [LARGE, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_every_byte_counts(tmp_path: Path, size: int) -> None:
    file = tmp_path / "model.safetensors"
    content = bytearray(os.urandom(size))
    file.write_bytes(content)
    digests = {digest_of(file)}
    places = [0, size // 3, CHUNK - 1, CHUNK, 2 * CHUNK, size - 1]
    changed = sorted({place for place in places if place < size})
    for place in changed:
        with file.open("r+b") as opened:
            opened.seek(place)
            opened.write(bytes([content[place] ^ 1]))
        digests.add(digest_of(file))
        with file.open("r+b") as opened:
            opened.seek(place)
            opened.write(bytes([content[place]]))
    assert len(digests) == len(changed) + 1


def test_chunks_that_change_places_count(tmp_path: Path) -> None:
    one, other = b"a" * CHUNK, b"b" * CHUNK
    files = [tmp_path / "1.bin", tmp_path / "2.bin", tmp_path / "3.bin"]
    for file, content in zip(files, (one + other, other + one, one + other), strict=True):
        file.write_bytes(content)
    first, second, third = map(digest_of, files)
    assert first == third != second


@pytest.mark.usefixtures("settled")
def test_the_next_process_reads_no_weights(
    tmp_path: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = old_file(tmp_path / "model.safetensors", b"x" * LARGE)
    first = digest_of(file)
    assert len(read) == 1
    assert digest_of(file) == first
    forget(monkeypatch)
    assert digest_of(file) == first
    assert len(read) == 1


@pytest.mark.usefixtures("settled")
def test_a_change_that_hides_its_time_is_seen(
    tmp_path: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change time says so, which no program can set."""
    file = old_file(tmp_path / "model.safetensors", b"x" * LARGE)
    before, stat = digest_of(file), file.stat()
    with file.open("r+b") as opened:
        opened.write(b"y")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    forget(monkeypatch)
    assert digest_of(file) != before
    assert len(read) == 2


def test_a_fresh_file_is_read_again(
    tmp_path: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another change within the clock's tick would not show in its times."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"x" * LARGE)
    digest_of(file)
    forget(monkeypatch)
    digest_of(file)
    assert len(read) == 2


@pytest.mark.usefixtures("settled")
def test_a_file_that_changes_while_it_is_read_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    file = old_file(tmp_path / "model.safetensors", b"x" * LARGE)

    def disturbed(file: Path, size: int) -> str:
        file.write_bytes(b"y" * LARGE)
        return "0" * 64

    with monkeypatch.context() as patch:
        patch.setattr(file_digest, "_hash", disturbed)
        assert digest_of(file) == "0" * 64
    assert digest_of(file) != "0" * 64


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"digest": 7}', "\x00"])
def test_a_damaged_entry_is_hashed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, damage: str
) -> None:
    file = old_file(tmp_path / "model.safetensors", b"x" * LARGE)
    first = digest_of(file)
    (entry,) = cache.iterdir()
    entry.write_text(damage)
    forget(monkeypatch)
    assert digest_of(file) == first
    assert json.loads(entry.read_text())["digest"] == first


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("place", ["a file", "/proc/nowhere", "no home"])
def test_an_unwritable_cache_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: list[Path], place: str
) -> None:
    if place == "no home":
        monkeypatch.delenv("MOE_LAB_CACHE")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(Path, "home", no_home)
    else:
        (tmp_path / "a file").write_text("")
        monkeypatch.setenv("MOE_LAB_CACHE", place if place.startswith("/") else str(tmp_path / place))
    file = old_file(tmp_path / "model.safetensors", b"x" * LARGE)
    first = digest_of(file)
    assert digest_of(file) == first
    assert len(read) == 1, "this process remembers it all the same"
    forget(monkeypatch)
    assert digest_of(file) == first
    assert len(read) == 2


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.usefixtures("settled")
def test_the_cache_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    digest_of(old_file(tmp_path / "model.safetensors", b"x" * LARGE))
    assert cache.stat().st_mode & 0o077 == 0
    assert not [entry for entry in cache.iterdir() if entry.name.startswith(".")]
