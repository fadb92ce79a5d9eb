"""A server on 127.0.0.1 that speaks the documented moderation API: verdicts by words,
faults to order, and a log.

Every text of an error is, or holds, the request's Authorization header.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-loopback-secret"
MODEL = "omni-moderation-2024-09-26"
"""What answers for omni-moderation-latest."""
CATEGORIES = ("harassment", "hate", "illicit", "illicit/violent", "self-harm", "sexual", "violence")


@dataclass
class Fault:
    """What the next `times` requests get."""

    status: int = 500
    times: int = 1
    about: str | None = None
    """Only requests with this in their text."""


class ModerationServer:
    """Ordered faults come first, then the answer.

    `asked` has all texts that got a verdict, `requests` has (time, status) of all requests.
    """

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.asked: list[str] = []
        self.requests: list[tuple[float, int]] = []
        self.url = ""

    @contextmanager
    def serving(self) -> Iterator[None]:
        server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (_Handler,), {"moderation": self})
        )
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.serve_forever, args=(0.005,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def fault_for(self, text: str) -> Fault | None:
        for fault in self.faults:
            if fault.times and (fault.about is None or fault.about in text):
                fault.times -= 1
                return fault
        return None


def category_scores(text: str) -> dict[str, float]:
    """A score that depends on the text alone: violence by its length, hate by the word "hate"."""
    scores = dict.fromkeys(CATEGORIES, 0.001)
    return scores | {"violence": len(text) % 50 / 100, "hate": 0.9 if "hate" in text else 0.002}


def result(text: str) -> dict[str, Any]:
    """What the API says of a text."""
    scores = category_scores(text)
    categories = {name: score >= 0.3 for name, score in scores.items()}
    return {
        "flagged": any(categories.values()),
        "categories": categories,
        "category_scores": scores,
        "category_applied_input_types": {name: ["text"] for name in scores},
    }


class _Handler(BaseHTTPRequestHandler):
    moderation: ModerationServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are two packets: the second would wait 40 ms

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fault = self.moderation.fault_for(request["input"])
        if self.headers["Authorization"] != f"Bearer {KEY}":
            return self._error(401, "Incorrect API key provided:")
        if fault is not None:
            return self._error(fault.status, "ordered")
        if self.path != "/v1/moderations" or not request["model"].startswith("omni-moderation"):
            return self._error(404, "no such model")
        self.moderation.asked.append(request["input"])
        content = {"id": "modr-1", "model": MODEL, "results": [result(request["input"])]}
        self._send(200, json.dumps(content).encode())

    def _error(self, status: int, message: str) -> None:
        key = self.headers["Authorization"]
        content = {"error": {"message": f"{message} {key}", "type": key, "param": key, "code": key}}
        self._send(status, json.dumps(content).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.moderation.requests.append((time.monotonic(), status))
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except ConnectionError:
            pass  # the client gave up

    def log_message(self, format: str, *args: Any) -> None:
        pass
