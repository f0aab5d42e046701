"""What no one server has: all are asked, and their answers are joined."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
import orjson
import structlog
import trio
from quart import Response, request

from gateway.api.forwarding.headers import to_owner
from gateway.api.forwarding.owners import ALIVE, CONNECT_SECONDS, Owners
from gateway.api.forwarding.requests import from_server
from gateway.api.requests.unhidden import WARNING_HEADER
from gateway.api.responses import json_response
from gateway.http.application import Body
from supervisor.machines.errors import OwnedElsewhere, Place

if TYPE_CHECKING:
    from gateway.api.services import Services
    from supervisor.machines.membership import ServerView

log = structlog.get_logger(__name__)

ASK_SECONDS: Final = 5.0
"""Seconds that each server has to answer. What one that is slower has is left out."""

AT_ONCE: Final = 16
"""Servers that are asked at the same time for one request."""

ANSWER_BYTES: Final = 32 * 1024 * 1024
"""The largest answer that is taken: four pages of events of commands."""

JSON: Final = (b"content-type", b"application/json")


@attrs.frozen
class Answered:
    """What the others answered: the JSON of those that had it, by the name of the server, and the names of
    those that did not answer."""

    answers: Mapping[str, Any]
    silent: Sequence[str]


async def others(services: Services) -> list[ServerView]:
    """The other servers that are alive."""
    assert services.machines is not None
    return [each for each in await services.machines.servers() if each.state in ALIVE and not each.this]


async def ask_others(services: Services) -> Answered:
    """Ask the other servers what the client asks this one. A status other than 200 is no answer, and no
    silence."""
    scope = request.scope
    query = scope["query_string"]
    target = scope["raw_path"] + (b"?" + query if query else b"")
    headers = to_owner(scope["headers"], services.owners.key, str(request.remote_addr or ""))
    body = cast(Body, request.body).data
    answers: dict[str, Any] = {}
    silent: list[str] = []
    limit = trio.CapacityLimiter(AT_ONCE)

    async def ask(each: ServerView) -> None:
        async with limit:
            try:
                found = await _ask(services.owners, place(each), request.method, target, headers, body)
            except Exception as error:  # noqa: BLE001 - one server's trouble is not the others'
                log.info("server did not answer", server=each.name, reason=str(error))
                silent.append(each.name)
                return
        if found is not None:
            answers[each.name] = found

    try:
        asked = await others(services)
    except Exception as error:  # noqa: BLE001 - the database is away: what this server has is still an answer
        log.warning("other servers not asked", reason=str(error))
        return Answered({}, ("all others",))
    async with trio.open_nursery() as nursery:
        for each in asked:
            nursery.start_soon(ask, each)
    return Answered(answers, silent)


async def agents_of_all(services: Services, own: Mapping[str, list[dict[str, Any]]]) -> Response:
    """The agents and warm processes of this server, and those of the others, each with its `server`."""
    assert services.machines is not None
    for rows in own.values():
        for row in rows:
            row["server"] = services.machines.name
    if from_server(request):
        return json_response(own)
    answered = await ask_others(services)
    joined = {
        name: [*rows, *(row for each in answered.answers.values() for row in each[name])]
        for name, rows in own.items()
    }
    answer = json_response(joined)
    if answered.silent:
        answer.headers[WARNING_HEADER] = f"these servers did not answer: {', '.join(sorted(answered.silent))}"
    return answer


async def start_command(
    services: Services, error: Exception, asked: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Start a command of a socket, which failed here with this error, on the server that has its directory.
    Returns why not, as code and detail. Raises the error where it is any other."""
    if not isinstance(error, OwnedElsewhere):
        raise error
    path = b"/api/bash/start_bash_command"
    headers = to_owner([JSON, (b"host", b"ostler")], services.owners.key, "")
    name = error.place.name
    try:
        started = await _ask(services.owners, error.place, "POST", path, headers, orjson.dumps(asked))
    except Exception as problem:  # noqa: BLE001 - the client learns of it, and its socket stays
        log.info("server did not answer", server=name, reason=str(problem))
        return "Unreached", f"The server {name}, which has the directory, does not answer. Try again later."
    return None if started is not None else ("Refused", f"The server {name} refused the command.")


async def _ask(
    owners: Owners, where: Place, method: str, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes
) -> Any:
    """The JSON of an answer; None for one with another status than 200."""
    import httpx2

    transport = await owners.transport(where.address)
    with trio.fail_after(ASK_SECONDS):
        answer = await transport.handle_async_request(
            httpx2.Request(
                method,
                where.address,
                headers=[*headers, *([(b"content-length", b"%d" % len(body))] if body else ())],
                content=body or None,
                extensions={"target": target, "timeout": {"connect": CONNECT_SECONDS}},
            )
        )
        try:
            data = bytearray()
            async for piece in answer.stream:  # type: ignore[union-attr]
                data += piece
                if len(data) > ANSWER_BYTES:
                    raise ValueError(f"its answer has more than {ANSWER_BYTES} bytes")
        finally:
            await answer.aclose()
    if answer.status_code != 200:
        return None
    return orjson.loads(data)


def place(server: ServerView) -> Place:
    """Where it is."""
    return Place(server=server.server, name=server.name, address=server.address, state=server.state)


Page = tuple[Sequence[Mapping[str, Any]], str | None]
"""Events of commands, and the position of the first one that follows."""


def merged(pages: Sequence[Page], limit: int, *, newest_first: bool) -> Page:
    """One page of several servers' pages, which all begin at one position. Pure.

    Positions begin with a time, so one of one server is a position of each. No event is taken that comes
    after what a server has not shown yet.
    """
    ends = [following for _, following in pages if following is not None]
    end = (max if newest_first else min)(ends, default=None)
    items = sorted((each for found, _ in pages for each in found), key=_position, reverse=newest_first)
    if end is not None:
        items = [each for each in items if (_position(each) > end if newest_first else _position(each) < end)]
    if len(items) > limit:
        end = _position(items[limit])
    return items[:limit], end


def _position(event: Mapping[str, Any]) -> str:
    """Of an event, as `supervisor.workspace.commands.log` writes it."""
    return f"{re.sub('[^0-9]', '', event['timestamp'])}_{event['id']}"
