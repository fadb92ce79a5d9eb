"""Repositories of the loopback hub: files by commit, and how the hub describes them."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

LARGE = (".safetensors", ".parquet", ".bin")
"""Kept as LFS files: known by their SHA-256 and served by the other origin."""


@dataclass
class Repository:
    """A model or data set with all its commits."""

    id: str
    kind: str = "models"
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    """Branches and tags: the commit that each stands for."""
    gated: bool = False

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Add a commit with these files alone and move the branch to it."""
        content = json.dumps({name: hashlib.sha1(data).hexdigest() for name, data in files.items()})
        name = hashlib.sha1(f"{self.id} {content} {len(self.commits)}".encode()).hexdigest()
        self.commits[name] = files
        self.branches[branch] = name
        return name

    def resolve(self, revision: str) -> str | None:
        return self.branches.get(revision) or (revision if revision in self.commits else None)


def large(name: str) -> bool:
    return name.endswith(LARGE)


def etag(name: str, data: bytes) -> str:
    """As the hub has it: SHA-256 of large files, git's object id of all others."""
    if large(name):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()


def entry_of(path: str, files: dict[str, bytes]) -> dict[str, Any] | None:
    """What the tree says of a path: a file, a folder, or nothing."""
    if path in files:
        data = files[path]
        entry = {"type": "file", "path": path, "size": len(data), "oid": etag(path, data)}
        if large(path):
            entry["oid"] = hashlib.sha1(data).hexdigest()
            entry["lfs"] = {"size": len(data), "oid": etag(path, data), "pointerSize": 134}
        return entry
    if any(name.startswith(f"{path}/") for name in files):
        return {
            "type": "directory",
            "path": path,
            "size": 0,
            "oid": hashlib.sha1(path.encode()).hexdigest(),
        }
    return None


def tree_of(files: dict[str, bytes], below: str, recursive: bool) -> list[Any]:
    inside = [name for name in files if not below or name.startswith(f"{below}/")]
    folders = {str(folder) for name in inside for folder in PurePosixPath(name).parents} - {
        ".",
        below,
    }
    depth = below.count("/") + 1 if below else 0
    paths = [path for path in sorted(folders | {*inside}) if recursive or path.count("/") == depth]
    return [entry_of(path, files) for path in paths]
