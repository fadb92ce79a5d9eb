"""A small hub on 127.0.0.1 that speaks what huggingface_hub, transformers
and datasets ask of the real one.

Large files are redirected to another origin, as the hub does with its CDN. Faults can
be ordered, and every answer is logged with the bytes that were sent, so that tests can
tell what was fetched twice.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.hub.repositories import Repository, entry_of, etag, large, tree_of

TOKEN = "hf_loopbackSecret"


@dataclass
class Fault:
    """What goes wrong with the next `times` answers whose path contains `path`."""

    path: str
    status: int | None = None
    stall: float | None = None
    """Seconds of silence before anything is sent."""
    times: int = 1


@dataclass(frozen=True)
class Answer:
    """A line of the log."""

    method: str
    path: str
    status: int
    start: int = 0
    """First byte of the file that was sent."""
    sent: int = 0
    authorized: bool = False


class Hub:
    """The server with its repositories, faults and log."""

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.faults: list[Fault] = []
        self.log: list[Answer] = []
        self.lock = threading.Lock()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add(self, repository: Repository) -> Repository:
        self.repositories[repository.kind, repository.id.lower()] = repository
        return repository

    def fault(self, path: str) -> Fault | None:
        """The fault that meets this path, counted down."""
        with self.lock:
            for fault in self.faults:
                if fault.path in path and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def ranges(self, name: str) -> list[tuple[int, int]]:
        """(first byte, bytes sent) of each answer with a part of this file's content."""
        return [
            (a.start, a.sent)
            for a in self.log
            if a.method == "GET" and a.path.endswith(name) and a.sent
        ]

    @contextmanager
    def serving(self) -> Iterator["Hub"]:
        server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        server.daemon_threads = True
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are what some tests are about."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two packets: the second would wait 40 ms
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    @property
    def authorized(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def do_GET(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urlsplit(self.path)
        self.route = unquote(url.path).lstrip("/")
        self.query = parse_qs(url.query)
        self.failing = self.hub.fault(f"{self.command} {self.route}")
        if self.failing and self.failing.stall is not None:
            time.sleep(self.failing.stall)
        if self.failing and self.failing.status is not None:
            return self._send(self.failing.status, b"")
        if "Authorization" in self.headers and not self.authorized:
            headers = {"X-Error-Message": "Invalid credentials in Authorization header"}
            return self._send(401, b"", headers)
        first = self.route.split("/")[0]
        if first == "api":
            return self._api()
        if first == "cdn":
            return self._cdn()
        if "/resolve/" in self.route:
            return self._file()
        return self._send(404, b"")

    do_HEAD = do_POST = do_GET

    def _error(self, status: int, code: str, message: str = "") -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": message or code})

    def _find(self, kind: str, name: str, revision: str) -> tuple[Repository, str] | None:
        repository = self.hub.repositories.get((kind, name.lower()))
        if repository is None:
            self._error(404 if self.authorized else 401, "RepoNotFound", "Repository not found")
            return None
        commit = repository.resolve(revision)
        if commit is None:
            self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return None
        return repository, commit

    def _api(self) -> None:
        _, kind, owner, name, *remaining = [*self.route.split("/"), "", ""][:12]
        remaining = [part for part in remaining if part]
        verb, revision = (
            (remaining[0], remaining[1]) if len(remaining) > 1 else ("revision", "main")
        )
        found_repository = self._find(kind, f"{owner}/{name}", revision)
        if found_repository is None:
            return
        repository, commit = found_repository
        files = repository.commits[commit]
        if verb == "tree":
            below = "/".join(remaining[2:])
            return self._json(tree_of(files, below, "recursive" in self.query))
        if verb == "paths-info":
            form = parse_qs(self.body.decode())
            wanted_paths = form.get("paths") or json.loads(self.body or b"{}").get("paths", [])
            return self._json(
                [entry_of(path, files) for path in wanted_paths if entry_of(path, files)]
            )
        siblings = [{"rfilename": path} for path in files]
        about = {
            "_id": "0",
            "id": repository.id,
            "sha": commit,
            "private": False,
            "siblings": siblings,
        }
        self._json(
            about | {"gated": "manual" if repository.gated else False, "tags": [], "downloads": 0}
        )

    def _file(self) -> None:
        place, _, file_name = self.route.partition("/resolve/")
        kind, place = (
            ("datasets", place[9:]) if place.startswith("datasets/") else ("models", place)
        )
        revision, _, path = file_name.partition("/")
        found_repository = self._find(kind, place, revision)
        if found_repository is None:
            return
        repository, commit = found_repository
        if repository.gated and not self.authorized:
            return self._error(401, "GatedRepo", f"Access to model {repository.id} is restricted.")
        data = repository.commits[commit].get(path)
        headers = {"X-Repo-Commit": commit}
        if data is None:
            return self._send(404, b"", headers | {"X-Error-Code": "EntryNotFound"})
        if large(path):
            headers |= {"X-Linked-Etag": f'"{etag(path, data)}"', "X-Linked-Size": str(len(data))}
            place = f"cdn/{kind}/{repository.id}/{commit}/{path}"
            headers["Location"] = f"http://localhost:{self.hub.port}/{place}"
            return self._send(302, b"", headers)
        self._send_file(data, headers | {"ETag": f'"{etag(path, data)}"'})

    def _cdn(self) -> None:
        if "Authorization" in self.headers:
            return self._send(400, b"")  # a token has left the hub
        _, kind, owner, name, commit, path = self.route.split("/", 5)
        data = self.hub.repositories[kind, f"{owner}/{name}".lower()].commits[commit][path]
        self._send_file(data, {"ETag": f'"{etag(path, data)}"'})

    def _send_file(self, data: bytes, headers: dict[str, str]) -> None:
        byte_range = self.headers.get("Range", "")
        start = int(byte_range.removeprefix("bytes=").partition("-")[0]) if byte_range else 0
        if byte_range:
            headers |= {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        headers |= {"Accept-Ranges": "bytes"}
        self._send(206 if byte_range else 200, data[start:], headers, start)

    def _json(self, content: Any) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _send(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, start: int = 0
    ) -> None:
        sent = body if self.command != "HEAD" else b""
        token = "Authorization" in self.headers
        self.hub.log.append(Answer(self.command, self.route, status, start, len(sent), token))
        try:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(sent)
            self.wfile.flush()
        except OSError:  # the client has gone
            self.close_connection = True
