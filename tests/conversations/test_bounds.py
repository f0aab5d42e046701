"""Whatever an agent makes enormous: every event is one that a client can receive, and nothing of it stays."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

import attrs
import orjson
import pytest
import trio

from supervisor.acp import AGENT_METHODS, CLIENT_METHODS, Jail, RpcError, Services, jsonrpc, schema
from supervisor.acp.schema.updates import _READERS
from supervisor.conversations.recording.bounds.attachments import BLOB_BYTES
from supervisor.conversations.recording.bounds.truncation import EVENT_BYTES
from supervisor.conversations.recording.tool_calls.payloads import OPEN_CALLS_BYTES
from supervisor.events import decode_event
from tests.conversations import agent_messages as messages
from tests.conversations.world import World, deep_size
from tests.support.thorough import THOROUGH, everyday

STRING_CHARS: Final = everyday(4_500_000, 20_000_000)
ITEMS: Final = everyday(80_000, 200_000)


@attrs.frozen
class Large:
    """What takes the place of fields. A process makes it once: `large`."""

    string: str = attrs.field(factory=lambda: "x" * STRING_CHARS)
    keys: dict[str, str] = attrs.field(factory=lambda: {f"key{n}": "v" * 40 for n in range(ITEMS)})
    words: list[str] = attrs.field(factory=lambda: ["word"] * ITEMS)

    @cached_property
    def sizes(self) -> dict[int, int]:
        """By identity, so that nobody looks into them again."""
        return {id(each): deep_size(each) for each in (self.keys, self.words)}


@cache
def large() -> Large:
    return Large()


FRAME_BYTES: Final = 4 * 1024 * 1024
"""What clients of the wire take as one frame."""
RESOURCE_BYTES: Final = 512 * 1024
"""A conversation in a page of a hundred."""
OPEN_BYTES: Final = OPEN_CALLS_BYTES + 2 * STRING_CHARS
"""Kept while a turn goes on: what open calls may have, and the update that came last."""
LEFT_BYTES: Final = 128 * 1024
"""The input of each of many calls."""
SETTLED_BYTES: Final = 2 * 1024 * 1024
"""Kept when a turn is over: the answers of a start, and what is remembered."""
ANSWER_BYTES: Final = 64 * 1024
"""An answer of ours to an agent's request that could not be served."""

Path_ = tuple[str | int, ...]


# -- the messages, and the fields in them -------------------------------------------------------------------


def fields(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """The places of everything in a message, containers and leaves."""
    members = (
        enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    )
    for key, item in members:
        yield (*path, key)
        yield from fields(item, (*path, key))


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    return value.items() if isinstance(value, dict) else ()


def at(value: Any, path: Path_) -> Any:
    for step in path:
        value = value[step]
    return value


MONSTERS: Final = everyday(("string", "keys"), ("string", "words", "keys", "items", "members", "name"))
"""A long string, a long list, a large object in place of a field; many of what is in a list; an object with
many more members, or with one of a long name."""


def enormous(message: Any, ways: Sequence[str] = MONSTERS) -> Iterator[tuple[Path_, str, Any]]:
    """The message with each of its fields enormous in its turn, in each of these ways."""
    for path in fields(message):
        found = at(message, path)
        monsters: dict[str, Any] = {"string": large().string, "words": large().words, "keys": large().keys}
        if isinstance(found, list) and found:
            monsters["items"] = [found[0]] * ITEMS
        if isinstance(found, dict):
            monsters["members"] = {**found, **large().keys}
            monsters["name"] = {**found, large().string: "v"}
        for name, monster in monsters.items():
            if name not in ways:
                continue
            changed = copy.deepcopy(message)
            at(changed, path[:-1])[path[-1]] = monster
            yield path, name, changed


def check(world: World, what: Any) -> None:
    """What holds after any message, in the turn and after it."""
    assert world.retained(large().sizes) <= OPEN_BYTES, what
    world.end()
    for row in world.log.rows:
        assert len(row.body) <= EVENT_BYTES, (what, row.kind, len(row.body))
        decode_event(orjson.loads(row.body))
    for frame in world.log.frames:
        assert len(frame.legacy or b"") <= FRAME_BYTES, what
        assert len(frame.session or b"") <= FRAME_BYTES, what
    for blob in world.log.blobs:
        assert len(blob.data) <= BLOB_BYTES, what
    assert world.resource() <= RESOURCE_BYTES, what
    assert len(world.record.dump()) <= RESOURCE_BYTES, what
    assert world.retained(large().sizes) <= SETTLED_BYTES, what
    pair_up(world)


def pair_up(world: World) -> None:
    """However much was cut of it, every tool call that began has ended."""
    found = [orjson.loads(row.body) for row in world.log.rows]
    begun = [e["tool_call_id"] for e in found if e["kind"] == "ActionEvent"]
    ended = [
        e["tool_call_id"]
        for e in found
        if e["kind"] in ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation")
    ]
    assert sorted(begun) == sorted(ended)
    calls = Counter(e["tool_call_id"] for e in found if e["kind"] == "ACPToolCallEvent")
    assert set(calls.values()) <= {2}


def worlds() -> Iterator[World]:
    yield World(core=False, confirming=False)
    yield World(core=True, confirming=True)


UPDATES = [
    pytest.param(message, id=f"{kind}-{number}")
    for kind, samples in messages.UPDATES.items()
    for number, message in enumerate(samples)
]


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
@pytest.mark.parametrize("monster", MONSTERS)
@pytest.mark.parametrize("message", UPDATES)
def test_no_field_of_an_update_is_too_much(message: dict[str, Any], monster: str) -> None:
    for number, (path, _, changed) in enumerate(enormous(message, [monster])):
        # Both vocabularies for what comes first to mind; else by turns, since it takes its time.
        both = THOROUGH and monster in ("string", "keys")
        for world in worlds() if both else [list(worlds())[number % 2]]:
            world.update(changed)
            check(world, (path, monster))


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
def test_calls_that_begin_and_are_never_mentioned_again_are_bounded_together() -> None:
    for world in worlds():
        for number in range(2 * OPEN_CALLS_BYTES // LEFT_BYTES):
            call = {"sessionUpdate": "tool_call", "toolCallId": f"left-{number}", "title": "left"}
            raw_input = {"text": f"{number:08}" + "x" * LEFT_BYTES}
            world.update(
                {"sessionId": "s", "update": call | {"status": "in_progress", "rawInput": raw_input}}
            )
        assert world.retained({}) <= OPEN_BYTES
        check(world, "left")


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
@pytest.mark.parametrize("monster", MONSTERS)
@pytest.mark.parametrize("message", messages.PERMISSIONS)
def test_no_field_of_a_permission_request_is_too_much(message: dict[str, Any], monster: str) -> None:
    for number, (path, _, changed) in enumerate(enormous(message, [monster])):
        for world in [list(worlds())[number % 2]]:
            try:
                world.permission(changed)
            except RpcError as refused:
                answer = jsonrpc.encode_error(1, refused)
            else:
                answer = b""
            assert len(answer) <= ANSWER_BYTES, (path, monster)
            check(world, (path, monster))


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
@pytest.mark.parametrize("method", messages.REQUESTS)
async def test_no_field_of_a_request_is_too_much(method: str, tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        services = Services(Jail(tmp_path), nursery)
        for message in messages.REQUESTS[method]:
            for path, monster, changed in enormous(message):
                try:
                    answer = jsonrpc.encode_result(1, await services.handle(method, changed))
                except RpcError as refused:
                    answer = jsonrpc.encode_error(1, refused)
                assert len(answer) <= ANSWER_BYTES, (path, monster)
        await services.close()


STARTS = sorted(set(messages.RESPONSES) - {"session/prompt"})


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
@pytest.mark.parametrize("method", STARTS)
async def test_no_field_of_an_answer_is_too_much(method: str) -> None:
    for message in messages.RESPONSES[method]:
        for number, (path, monster, changed) in enumerate(enormous(message)):
            answers = {name: samples[0] for name, samples in messages.RESPONSES.items()} | {method: changed}
            if method == "session/load":
                answers["session/resume"] = RpcError(-32603, "cannot")
            if method == "authenticate":
                answers["session/new"] = [RpcError(-32000, "log in"), messages.SESSION]
            prior = "session-1" if method in ("session/load", "session/resume") else None
            for world in worlds() if THOROUGH else [list(worlds())[number // len(MONSTERS) % 2]]:
                await world.start(answers, prior)
                check(world, (path, monster))


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
@pytest.mark.parametrize("message", messages.RESPONSES["session/prompt"])
def test_no_field_of_the_end_of_a_turn_is_too_much(message: dict[str, Any]) -> None:
    for path, monster, changed in enormous(message):
        for world in worlds():
            world.answered(changed)
            check(world, (path, monster))


def error_of(given: dict[str, Any]) -> RpcError:
    return jsonrpc._error(given)


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
@pytest.mark.parametrize("code", messages.ERROR_CODES)
@pytest.mark.parametrize("method", messages.RESPONSES)
async def test_no_field_of_an_error_is_too_much(method: str, code: int) -> None:
    for path, monster, changed in enormous({**messages.ERROR, "code": code}):
        error = error_of(changed)
        world = World(core=False, confirming=False)
        if method == "session/prompt":
            world.failed(error)
        else:
            answers = {name: samples[0] for name, samples in messages.RESPONSES.items()} | {method: error}
            await world.start(answers, "session-1")
        check(world, (path, monster))


# -- that none is forgotten ---------------------------------------------------------------------------------


class Spy(dict[str, Any]):
    """An object of a message that notes what is read of it and is not there."""

    missed: set[tuple[Path_, str]] = set()  # noqa: RUF012 - one for all
    path: Path_ = ()

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self:
            Spy.missed.add((self.path, key))
        return super().get(key, default)


def spied(value: Any, path: Path_ = ()) -> Any:
    if isinstance(value, dict):
        spy = Spy({key: spied(item, (*path, key)) for key, item in value.items()})
        spy.path = path
        return spy
    if isinstance(value, list):
        return [spied(item, (*path, index)) for index, item in enumerate(value)]
    return value


def unnamed(path: Path_) -> Path_:
    """A place without the numbers in it."""
    return tuple(step for step in path if isinstance(step, str))


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
def test_the_table_has_every_kind_of_message() -> None:
    assert set(messages.UPDATES) == {*_READERS, *messages.KEPT_AS_THEY_CAME, "nobody_knows"}
    known = {"session/update", "session/request_permission", *messages.REQUESTS, *messages.NOT_OFFERED}
    assert known == AGENT_METHODS
    assert CLIENT_METHODS.keys() - AGENT_METHODS == set(messages.RESPONSES) | messages.NEVER_ASKED


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
async def test_the_table_has_every_field_that_is_read() -> None:
    """What is read of one kind of message is in one of the samples of that kind."""
    forgotten: set[Any] = set()

    def note(kind: str, samples: list[Any]) -> None:
        known = {unnamed(path) for sample in samples for path in fields(sample)}
        forgotten.update(
            (kind, *unnamed(path), key) for path, key in Spy.missed if (*unnamed(path), key) not in known
        )
        Spy.missed.clear()

    Spy.missed.clear()
    for kind, samples in messages.UPDATES.items():
        for sample in samples:
            for world in worlds():
                world.update(spied(sample))
                world.end()
        note(kind, samples)
    for sample in messages.PERMISSIONS:
        for world in worlds():
            world.permission(spied(sample))
            world.end()
    note("permission", messages.PERMISSIONS)
    for method in STARTS:
        for sample in messages.RESPONSES[method]:
            answers = {name: samples[0] for name, samples in messages.RESPONSES.items()}
            await World(core=False, confirming=False).start(answers | {method: spied(sample)}, None)
        note(method, messages.RESPONSES[method])
    for sample in messages.RESPONSES["session/prompt"]:
        World(core=False, confirming=False).answered(spied(sample))
    note("session/prompt", messages.RESPONSES["session/prompt"])
    assert forgotten == set()


@pytest.mark.guarantee(name="whatever-an-agent-says-is-bounded")
def test_the_samples_fill_in_every_field_of_every_type() -> None:
    """Each field of each type that a message is read into has a value in one of the samples."""
    filled: set[tuple[type, str]] = set()
    types: set[type] = set()

    def look(value: Any) -> None:
        if attrs.has(type(value)):
            types.add(type(value))
            for field in attrs.fields(type(value)):
                found = getattr(value, field.name)
                if found is not None and found != ():
                    filled.add((type(value), field.name))
                look(found)
            for cls in type(value).__mro__:  # what is read when somebody asks for it
                for name, member in vars(cls).items():
                    if isinstance(member, property):
                        look(getattr(value, name))
        elif isinstance(value, tuple):
            for item in value:
                look(item)

    for samples in messages.UPDATES.values():
        for sample in samples:
            look(schema.parse_update(sample)[1])
    for sample in messages.PERMISSIONS:
        look(schema.parse_permission(sample))
    look(schema.parse_initialize(messages.INITIALIZE))
    for sample in (messages.SESSION, messages.OLDER_SESSION):
        look(schema.parse_session(sample))
    for sample in messages.RESPONSES["session/prompt"]:
        look(schema.parse_prompt_result(sample))
    named = [getattr(schema, name) for name in schema.__all__]
    known = {cls for cls in named if isinstance(cls, type) and attrs.has(cls)}
    bases = {schema.ContentChunk, schema.ToolCallFields, schema.Members}
    assert types >= known - bases
    missing = {
        (cls.__name__, field.name)
        for cls in types
        for field in attrs.fields(cls)
        if (cls, field.name) not in filled and field.name != "lost"
    }
    assert missing == set()
