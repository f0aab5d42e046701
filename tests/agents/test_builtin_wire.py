"""How the built-in agent speaks: the parts of its program that need no SDK."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from supervisor.acp.framing import MAX_FRAME_BYTES
from supervisor.agents.builtin import wire
from supervisor.agents.builtin.program import BuiltIn
from supervisor.agents.builtin.wire import INVALID_PARAMS, RpcError, Wire

PATIENCE_SECONDS = 20.0


class Client:
    """The other end of a wire whose loop runs on a thread."""

    def __init__(self) -> None:
        self._reading, writing = os.pipe()
        reading, self._writing = os.pipe()
        self.wire = Wire(reading, writing)
        self.ended = threading.Event()
        self.at_once: list[Any] = []
        self.asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._lines = os.fdopen(self._reading, "rb")
        self._open = [reading, writing]
        self.thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.thread.start()

    async def _serve(self) -> None:
        async def echo(params: dict[str, Any]) -> Any:
            return params

        async def refuse(params: dict[str, Any]) -> Any:
            raise RpcError(INVALID_PARAMS, "No.", {"why": "so"})

        async def fail(params: dict[str, Any]) -> Any:
            raise OSError(28, "No space left on device")

        async def ask(params: dict[str, Any]) -> Any:
            return {"answered": await self.wire.ask("client/question", {"q": 1})}

        def stumble(params: dict[str, Any]) -> None:
            raise RuntimeError("Event loop is closed")

        await self.wire.serve(
            {"echo": echo, "refuse": refuse, "fail": fail, "ask": ask},
            {
                "echo": lambda params: self.at_once.append(params),
                "stop": lambda params: self.at_once.append("stop"),
                "stumble": stumble,
            },
            self.ended.set,
        )

    def send(self, message: Any) -> None:
        line = message if isinstance(message, bytes) else json.dumps(message).encode()
        os.write(self._writing, line + b"\n")

    def hear(self) -> dict[str, Any]:
        return dict(json.loads(self._lines.readline()))

    def close(self) -> None:
        os.close(self._writing)
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive()
        self._lines.close()
        for descriptor in self._open:
            os.close(descriptor)


@pytest.fixture
def client() -> Iterator[Client]:
    one = Client()
    yield one
    one.close()
    assert one.ended.is_set()


def request(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}


def test_requests_are_answered(client: Client) -> None:
    client.send(request("echo", a=1))
    assert client.hear() == {"jsonrpc": "2.0", "id": 7, "result": {"a": 1}}
    assert client.at_once == [{"a": 1}]  # on the reading thread, before


def test_it_reads_on_whatever_a_notification_meets(client: Client) -> None:
    client.send({"jsonrpc": "2.0", "method": "stumble"})
    client.send(request("echo", a=1))
    assert select.select([client._reading], [], [], PATIENCE_SECONDS)[0], "it is deaf"
    assert client.hear()["result"] == {"a": 1}


@pytest.mark.parametrize(
    ("message", "code", "text"),
    [
        (request("refuse"), INVALID_PARAMS, "No."),
        (request("fail"), -32603, "No space left"),
        (request("nothing"), -32601, "Method not found: nothing"),
        ({"jsonrpc": "2.0", "id": 7, "method": "echo", "params": [1]}, INVALID_PARAMS, "not an object"),
        (b"{", -32700, "Not JSON"),
    ],
    ids=["refused", "failed", "unknown", "list", "garbage"],
)
def test_errors_are_answered(client: Client, message: Any, code: int, text: str) -> None:
    client.send(message)
    error = client.hear()["error"]
    assert error["code"] == code
    assert text in error["message"]


def test_what_is_no_message_is_passed_over(client: Client) -> None:
    for nothing in (
        b"",
        b"[]",
        b"7",
        b'{"id": "x", "result": 1}',
        b'{"id": 99, "result": 1}',
        b'{"method": 7}',
    ):
        client.send(nothing)
    client.send({"jsonrpc": "2.0", "method": "stop"})
    client.send(request("echo"))
    heard = client.hear()
    if heard.get("id") is None:  # an empty line is not JSON
        heard = client.hear()
    assert heard["result"] == {}
    assert client.at_once == ["stop", {}]


def test_it_asks_the_client(client: Client) -> None:
    client.send(request("ask"))
    asked = client.hear()
    assert (asked["method"], asked["params"]) == ("client/question", {"q": 1})
    client.send({"jsonrpc": "2.0", "id": asked["id"], "result": "yes"})
    assert client.hear()["result"] == {"answered": "yes"}
    client.send(request("ask"))
    asked = client.hear()
    client.send({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32000, "message": "no"}})
    assert client.hear()["error"]["message"] == "no"


def test_lines_of_many_threads_stay_whole(client: Client) -> None:
    """Longer than a pipe takes at once."""

    def tell(name: str) -> None:
        for number in range(20):
            client.wire.notify("told", {"name": name, "number": number, "text": name * 30_000})

    threads = [threading.Thread(target=tell, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    heard = [client.hear()["params"] for _ in range(80)]
    for thread in threads:
        thread.join()
    for name in "abcd":
        mine = [each for each in heard if each["name"] == name]
        assert [each["number"] for each in mine] == list(range(20))
        assert all(each["text"] == name * 30_000 for each in mine)


def test_secrets_are_hidden(client: Client) -> None:
    client.wire.hide(['canary-"1"', "short"])
    client.wire.notify("told", {"text": 'the key is canary-"1" in short'})
    assert client.hear()["params"] == {"text": "the key is <secret-hidden> in short"}


@pytest.mark.parametrize(
    ("secret", "params"),
    [
        ("123456", {"cost": 1.1234567, "tokens": 123456}),
        ("result", {"result": 1}),
        ("finished", {"_meta": {"ostler": {"status": "finished"}}, "kind": "finished"}),
        ("accepted", {"options": [{"optionId": "accepted", "name": "Yes"}]}),
        ("conversation-7", {"sessionId": "conversation-7"}),
    ],
)
def test_what_the_protocol_says_is_no_secret(client: Client, secret: str, params: dict[str, Any]) -> None:
    client.wire.hide([secret])
    client.send(request("echo", **params, text=f"It is {secret}."))
    assert client.hear() == {
        "jsonrpc": "2.0",
        "id": 7,
        "result": {**params, "text": "It is <secret-hidden>."},
    }


@pytest.mark.guarantee(name="secrets-stay-in")
@pytest.mark.parametrize(
    ("secret", "text", "heard"),
    [
        ("nbc-key-123", "line\nbc-key-123 and nbc-key-123", "line\nbc-key-123 and <secret-hidden>"),
        ("two\nlines-123", "the two\nlines-123", "the <secret-hidden>"),
        ('quoted-"1"', '{"arguments":"quoted-\\"1\\""}', '{"arguments":"<secret-hidden>"}'),
        ("short-key", "short-key-and-longer", "<secret-hidden>"),
    ],
    ids=["after an escape", "lines", "JSON in JSON", "the longer one"],
)
def test_secrets_are_hidden_in_texts_as_they_are(client: Client, secret: str, text: str, heard: str) -> None:
    client.wire.hide([secret, "short-key-and-longer"])
    client.wire.notify("told", {"event": {"content": [{"text": text}]}})
    assert client.hear()["params"] == {"event": {"content": [{"text": heard}]}}
    deep: Any = text
    for _ in range(10_000):
        deep = [deep]
    client.wire.notify("told", {"deep": deep, "text": text})
    assert client.hear()["params"]["text"] == heard


@pytest.mark.guarantee(name="secrets-stay-in")
def test_secrets_are_hidden_in_errors(client: Client) -> None:
    client.wire.hide(["No space left"])
    client.send(request("fail"))
    assert "No space left" not in json.dumps(client.hear())


def test_a_client_that_is_gone_is_not_told() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    Wire(reading, writing).notify("told", {})
    os.close(writing)


# -- bounds
@pytest.mark.guarantee(name="every-event-can-be-read")
@pytest.mark.parametrize(
    "make",
    [
        lambda: "x" * 10_000_000,
        lambda: "\x00" * 3_000_000,
        lambda: "ä" * 4_500_000,
        lambda: ["x" * 1000] * 10_000,
        lambda: {"deep": {"deeper": ["x" * 10_000_000, "kept"]}},
        lambda: list(range(1_500_000)),
    ],
    ids=["text", "escaped", "wide", "many", "deep", "numbers"],
)
def test_no_line_is_too_long(make: Callable[[], Any]) -> None:
    value = make()
    assert len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()) > wire.LINE_BYTES
    line = wire.line_of({"method": "told", "params": {"event": value, "id": "7"}})
    assert len(line) <= wire.LINE_BYTES < MAX_FRAME_BYTES
    assert json.loads(line)["params"]["id"] == "7"


def test_what_is_cut_says_so() -> None:
    cut = wire.shortened(
        {"text": "a" * 600 + "b" * 600, "short": "c", "image": "data:image/png;base64," + "A" * 900}, 400
    )
    assert cut["text"].startswith("a" * 200 + "\n[... 800 characters cut ...]\n")
    assert cut["text"].endswith("b" * 200)
    assert (cut["short"], cut["image"]) == ("c", "data:,")
    whole = {"text": "x" * 1000}
    assert json.loads(wire.line_of(whole)) == whole


def test_what_json_cannot_say() -> None:
    deep: Any = "here"
    for _ in range(100_000):
        deep = [deep]
    assert json.loads(wire.line_of({"deep": deep, "kept": 1}))["kept"] == 1
    assert json.loads(wire.line_of({"a": float("nan"), "b": [float("-inf"), 1.5]})) == {
        "a": None,
        "b": [None, 1.5],
    }


def test_half_a_surrogate_is_sent() -> None:
    assert json.loads(wire.line_of({"text": "a\ud800b"})) == {"text": "a?b"}


# -- the program
def test_the_handshake_comes_first() -> None:
    agent = BuiltIn(None)
    meta = {"_meta": {"ostler": {"persistence_dir": "/nowhere"}}, "cwd": "/"}
    for call, params, text in (
        (agent.new, meta, "Send initialize first"),
        (agent.new, {}, "persistence_dir"),
        (agent.prompt, {"sessionId": "x"}, "Session not found"),
        (agent.load, {**meta, "sessionId": "x"}, "not a UUID"),
        (agent.load, {**meta, "sessionId": "0198f2a0-0000-7000-8000-000000000001"}, "Session not found"),
    ):
        with pytest.raises(RpcError, match=text):
            asyncio.run(call(params))


def test_it_does_not_import_what_it_must_not() -> None:
    """The parts that a test can import need the standard library alone."""
    code = (
        "import sys; before = set(sys.modules);"
        "import supervisor.agents.builtin.program, supervisor.agents.builtin.wire;"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "print(*sorted(new - sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["supervisor"]
