"""Bodies and messages of clients at their limits, on every route that takes JSON: others are answered
meanwhile, and what is too much is refused."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx2
import orjson
import pytest
import trio

from gateway.api.requests.bodies import MAX_VALUES
from gateway.configuration.config import Config
from tests.support.impolite import HANDSHAKE
from tests.support.liveness import Watch
from tests.support.scripted import scripted_command
from tests.support.server import running_server
from tests.support.thorough import everyday

MAX_BODY_BYTES = Config().max_body_bytes
MAX_MESSAGE_BYTES = Config().max_message_bytes
HELD_UP_S = 0.05
"""What a probe of liveness may take meanwhile, without what server and client wait for a processor. 4 MB that
were read on the loop took 1.8 s, and 26 MB up to 26 s."""

ANSWER_S = 60.0

VALUES = MAX_VALUES - 200
"""Below the limit, with what is around them."""

SEVERAL_S = 0.15
"""The same of several clients: one body may be checked right after another. Eight took 0.04 to 0.07 s."""

Json = Any


def lists(size: int) -> Json:
    return [1] * size


def keys(size: int) -> Json:
    return {str(number): number for number in range(size // 2)}


def numbers(size: int) -> Json:
    return [number + 0.5 for number in range(size)]


def objects(size: int) -> Json:
    return [{"type": "text", "text": ""}] * (size // 5)


def nested(size: int) -> Json:
    value: Json = 1
    for _ in range(50):
        value = [value]
    return [value] * (size // 51)


EVERYDAY: Final = (lists, keys, numbers)
SHAPES: Final[dict[str, Callable[[int], Json]]] = {
    each.__name__: each for each in everyday(EVERYDAY, (*EVERYDAY, objects, nested))
}


class Bodies:
    """What fits a schema, and as much of it as there may be."""

    def __init__(self, document: Json) -> None:
        self._schemas = document["components"]["schemas"]

    def whole(self, schema: Json) -> Json:
        while "$ref" in schema:
            schema = self._schemas[schema["$ref"].rpartition("/")[2]]
        for word in ("anyOf", "oneOf", "allOf"):
            if word in schema and "properties" not in schema:
                return self.whole(next((e for e in schema[word] if e.get("type") != "null"), {}))
        return schema

    def properties(self, schema: Json) -> list[str]:
        return list(self.whole(schema).get("properties", {}))

    def fitting(self, schema: Json, values: int, characters: int, depth: int = 0) -> Json:
        """A document with about so many values, and so many characters in its texts."""
        schema = self.whole(schema)
        if "const" in schema or "enum" in schema:
            return schema.get("const", schema.get("enum", [None])[0])
        kind = schema.get("type", "object" if "properties" in schema else None)
        kind = next((each for each in kind if each != "null"), None) if isinstance(kind, list) else kind
        if kind == "string":
            return "x" * characters
        if kind in ("integer", "number"):
            return 1
        if kind == "boolean":
            return True
        if depth > 6 or values < 4:
            return {} if kind == "object" else [] if kind == "array" else None
        if kind == "array":
            one = self.fitting(schema.get("items", {}), 12, 1, depth + 1)
            return [one] * max(1, values // weight(one))
        if kind == "object":
            named = schema.get("properties", {})
            if named:
                share = len(named)
                return {
                    name: self.fitting(each, values // share, max(1, characters // share), depth + 1)
                    for name, each in named.items()
                }
            more = schema.get("additionalProperties", {})
            one = self.fitting(more if isinstance(more, dict) else {}, 12, 1, depth + 1)
            return {f"n{number}": one for number in range(max(1, values // (weight(one) + 1)))}
        return [1] * values


def weight(value: Json) -> int:
    """Its values, keys included."""
    if isinstance(value, dict):
        return 1 + sum(1 + weight(each) for each in value.values())
    if isinstance(value, list):
        return 1 + sum(map(weight, value))
    return 1


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    """Method, path and schema of each that takes a JSON body."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                yield method.upper(), path, content["application/json"].get("schema", {})


@asynccontextmanager
async def watched(server, most=HELD_UP_S):
    """Nothing in the block may hold up others for more than `most` seconds. `-s` shows how long each took."""
    pid = int((server.state / "server.pid").read_text())
    with Watch(server.url, pid, server.directory / "liveness") as watch:
        await watch.settle()
        yield watch
        await watch.settle()
        found = watch.slowest()
    for own, whole, what in found:
        print(f"{own * 1000:7.1f} ms, with waits for a processor {whole * 1000:7.1f} ms: {what}")
    assert [each for each in found if each[0] > most] == []


async def conversation(server):
    agent = {"acp_server": "custom", "acp_command": scripted_command(home=server.directory / "agent")}
    created = await server.rest.create(server.directory / "work", agent)
    return str(created["id"])


def filled(path, conversation):
    """The path with something for each of its parameters."""
    ours = ("conversation_id", "runtime_conversation_id", "profile_id", "command_id")
    return re.sub(r"{(\w+)}", lambda found: conversation if found[1] in ours else "default", path)


TOO_MUCH = b'{"content":[' + b"1," * (everyday(1_000_000, MAX_BODY_BYTES - 20) // 2) + b"1]}"
"""More values than may be, in many bytes."""


def cases(bodies, schema):
    """Bodies for a route, and whether each is to be refused whatever the route."""
    names = bodies.properties(schema) or ["x"]
    yield "too much", TOO_MUCH, True
    yield "what fits", orjson.dumps(bodies.fitting(schema, VALUES, 10)), False
    for name, shape in SHAPES.items():
        yield name, orjson.dumps(dict.fromkeys(names, shape(VALUES // len(names)))), False
    if everyday(False, True):
        text = "x" * ((MAX_BODY_BYTES - 5000) // len(names))
        yield "strings", orjson.dumps(dict.fromkeys(names, text)), False
        yield "strings that fit", orjson.dumps(bodies.fitting(schema, 100, MAX_BODY_BYTES - 5000)), False


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
async def test_no_body_on_any_route_holds_up_others(tmp_path):
    tried = 0
    async with running_server(tmp_path) as server, httpx2.AsyncClient(timeout=ANSWER_S) as http:
        document = (await http.get(f"{server.url}/openapi.json")).json()
        bodies, id_ = Bodies(document), await conversation(server)
        async with watched(server) as watch:
            for method, path, schema in operations(document):
                for name, body, refused in cases(bodies, schema):
                    if len(body) > MAX_BODY_BYTES:
                        continue
                    watch.what = f"{method} {path} with {name}"
                    headers = {"Content-Type": "application/json"}
                    url = f"{server.url}{filled(path, id_)}"
                    answer = await http.request(method, url, content=body, headers=headers)
                    assert answer.status_code < 500 or answer.status_code == 501, watch.what
                    if refused:
                        assert answer.status_code in (404, 409, 413, 422, 501), watch.what
                    tried += 1
    assert tried >= 150


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
async def test_bodies_of_several_clients_hold_up_little_more(tmp_path):
    async with running_server(tmp_path) as server, httpx2.AsyncClient(timeout=ANSWER_S) as http:
        id_ = await conversation(server)
        targets = (
            ("PATCH", "/api/settings"),
            ("POST", f"/api/conversations/{id_}/events"),
            ("POST", f"/api/conversations/{id_}/secrets"),
            ("POST", "/api/conversations"),
        )

        async def client(number: int) -> None:
            for turn in range(everyday(3, 20)):
                method, path = targets[(number + turn) % len(targets)]
                headers = {"Content-Type": "application/json"}
                answer = await http.request(method, f"{server.url}{path}", content=body, headers=headers)
                assert answer.status_code < 500

        body = orjson.dumps({"secrets": keys(VALUES)})
        async with watched(server, most=SEVERAL_S) as watch:
            watch.what = "bodies of eight clients"
            async with trio.open_nursery() as nursery:
                for number in range(8):
                    nursery.start_soon(client, number)


def masked(payload: bytes) -> bytes:
    """A client's frame of text, its mask all zeroes."""
    size = len(payload)
    length = b"\xfe" + struct.pack(">H", size) if size < 65536 else b"\xff" + struct.pack(">Q", size)
    return b"\x81" + length + bytes(4) + payload


SOCKETS = {
    "events": "/sockets/events/{}",
    "session": "/sockets/session/{}",
    "commands": "/sockets/bash-events",
}

MANY = everyday(1_000_000, 8_000_000)

FRAMES = {
    "numbers": lambda: b'{"role":"user","content":[' + b",".join([b"1"] * MANY) + b"]}",
    "keys": lambda: b'{"role":"user",' + b",".join(b'"%07d":1' % each for each in range(MANY // 7)) + b"}",
    "nested": lambda: b"[" * MANY + b"]" * MANY,
    "wrong parts": lambda: orjson.dumps({"role": "user", "content": lists(VALUES)}),
}


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
@pytest.mark.parametrize("kind", SOCKETS)
async def test_no_message_on_a_socket_holds_up_others(tmp_path, kind):
    async with running_server(tmp_path) as server:
        path = SOCKETS[kind].format(await conversation(server)).encode()
        host, port = server.url.removeprefix("http://").split(":")
        async with watched(server) as watch, await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(re.sub(rb"^GET \S+", b"GET " + path, HANDSHAKE))
            assert (await stream.receive_some(4096)).startswith(b"HTTP/1.1 101 ")
            for name, make in FRAMES.items():
                watch.what, frame = name, make()
                assert len(frame) <= MAX_MESSAGE_BYTES
                told = b""
                with trio.fail_after(ANSWER_S):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(stream.send_all, masked(frame))
                        expected = b"ValidationError" if name == "wrong parts" else b"TooHeavy"
                        while expected not in told:
                            data = await stream.receive_some(65536)
                            assert data, f"the server ended the connection after {told[-500:]!r}"
                            told += data
