"""What is attacked through a real server: requests, sockets, and an agent that speaks garbage."""

from __future__ import annotations

import base64
import json
import re
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import attrs
import trio

from supervisor.events import decode_event
from tests.attack import seeds
from tests.attack.known import LOGGED
from tests.attack.mutate import Mutator
from tests.attack.plain_http import PlainHttp, exchange
from tests.support.impolite import SENT, visit_with, ways
from tests.support.processes import half_closed
from tests.support.scripted import scripted_command
from tests.support.server import ServerProcess, running_server
from tests.support.sockets import Collector, collect, events_socket, session_socket

SERVER_ERROR = re.compile(rb"^HTTP/1\.1 5\d\d")
NOT_ANSWERED = 501  # what the HTTP server itself does not do, such as unknown transfer encodings
OTHER_VERSION = 505  # and in which versions it does not do it
OTHER_VERSIONS = re.compile(rb" HTTP/(?!1\.[01])[0-9]\.[0-9]\r?\n")
REFUSAL_BYTES = 256 * 1024  # of a refusal, whatever was sent
FORGOTTEN_S = 10.0  # connections whose clients have gone are closed
LINES_OF_AN_AGENT = 100  # of one turn
SPACE = " "
EXCEPTION = re.compile(r"^[\s|]*((?:\w+\.)*\w+(?:Error|Exception))(?:: .*)?$", re.MULTILINE)
CONTEXT = 2000  # characters of the log shown before one


@attrs.define
class Site:
    """A running server, and what is attacked in it."""

    server: ServerProcess
    http: PlainHttp
    plain: str  # a conversation that nobody talks in
    garbage: str  # one whose agent speaks garbage
    sockets: dict[str, Collector]
    marks: int = 0

    @property
    def address(self) -> tuple[str, int]:
        return self.http.host, self.http.port


@asynccontextmanager
async def open_site(directory: Path) -> AsyncIterator[Site]:
    """A server below `directory` for the block, with conversations to attack.

    Leaving the block stops it and checks that the journal can be read and that the log tells of no failure.
    """
    directory.mkdir(parents=True, exist_ok=True)
    async with running_server(directory) as server:
        agent = {"acp_server": "custom", "acp_command": scripted_command()}
        ids = [(await server.rest.create(directory / "workspace", agent))["id"] for _ in range(3)]
        await server.rest.turn(ids[0], "Hello")
        address = urlsplit(server.url)
        assert address.hostname is not None
        assert address.port is not None
        http = PlainHttp(address.hostname, address.port)
        async with (
            collect(events_socket(server.url, ids[2], "")) as events,
            collect(session_socket(server.url, ids[2], None)) as session,
        ):
            yield Site(server, http, ids[0], ids[1], {"events": events, "session": session})
            for collector in (events, session):
                assert collector.closed is None, collector.closed
        await http.aclose()
        await _check_connections(http.port)
        for conversation in ids:
            await server.rest.events(conversation)
        assert await server.stop() == 0
        _check_log(server)
        check_journal(server.state)


async def _check_connections(port: int) -> None:
    """The server holds no connection that its client has closed."""
    until = time.monotonic() + FORGOTTEN_S
    while held := half_closed(port):
        assert time.monotonic() < until, f"the server holds {len(held)} connections whose clients have gone"
        await trio.sleep(0.05)


def _check_log(server: ServerProcess) -> None:
    """No exception in the log but those that are known."""
    text = server.output.read_text(errors="replace")
    for found in EXCEPTION.finditer(text):
        if not any(known.search(found[0]) for known in LOGGED):
            raise AssertionError(text[max(0, found.start() - CONTEXT) : found.end()])


def check_journal(state: Path) -> int:
    """Every stored event is one that our own decoder takes; how many there are."""
    database = sqlite3.connect(state / "journal.sqlite3")
    try:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        bodies = database.execute("SELECT body FROM events").fetchall()
    finally:
        database.close()
    for (body,) in bodies:
        decode_event(json.loads(body))
    return len(bodies)


async def _ask(site: Site, method: str, target: bytes, body: bytes | None = None) -> None:
    status, answer = await site.http.ask(method, target, body)
    assert status < 500, (status, answer[:500])
    assert status < 400 or len(answer) <= REFUSAL_BYTES, (len(answer), answer[:500])
    if answer:
        json.loads(answer)


async def patch_settings(site: Site, random: Random) -> None:
    await _ask(site, "PATCH", b"/api/settings", Mutator(random).text(seeds.SETTINGS))
    if random.random() < 0.02:
        await _ask(site, "GET", b"/api/settings")


async def patch_conversation(site: Site, random: Random) -> None:
    long = random.random() < 0.02
    body = Mutator(random).text(seeds.LONG_CHANGES if long else seeds.CONVERSATION_CHANGES)
    await _ask(site, "PATCH", b"/api/conversations/" + site.plain.encode(), body)


QUERIED = (
    "/api/conversations/{}/events/search",
    "/api/conversations/{}/events/count",
    "/api/conversations/search",
    "/api/conversations/count",
    "/api/conversations",
    "/api/settings/secrets",
)
IN_A_LINE = re.compile(rb"[\x00-\x20\x7f-\xff#]")


async def query(site: Site, random: Random) -> None:
    """A query of any characters, those that no request line holds in percents."""
    path = random.choice(QUERIED).format(site.plain).encode()
    given = Mutator(random).bytes(seeds.QUERIES)
    given = IN_A_LINE.sub(lambda match: b"%%%02x" % match[0][0], given)
    await _ask(site, "GET", path + b"?" + given)


async def http_bytes(site: Site, random: Random) -> None:
    """Bytes that were a request. The server answers or hangs up, and soon."""
    data = Mutator(random).bytes(seeds.HTTP_REQUESTS)
    answer = await exchange(*site.address, data)
    if SERVER_ERROR.match(answer):
        status = int(answer[9:12])
        other = OTHER_VERSIONS.search(data) is not None
        assert status == NOT_ANSWERED or (status == OTHER_VERSION and other), (data, answer[:500])


async def impolite(site: Site, random: Random) -> None:
    """A client who goes without manners, also with words that are none. Others are still served."""
    sent, leaving = random.choice(list(ways()))
    data = SENT[sent] if random.random() < 0.5 else Mutator(random).bytes([SENT[sent], *seeds.HTTP_REQUESTS])
    await visit_with(partial(trio.open_tcp_stream, *site.address), data, leaving)
    if random.random() < 0.1:
        await _ask(site, "GET", b"/alive")


async def said(site: Site, random: Random) -> None:
    """What a person says to Ostler itself, or almost."""
    text = Mutator(random).bytes(seeds.SAID).decode(errors="replace").replace("!", "")
    await site.server.rest.turn(site.plain, text or " ", wanted=("finished", "error"))


async def _frame(site: Site, random: Random, kind: str) -> None:
    """A frame, and one whose complaint is known: behind it the first one has been dealt with."""
    collector = site.sockets[kind]
    data = Mutator(random).text(seeds.SENT_MESSAGES)
    frame: str | bytes = data
    if random.random() < 0.8:
        frame = data.decode(errors="replace")
    before = len(collector.frames)
    await collector.socket.send_message(frame)
    site.marks = site.marks % 1000 + 1
    await collector.socket.send_message(SPACE * site.marks + "!")
    column = f"column {site.marks + 1} "
    await collector.wait_for(lambda each: column in str(each.get("detail")), start=before)
    if len(collector.frames) > 5000:
        collector.frames.clear()


async def events_frames(site: Site, random: Random) -> None:
    await _frame(site, random, "events")


async def session_frames(site: Site, random: Random) -> None:
    await _frame(site, random, "session")


async def agent_lines(site: Site, random: Random) -> None:
    """A turn in which the agent says LINES_OF_AN_AGENT wrong things; the turn and its history survive."""
    mutator = Mutator(random)
    lines = []
    for _ in range(LINES_OF_AN_AGENT):
        data = mutator.bytes(seeds.FRAMES) if random.random() < 0.5 else mutator.text(seeds.MESSAGES)
        if random.random() < 0.005:
            data = mutator.text([seeds.session_update(update) for update in seeds.LONG_UPDATES])
        # Of the agent's own session, or nobody would listen.
        data = re.sub(rb'"sessionId": ?"s"', b'"sessionId":"SESSION"', data)
        # An answer to the prompt ends the turn, which is the agent's right.
        data = data.replace(b'"id"', b'"no"') if random.random() < 0.9 else data
        lines.append("!bytes " + base64.b64encode(data).decode())
    rest = site.server.rest
    settled = ("finished", "error", "paused")
    await rest.turn(site.garbage, "\n".join(lines), wanted=settled)


Attack = Callable[[Site, Random], Awaitable[None]]

TARGETS: dict[str, Attack] = {
    "patch-settings": patch_settings,
    "patch-conversation": patch_conversation,
    "query": query,
    "http-bytes": http_bytes,
    "events-socket": events_frames,
    "session-socket": session_frames,
    "impolite": impolite,
    "said": said,
    "agent": agent_lines,
}

INPUTS_OF_A_CASE: dict[str, int] = {"agent": LINES_OF_AN_AGENT}
