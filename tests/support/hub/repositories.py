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
        content = json.dumps({name: sha1(data) for name, data in files.items()})
        commit = sha1(f"{self.id} {content} {len(self.commits)}".encode())
        self.commits[commit] = files
        self.branches[branch] = commit
        return commit

    def resolve(self, revision: str) -> str | None:
        """The commit of a branch, a tag or a commit; None for what is none of them."""
        if revision in self.branches:
            return self.branches[revision]
        if revision in self.commits:
            return revision
        return None


def sha1(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def large(name: str) -> bool:
    return name.endswith(LARGE)


def etag(name: str, data: bytes) -> str:
    """As the hub has it: SHA-256 of large files, git's object id of all others."""
    if large(name):
        return hashlib.sha256(data).hexdigest()
    return sha1(f"blob {len(data)}\0".encode() + data)


def entry_of(path: str, files: dict[str, bytes]) -> dict[str, Any] | None:
    """What the tree says of a path: a file, a folder, or nothing."""
    if path in files:
        data = files[path]
        entry = {"type": "file", "path": path, "size": len(data), "oid": etag(path, data)}
        if large(path):
            entry["oid"] = sha1(data)
            entry["lfs"] = {"size": len(data), "oid": etag(path, data), "pointerSize": 134}
        return entry
    if any(name.startswith(f"{path}/") for name in files):
        return {"type": "directory", "path": path, "size": 0, "oid": sha1(path.encode())}
    return None


def tree_of(files: dict[str, bytes], below: str, recursive: bool) -> list[Any]:
    """The entries of a folder ("": all), in the order of their paths.

    `recursive`: also those of its folders.
    """
    paths = set()
    for name in files:
        if below and not name.startswith(f"{below}/"):
            continue
        paths.add(name)
        for folder in PurePosixPath(name).parents:
            paths.add(str(folder))
    paths -= {".", below}

    depth = below.count("/") + 1 if below else 0
    entries = []
    for path in sorted(paths):
        if recursive or path.count("/") == depth:
            entries.append(entry_of(path, files))
    return entries
