"""What huggingface_hub asks of the hub to create a repository and to commit files to it."""

import base64
import hashlib
import json
from collections.abc import Callable
from typing import Any

from tests.support.hub.repositories import Repository, etag, large

OWNER = "someone"
"""The owner of the token."""


class Uploads:
    """A part of the handler of requests. Large files go to another origin, by a URL without a token."""

    hub: Any
    body: bytes
    command: str
    route: str
    headers: Any
    _json: Callable[[Any], None]
    _send: Callable[..., None]

    def writing(self) -> Callable[[], None] | None:
        """The answer to a request that writes; None for all others."""
        parts = self.route.split("/")
        if self.command == "PUT" and parts[0] == "storage":
            return self._store
        if self.command != "POST":
            return None
        if self.route == "api/repos/create":
            return self._create
        if self.route == "api/validate-yaml":
            return lambda: self._json({"errors": [], "warnings": []})
        if self.route.endswith(".git/info/lfs/objects/batch"):
            return self._batch
        if parts[0] == "api" and len(parts) > 4 and parts[4] in ("preupload", "commit"):
            return self._preupload if parts[4] == "preupload" else self._commit
        return None

    def _create(self) -> None:
        asked = json.loads(self.body)
        name = f"{asked['organization'] or OWNER}/{asked['name']}"
        url = json.dumps({"url": f"{self.hub.url}/{name}"}).encode()
        if ("models", name.lower()) in self.hub.repositories:
            return self._send(409, url, {"Content-Type": "application/json"})
        self.hub.add(Repository(name, private=asked.get("visibility") == "private")).commit({})
        self._send(200, url, {"Content-Type": "application/json"})

    def _target(self) -> Repository:
        _, kind, owner, name, *_ = self.route.split("/")
        repository: Repository = self.hub.repositories[kind, f"{owner}/{name}".lower()]
        return repository

    def _files(self) -> dict[str, bytes]:
        repository = self._target()
        return repository.commits[repository.branches["main"]]

    def _preupload(self) -> None:
        stored = self._files()
        files = [
            {
                "path": (path := asked["path"]),
                "uploadMode": "lfs" if large(path) else "regular",
                "shouldIgnore": False,
                "oid": etag(path, stored[path]) if path in stored else None,
            }
            for asked in json.loads(self.body)["files"]
        ]
        self._json({"files": files})

    def _batch(self) -> None:
        wanted = json.loads(self.body)["objects"]
        place = f"http://localhost:{self.hub.port}/storage/"
        actions = [
            each
            | (
                {}
                if each["oid"] in self.hub.objects
                else {"actions": {"upload": {"href": place + each["oid"]}}}
            )
            for each in wanted
        ]
        self._json({"transfer": "basic", "objects": actions})

    def _store(self) -> None:
        name = self.route.rpartition("/")[2]
        if "Authorization" in self.headers or hashlib.sha256(self.body).hexdigest() != name:
            return self._send(400, b"")
        self.hub.objects[name] = self.body
        self._send(200, b"")

    def _commit(self) -> None:
        files = dict(self._files())
        for line in self.body.splitlines():
            asked = json.loads(line)
            value = asked["value"]
            if asked["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif asked["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
        repository = self._target()
        commit = repository.commit(files)
        self._json({"commitUrl": f"{self.hub.url}/{repository.id}/commit/{commit}", "commitOid": commit})
