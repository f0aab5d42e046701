"""The HTTP server of the model API: loopback only, one thread per connection."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.interop.model_api import anthropic, gemini, openai
from tests.interop.model_api.request import ModelRequest, spoken
from tests.interop.model_api.script import Answer, decide
from tests.interop.model_api.stream import Event

OVERLOADED = {"type": "error", "error": {"type": "server_error", "message": "Overloaded", "code": 500}}
POLL_S = 0.05  # how often a hanging answer looks whether its client is still there
# What the real providers say, as far as clients read it.
MESSAGES_BY_STATUS = {
    401: "Incorrect API key provided",
    403: "Your API key does not have permission to use the model",
    429: "Rate limit reached for requests",
    500: "The server had an error while processing your request",
    529: "Overloaded",
}
MODELS = ("test-model", "gpt-5.5", "gpt-5.1-codex", "claude-sonnet-4-5", "gemini-2.5-pro")


@dataclass(frozen=True)
class Provider:
    """One API: how its requests are read and its answers written."""

    parse: Callable[[dict[str, Any], str], ModelRequest]
    stream: Callable[[ModelRequest, Answer], Iterator[Event]]
    plain: Callable[[ModelRequest, Answer], dict[str, Any]]
    error: Callable[[int, str], dict[str, Any]]


def _parse_gemini(body: dict[str, Any], path: str) -> ModelRequest:
    named = re.search(r"models/([^:]+):", path)
    return gemini.parse(body, named[1] if named else "", ":stream" in path)


MESSAGES = Provider(lambda body, _: anthropic.parse(body), anthropic.stream, anthropic.plain, anthropic.error)
RESPONSES = Provider(
    lambda body, _: openai.parse_responses(body), openai.stream_responses, openai.plain_response, openai.error
)
CHAT = Provider(lambda body, _: openai.parse_chat(body), openai.stream_chat, openai.plain_chat, openai.error)
GEMINI = Provider(_parse_gemini, gemini.stream, gemini.plain, gemini.error)

PROVIDERS = {
    re.compile(r"/messages$"): MESSAGES,
    re.compile(r"/responses$"): RESPONSES,
    re.compile(r"/chat/completions$"): CHAT,
    re.compile(r":(stream)?[gG]enerateContent$"): GEMINI,
}


@dataclass
class Call:
    """One request to a model endpoint, as it was recorded."""

    path: str
    key: str
    body: dict[str, Any]
    request: ModelRequest
    answer: Answer

    @property
    def said(self) -> str:
        return spoken(self.request.user_text)


@dataclass
class ModelApi:
    """A running model API. Every field may be read, and `key` and `status` changed, at any time."""

    url: str = ""
    key: str | None = None  # requests with another key get 401
    status: int | None = None  # answer every prompt with this HTTP status
    calls: list[Call] = field(default_factory=list)
    answers: deque[Answer] = field(default_factory=deque)  # given in their order, before what the script says
    open_streams: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def prompts(self) -> list[Call]:
        """The calls that belong to turns, without the agents' side questions."""
        return [call for call in self.calls if not call.answer.aside]

    def last_saying(self, text: str) -> Call:
        """The last call of a turn whose user message contains `text`."""
        return next(call for call in reversed(self.prompts()) if text in call.said)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._json(200, {})

    def do_GET(self) -> None:
        if self.headers.get("Upgrade"):
            self._json(426, openai.error(426, "no WebSocket here"))
        elif self._route().rstrip("/").endswith("/models"):
            listed = [{"id": m, "object": "model", "type": "model", "display_name": m} for m in MODELS]
            named = [{"name": f"models/{m}", "displayName": m} for m in MODELS]
            self._json(
                200, {"object": "list", "data": listed, "models": named if "beta" in self.path else []}
            )
        else:
            self._json(200, {})

    def do_POST(self) -> None:
        raw = self._body()
        route = self._route()
        if route.endswith(("/count_tokens", ":countTokens")):
            self._json(200, {"input_tokens": len(raw) // 4, "totalTokens": len(raw) // 4})
            return
        provider = next((provider for pattern, provider in PROVIDERS.items() if pattern.search(route)), None)
        if provider is None:  # telemetry, update checks
            self._json(200, {})
            return
        body = json.loads(raw)
        request = provider.parse(body, route)
        answer = self._decide(request)
        with self.server.api.lock:
            self.server.api.calls.append(Call(route, self._key(), body, request, answer))
        if answer.status != 200:
            message = answer.message or MESSAGES_BY_STATUS.get(answer.status, "Test")
            self._json(answer.status, provider.error(answer.status, message))
        elif answer.garbage:
            self._send(
                200, "text/event-stream" if request.stream else "application/json", answer.garbage.encode()
            )
        elif request.stream:
            self._stream(provider.stream(request, answer), answer)
        elif answer.hang:
            while not self._client_gone(POLL_S):
                pass
        elif not self._takes_its_time(answer):
            self._json(200, provider.plain(request, answer))

    def _decide(self, request: ModelRequest) -> Answer:
        api = self.server.api
        with api.lock:
            answer = api.answers.popleft() if api.answers else decide(request)
        if api.key is not None and self._key() != api.key:
            return replace(answer, status=401)
        if api.status is not None and not answer.aside:
            return replace(answer, status=api.status)
        return answer

    def _route(self) -> str:
        return self.path.split("?")[0]

    def _key(self) -> str:
        bearer = self.headers.get("Authorization") or ""
        named = self.headers.get("x-api-key") or self.headers.get("x-goog-api-key")
        return named or bearer.removeprefix("Bearer ")

    def _body(self) -> bytes:
        if "chunked" not in (self.headers.get("Transfer-Encoding") or "").lower():
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return data

    def _json(self, status: int, body: Any) -> None:
        self._send(status, "application/json", json.dumps(body).encode())

    def _send(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _stream(self, events: Iterator[Event], answer: Answer) -> None:
        api = self.server.api
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        with api.lock:
            api.open_streams += 1
        try:
            if answer.hang:
                while not self._client_gone(POLL_S):
                    pass
                return
            for count, (name, data) in enumerate(events, 1):
                text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
                self.wfile.write((f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode())
                if count == answer.fails_after:
                    self.wfile.write(b"data: " + json.dumps(OVERLOADED).encode() + b"\n\n")
                    return
                if answer.gap_s and "delta" in (name or "delta") and self._client_gone(answer.gap_s):
                    return
        finally:
            with api.lock:
                api.open_streams -= 1

    def _takes_its_time(self, answer: Answer) -> bool:
        """Wait as long as the pieces of the answer would take. Whether its client went away meanwhile."""
        return bool(answer.gap_s) and self._client_gone(answer.gap_s * len(answer.text))

    def _client_gone(self, wait_s: float) -> bool:
        """Wait so long, or until the client has closed."""
        if self.server.stopping.is_set():
            return True
        self.connection.settimeout(wait_s)
        begin = time.monotonic()
        try:
            gone = self.connection.recv(1, socket.MSG_PEEK) == b""
        except TimeoutError:
            gone = False
        except OSError:
            gone = True
        finally:
            self.connection.settimeout(None)
        if not gone:
            time.sleep(max(0.0, wait_s - (time.monotonic() - begin)))
        return gone


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    request_queue_size = 128

    def __init__(self, api: ModelApi) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.api = api
        self.stopping = threading.Event()
        self.sockets: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.sockets.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.sockets.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Agents break connections off all the time: that is no error here."""

    def end_connections(self) -> None:
        self.stopping.set()
        for connection in list(self.sockets):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


@contextmanager
def running_model_api() -> Iterator[ModelApi]:
    """Serve on a free loopback port until the block ends."""
    api = ModelApi()
    server = _Server(api)
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": POLL_S})
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.end_connections()
        server.server_close()
        thread.join()
