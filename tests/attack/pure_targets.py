"""What takes no process and no socket to attack: decoders, and a connection over streams in memory."""

from __future__ import annotations

import contextlib
import itertools
import re
from pathlib import Path
from random import Random
from typing import Any

import orjson
import trio
import trio.testing

from supervisor.acp import jsonrpc, parse_update, schema
from supervisor.acp.connection import open_connection
from supervisor.acp.errors import RpcError, UnsupportedProtocolVersion
from supervisor.acp.framing import HEAD_BYTES, FrameSplitter, Oversize
from supervisor.conversations.recording.bounds.truncation import EVENT_BYTES, fitting
from supervisor.conversations.recording.effects import Close, Recorded
from supervisor.conversations.recording.translate import Translator
from supervisor.events import Vocabulary, decode_event, decode_message, dump_event, with_nulls
from supervisor.mcp import file as mcp
from supervisor.mcp.configured import configured, resolve
from supervisor.mcp.entry import is_enabled, settings_entry
from supervisor.mcp.server import MCPServerError, server_errors
from supervisor.reading.model import Invalid
from supervisor.reading.weight import MAX_DEPTH, MAX_NODES, is_large, too_heavy
from supervisor.settings.document import Rules, apply_change, first_document, from_stored, public, to_stored
from supervisor.settings.errors import SettingsEmpty, SettingsError
from supervisor.settings.exposure import Expose
from tests.attack import seeds
from tests.attack.mutate import Mutator

CAPS = (16, 64, 4096, 1 << 20)  # bytes; the small ones make most frames too long
ANSWER_SECONDS = 5.0  # for the answer behind the garbage
RULES = Rules({"demo": ("demo-agent",), "claude-code": ("npx", "-y", "claude-agent")}, server_errors)
MOST_STEPS = 8  # updates of a turn, changes of a document


async def framing(random: Random) -> None:
    """However a stream is cut into pieces, the same frames come of it, and none over the cap."""
    mutator = Mutator(random)
    ends = (b"\n", b"\n", b"\r\n", b"\n\n", b" \n")
    data = b"".join(mutator.bytes(seeds.FRAMES) + random.choice(ends) for _ in range(random.randint(1, 6)))
    cap = random.choice(CAPS)
    whole = FrameSplitter(cap)
    expected = [*whole.feed(data), *whole.finish()]
    splitter = FrameSplitter(cap)
    frames: list[bytes | Oversize] = []
    position = 0
    while position < len(data):
        size = random.choice((1, 2, 7, 100, 5000))
        frames += splitter.feed(data[position : position + size])
        assert len(splitter._partial) <= max(cap + 1, HEAD_BYTES)
        position += size
    frames += splitter.finish()
    # White space around a frame means nothing.
    assert list(map(_bare, frames)) == list(map(_bare, expected))
    for frame in frames:
        if isinstance(frame, Oversize):
            assert frame.size > cap
        else:
            assert 0 < len(frame) <= cap + 1
            assert b"\n" not in frame


def _bare(frame: bytes | Oversize) -> Any:
    return frame.strip(b" \t\r") if isinstance(frame, bytes) else frame


async def json_rpc(random: Random) -> None:
    """Every frame is some message, and what was read of it can be written."""
    mutator = Mutator(random)
    frame = mutator.bytes(seeds.FRAMES) if random.random() < 0.5 else mutator.text(seeds.MESSAGES)
    if random.random() < 0.01:
        frame = heavy(random, random.choice((MAX_NODES // 2, MAX_NODES, 3 * MAX_NODES)), (5, MAX_DEPTH, 400))
    message = jsonrpc.parse(frame)
    match message:
        case jsonrpc.Request():
            orjson.loads(jsonrpc.encode_result(message.id, message.params))
        case jsonrpc.Notification():
            orjson.loads(jsonrpc.encode_notification(message.method, message.params))
        case jsonrpc.Response():
            orjson.dumps([message.id, message.result])
            if message.error is not None:
                orjson.loads(jsonrpc.encode_error(message.id, message.error))
                assert isinstance(str(message.error), str)
        case jsonrpc.Invalid():
            orjson.loads(jsonrpc.encode_error(message.id, RpcError(-32600, message.reason)))
        case jsonrpc.NonProtocolOutput():
            assert message.line == frame


def heavy(random: Random, nodes: int, depths: tuple[int, ...]) -> bytes:
    """A message of about so many values, nested about so deep: lists, keys, numbers, strings of brackets."""
    kind = random.choice((b"[]", b"{}", b"0", b'"[{,:"', b'{"a":1}', b"[[]]", b"1e5", b'"\\""'))
    depth = random.choice(depths) + random.randint(-3, 3)
    pieces = [kind] * max(1, nodes // random.choice((1, 1, 2, 3)) + random.randint(-3, 3))
    if random.random() < 0.3:
        pieces = [b'"%d":%b' % (number, piece) for number, piece in enumerate(pieces)]
        core = b"{" + b",".join(pieces) + b"}"
    else:
        core = b"[" + b",".join(pieces) + b"]"
    core = b"[" * depth + core + b"]" * (depth if random.random() < 0.9 else depth - 1)
    return b'{"jsonrpc":"2.0","method":"session/update","params":' + core + b"}"


async def weight(random: Random) -> None:
    """What the bytes tell of a message's structure is never less than there is, and at most twice as much."""
    nodes, depth = random.choice((5, 50, 1000)), random.choice((3, 20, MAX_DEPTH))
    if random.random() < 0.5:
        frame = heavy(random, nodes, (1, depth // 2, depth, 2 * depth))
    else:
        frame = Mutator(random).text(seeds.MESSAGES)
    refused = too_heavy(frame, nodes, depth)
    is_large(frame)
    try:
        value = orjson.loads(frame)
    except orjson.JSONDecodeError:
        return
    found, deep = _measured(value)
    if refused is None:
        assert found <= nodes, (found, nodes)
        assert deep <= depth, (deep, depth)
        return
    if found * 2 + 1 <= nodes and deep <= depth:
        # Written again, so that no key is there twice.
        assert too_heavy(orjson.dumps(value), nodes, depth) is None, refused


def _measured(value: Any) -> tuple[int, int]:
    """Values, keys among them, and levels."""
    count = deepest = 0
    left = [(value, 1)]
    while left:
        each, level = left.pop()
        count += 1
        if isinstance(each, dict):
            count += len(each)
            left += [(item, level + 1) for item in each.values()]
        elif isinstance(each, list):
            left += [(item, level + 1) for item in each]
        else:
            level -= 1
        deepest = max(deepest, level)
    return count, deepest


MCP_PATH = Path("mcp.json")
SECRETS = {"TOKEN": "a secret value", "KEY": "$" * 9}


async def mcp_file(random: Random) -> None:
    """A file is refused with a line and its place, or read; then what is written is read again as it was, and
    each entry is a server or has a reason."""
    mutator = Mutator(random)
    data = mutator.text(seeds.MCP_FILES)
    if random.random() < 0.01:
        entries = ",".join(f'"{number}":{{"command":"x"}}' for number in range(random.randint(1000, 30_000)))
        more = random.choice(("", ',"0":1', ',"7":{"command":"y"},"7":1', ',"x":NaN', ',"x":['))
        data = f'{{"mcpServers":{{{entries}{more}}}}}'.encode()
    try:
        document = mcp.parse(data, MCP_PATH)
    except mcp.McpFileError as refused:
        if not re.fullmatch(r"mcp\.json, line \d+, column \d+: .+", str(refused)):
            raise
        return
    assert mcp.parse(mcp.dump(document), MCP_PATH) == document
    file = document.get(mcp.SERVERS) or {}
    own = random.choice(seeds.SETTINGS).get("mcp_config")
    found = configured(file, own.get("mcpServers", {}) if isinstance(own, dict) else {})
    for server in found.servers:
        assert server.transport in ("stdio", "http", "sse")
        entry, _ = resolve(server, SECRETS)
        orjson.dumps(entry)
    for name, reason in found.dropped:
        assert name
        assert reason
    for entry in file.values():
        with contextlib.suppress(MCPServerError):
            settings_entry(entry)
        is_enabled(entry)


async def updates(random: Random) -> None:
    """Whatever an agent tells of a turn, every event that comes of it is one that our own decoder takes."""
    mutator = Mutator(random)
    count = itertools.count()
    core = random.random() < 0.5
    vocabulary = Vocabulary.CORE if core else Vocabulary.EXTENDED
    translator = Translator(core=core, confirming=random.random() < 0.5, mint=lambda: f"id-{next(count)}")
    effects: list[Any] = []
    for _ in range(random.randint(1, MOST_STEPS)):
        # As it would arrive: through the parser, which repairs what is no JSON.
        given = seeds.LONG_UPDATES if random.random() < 0.02 else seeds.UPDATES
        message = jsonrpc.parse(mutator.text([seeds.session_update(update) for update in given]))
        if not isinstance(message, jsonrpc.Notification):
            continue
        _, update = parse_update(message.params)
        effects += translator.update(update)
        if random.random() < 0.2:
            effects += translator.release()
        if random.random() < 0.1:
            with contextlib.suppress(RpcError):
                request = schema.parse_permission(_read(mutator.text([seeds.PERMISSION])))
                asked, told = translator.requested(request.tool_call.raw)
                effects += told + translator.ask(asked)
    effects += translator.end_turn(random.choice(list(Close)), random.choice((None, "a note")))
    for out in effects:
        if isinstance(out, Recorded):
            body = dump_event(out.event, vocabulary)
            decode_event(orjson.loads(body))
            smaller = fitting(body)  # which any event must survive
            assert len(smaller) <= max(len(body), EVENT_BYTES)
            decode_event(orjson.loads(smaller))


async def answers(random: Random) -> None:
    """Answers of an agent to what we ask of it."""
    found = _read(Mutator(random).text([*seeds.RESULTS, seeds.PERMISSION]))
    with contextlib.suppress(UnsupportedProtocolVersion):
        schema.parse_initialize(found)
    session = schema.parse_session(found)
    schema.find_option(session.config_options or (), "model")
    schema.parse_prompt_result(found)
    with contextlib.suppress(RpcError):
        schema.parse_permission(found)


def _read(data: bytes) -> Any:
    message = jsonrpc.parse(b'{"method":"m","params":' + data.replace(b"\n", b" ") + b"}")
    return message.params if isinstance(message, jsonrpc.Notification) else None


async def events(random: Random) -> None:
    """An event is refused with a list of what is wrong, or it is taken, written, read again as written."""
    try:
        given = orjson.loads(Mutator(random).text(seeds.EVENTS))
    except orjson.JSONDecodeError:
        return
    with contextlib.suppress(Invalid):
        decode_message(given)
    try:
        event = decode_event(given)
    except Invalid as refused:
        told = [[*each.loc, each.msg, each.type] for each in refused.errors]
        if not orjson.loads(orjson.dumps(told)):
            raise
        return
    body = dump_event(event)
    assert b"\n" not in body
    # By what is written: values that are nested too deep are cut there.
    assert dump_event(decode_event(orjson.loads(body))) == body
    assert dump_event(decode_event(with_nulls(orjson.loads(body)))) == body


async def settings(random: Random) -> None:
    """A document of settings after any changes can be stored, read again, and shown."""
    mutator = Mutator(random)
    document = first_document(RULES.presets)
    for _ in range(random.randint(1, MOST_STEPS)):
        try:
            body = orjson.loads(mutator.text(seeds.SETTINGS))
        except orjson.JSONDecodeError:
            continue
        try:
            document = apply_change(document, body, RULES)
        except SettingsEmpty:
            continue
        except SettingsError as refused:
            if not refused.errors:
                raise
            continue
        stored = orjson.loads(orjson.dumps(to_stored(document, RULES.presets)))
        assert from_stored(stored, RULES.presets) == document
        orjson.dumps(public(document, Expose.REDACTED))


class _Handler:
    def notification(self, method: str, params: Any) -> None:
        if method == "session/update":
            parse_update(params)

    def flush(self) -> None:
        pass

    async def request(self, method: str, params: Any) -> Any:
        if method != "session/request_permission":
            raise RpcError.method_not_found(method)
        schema.parse_permission(params)
        await trio.lowlevel.checkpoint()
        return {"outcome": {"outcome": "cancelled"}}

    def prepare(self, method: str, params: Any) -> list[Any]:
        return [params]

    def non_protocol_output(self, line: bytes) -> None:
        pass

    def repeated(self, counted: Any) -> None:
        pass

    def oversize(self, frame: Oversize) -> None:
        pass

    async def backpressure(self) -> None:
        await trio.lowlevel.checkpoint()


async def connection(random: Random) -> None:
    """Behind any garbage an answer is still an answer; it may have been given before, never lost."""
    mutator = Mutator(random)
    garbage = b"\n".join(mutator.bytes(seeds.FRAMES) for _ in range(random.randint(1, 10)))
    size = random.choice((1 << 20, 1000, 17))
    if random.random() < 0.01:
        size = 1 << 16  # what a pipe holds; pieces of a few bytes would only take time
        garbage += b"\n" + heavy(random, random.choice((3000, MAX_NODES // 2, 2 * MAX_NODES)), (1, MAX_DEPTH))
    ours, theirs = trio.testing.memory_stream_pair()

    async def agent() -> None:
        asked = orjson.loads(await theirs.receive_some())
        answer = {"jsonrpc": "2.0", "id": asked["id"], "result": {"stopReason": "end_turn"}}
        said = garbage + b"\n" + orjson.dumps(answer) + b"\n"
        # It is hung up on where the garbage was the answer.
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            for start in range(0, len(said), size):
                await theirs.send_all(said[start : start + size])
            while await theirs.receive_some():
                pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(agent)
        async with open_connection(ours, ours, _Handler(), max_frame=random.choice(CAPS[2:])) as opened:
            with contextlib.suppress(RpcError):
                await opened.request("session/prompt", {}, timeout=ANSWER_SECONDS)
            assert opened.reason is None, opened.reason
        await ours.aclose()
        nursery.cancel_scope.cancel()


TARGETS = {
    "framing": framing,
    "json-rpc": json_rpc,
    "connection": connection,
    "updates": updates,
    "answers": answers,
    "weight": weight,
    "mcp-file": mcp_file,
    "events": events,
    "settings": settings,
}
