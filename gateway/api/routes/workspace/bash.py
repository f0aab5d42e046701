"""Commands of clients: start, watch and stop them, for the server and for a conversation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC
from typing import Annotated, Any, Final, Literal

import attrs
import orjson
from quart import Response, request

from gateway.api import schemas
from gateway.api.errors import ApiError
from gateway.api.requests.bodies import ExecuteBashRequest, event_ids, event_ids_schema, json_body
from gateway.api.requests.paths import here, make_working_directories
from gateway.api.requests.reading import (
    AnyUuid,
    Query,
    Whole,
    path_uuid,
    read_body,
    read_query,
)
from gateway.api.requests.timestamps import parse_timestamp
from gateway.api.responses import page_response
from gateway.api.routes.conversations.conversations import UNKNOWN
from gateway.api.routing import Group, find
from gateway.api.services import Services
from supervisor.conversations.state.errors import UnknownConversation
from supervisor.reading.model import said
from supervisor.reading.rules import Form, Limit
from supervisor.workspace.commands.bash import Bash, Command
from supervisor.workspace.commands.log import BashCommand, BashOutput, Scope, Wanted, encode

TAG: Final = "Bash"

LOC: Final = ("body", "cwd")

MAX_PAGE: Final = 100
"""Events of one page, by default and at most: what clients of the wire count on."""


def _utc(text: str) -> str:
    """As `gateway.api.requests.timestamps` reads it, but naive times are in UTC, as these events have it."""
    try:
        return parse_timestamp(text, naive=UTC)
    except ValueError:
        raise ValueError("Input should be a valid datetime") from None


UtcMoment = Annotated[str, Form(_utc, {"format": "date-time"}, "datetime_parsing")]


MAX_BATCH_BYTES: Final = 32 * 1024 * 1024
"""JSON of one answer with events by id: the same one may be asked for a thousand times."""


@attrs.frozen(kw_only=True)
class BashEventsQuery(Query):
    """Which events are meant."""

    kind__eq: Literal["BashCommand", "BashOutput"] | None = None
    command_id__eq: AnyUuid | None = said(
        None, "The output of this command. The command itself is not among it"
    )
    timestamp__gte: UtcMoment | None = said(None, "Naive times are in UTC")
    timestamp__lt: UtcMoment | None = None
    order__gt: Whole | None = said(
        None, "Output with a larger order; commands have none, and are not left out"
    )
    sort_order: Literal["TIMESTAMP", "TIMESTAMP_DESC"] = "TIMESTAMP"
    page_id: str | None = said(None, "next_page_id of the page before")
    limit: Annotated[int, Limit(ge=1, le=MAX_PAGE)] = MAX_PAGE

    def wanted(self) -> Wanted:
        """As the log of events understands it."""
        return Wanted(
            kind=self.kind__eq,
            command_id=None if self.command_id__eq is None else _hex(self.command_id__eq),
            since=self.timestamp__gte,
            before=self.timestamp__lt,
            order_above=self.order__gt,
            newest_first=self.sort_order.endswith("_DESC"),
            page=self.page_id,
            limit=self.limit,
        )


def _hex(dashed: str) -> str:
    return dashed.replace("-", "")


def bash_of(services: Services) -> Bash:
    """The commands of the server. Raises AccessRefused where the operator has switched them off."""
    services.access.require_commands()
    if services.bash is None:
        raise ApiError(503, "This server runs no commands.")
    return services.bash


async def start(services: Services, asked: ExecuteBashRequest) -> Command:
    """Start a command that belongs to no conversation. Raises AccessRefused, TooManyCommands, PathTimeout."""
    bash = bash_of(services)
    cwd = _absolute(asked.cwd) if asked.cwd else None
    # Clients run commands in the working directory of a conversation whose agent has not been started yet.
    if cwd is not None:
        await here(services, cwd)
        await make_working_directories(services, cwd)
    return bash.start(asked.command, cwd=cwd, seconds=asked.timeout)


def _absolute(path: str) -> str:
    """As it is where it is absolute already: clients are shown it again."""
    return path if path.startswith("/") else os.path.abspath(path)  # noqa: PTH100 - reads no disk


EVENT: Final = schemas.ref("BashEvent")
FULL: Final = {429: "Too many commands are running"}
GONE: Final = {404: "No such event, command or conversation"}

_bash: Final = Group(
    TAG,
    {"/api/bash": {}, "/api/conversations/<conversation_id>/bash": UNKNOWN},
    {403: "Commands are switched off (OSTLER_WORKSPACE_ACCESS)"},
)


@_bash(
    "POST /start_bash_command",
    body=ExecuteBashRequest,
    example={"command": "echo hello", "timeout": 10},
    result=schemas.ref(BashCommand.NAME),
    errors=FULL,
)
async def start_command(services: Services, conversation_id: str | None = None) -> bytes:
    """Start a command.

    `/bin/sh -c` runs it, also after the client has left. Its output is read by searching for events with the
    `id` of the answer as `command_id__eq`.
    """
    return encode((await _start(services, conversation_id)).event)


@_bash(
    "POST /execute_bash_command",
    body=ExecuteBashRequest,
    example={"command": "echo hello", "timeout": 10},
    result=schemas.ref(BashOutput.NAME),
    errors=FULL,
)
async def execute(services: Services, conversation_id: str | None = None) -> bytes:
    """Run a command to its end.

    The answer has all of its output and the exit code. It continues if the client disconnects.
    """
    command = await _start(services, conversation_id)
    return await bash_of(services).result(command)


@_bash("GET /bash_events/search", query=BashEventsQuery, result=schemas.ref("BashEventPage"))
async def search(services: Services, conversation_id: str | None = None) -> Response:
    """List events of commands page by page.

    The output of a command comes in parts, numbered by `order` from 0; the last has `exit_code`. Filters
    choose a command, a kind, and what follows a part that you have.
    """
    bash, scope = bash_of(services), await _scope(services, conversation_id)
    query = read_query(BashEventsQuery, request.args)
    wanted = query.wanted()
    items, next_page_id = bash.log.search(scope, wanted)
    if (answered := await _others(services, scope)) is not None:
        from gateway.api.forwarding.fan_out import merged

        pages = [([orjson.loads(item.body) for item in items], next_page_id)]
        pages += [(each["items"], each["next_page_id"]) for each in answered.values()]
        found, next_page_id = merged(pages, wanted.limit, newest_first=wanted.newest_first)
        return page_response(b",".join(map(orjson.dumps, found)), next_page_id)
    return page_response(b",".join([item.body for item in items]), next_page_id)


@_bash(
    "GET /bash_events/",
    body=event_ids_schema,
    example=["01a20170000070008000000000000000"],
    result=schemas.array(schemas.nullable(EVENT)),
    errors={413: "More events than one answer may have"},
)
async def batch(services: Services, conversation_id: str | None = None) -> bytes:
    """Get events of commands by id.

    The body is a list of ids. The answer has the events in their order, and null for each that is unknown.
    """
    bash, scope = bash_of(services), await _scope(services, conversation_id)
    ids = event_ids(await json_body(request), services.config.max_event_ids)
    found = [bash.log.get(scope, event_id) for event_id in ids]
    bodies = [b"null" if item is None else item.body for item in found]
    if None in found and (answered := await _others(services, scope)) is not None:
        for each in answered.values():
            bodies = [
                orjson.dumps(other) if body == b"null" else body
                for body, other in zip(bodies, each, strict=True)
            ]
    if sum(map(len, bodies)) > MAX_BATCH_BYTES:
        raise ApiError(413, f"These events are more than {MAX_BATCH_BYTES} bytes. Ask for fewer.")
    return b"[" + b",".join(bodies) + b"]"


@_bash("GET /bash_events/<event_id>", result=EVENT, errors=GONE)
async def get(services: Services, event_id: str, conversation_id: str | None = None) -> bytes:
    """Get one event of a command.

    It is a `BashCommand`, a part of its output, or an error. The oldest events are dropped at a limit.
    """
    bash, scope = bash_of(services), await _scope(services, conversation_id)
    found = bash.log.get(scope, event_id)
    if found is not None:
        return found.body
    for each in (await _others(services, scope) or {}).values():
        return orjson.dumps(each)
    raise ApiError(404, "Not Found")


@_bash("DELETE /bash_events", result=schemas.ref("ClearedEvents"))
async def clear(services: Services, conversation_id: str | None = None) -> Any:
    """Forget all events of commands.

    Running commands continue. The answer has the number of events.
    """
    bash, scope = bash_of(services), await _scope(services, conversation_id)
    answered = await _others(services, scope) or {}
    return {"cleared_count": bash.log.clear(scope) + sum(each["cleared_count"] for each in answered.values())}


@_bash("POST /bash_commands/<command_id>/stop", errors=GONE)
async def stop(services: Services, command_id: str, conversation_id: str | None = None) -> None:
    """End a command.

    It ends with all that it has started. One that has ended already is fine.
    """
    bash, scope = bash_of(services), await _scope(services, conversation_id)
    if await bash.stop(_hex(path_uuid(command_id, "command_id")), scope):
        return
    if not await _others(services, scope):
        raise ApiError(404, "Not Found")


GROUPS: Final = (_bash,)


async def _scope(services: Services, conversation_id: str | None) -> Scope:
    """Raises InvalidRequest (no UUID) or UnknownConversation."""
    if conversation_id is None:
        return None
    await find(services, conversation_id)
    return path_uuid(conversation_id, "conversation_id")


async def _others(services: Services, scope: Scope) -> Mapping[str, Any] | None:
    """What other servers answer to the request, by their names, where they may have events of commands, too:
    those of a conversation are on its server. None where no other is asked."""
    if scope is not None or services.machines is None:
        return None
    from gateway.api.forwarding.fan_out import ask_others
    from gateway.api.forwarding.requests import from_server

    return None if from_server(request) else (await ask_others(services)).answers


async def _start(services: Services, conversation_id: str | None) -> Command:
    bash = bash_of(services)
    if conversation_id is None:
        return await start(services, read_body(ExecuteBashRequest, await json_body(request)))
    conversation = await find(services, conversation_id)
    asked = read_body(ExecuteBashRequest, await json_body(request))
    directory = (await conversation.durable_info())["workspace"]["working_dir"]
    await make_working_directories(services, directory, own=directory)
    if asked.cwd:
        await services.access.admit(asked.cwd, within=directory, loc=LOC)
    scope = path_uuid(conversation_id, "conversation_id")
    if conversation.log.deleted:
        # Meanwhile; from here to the start nothing else runs, and a deletion ends what it finds.
        raise UnknownConversation(f"Conversation not found: {scope}")
    return bash.start(asked.command, cwd=asked.cwd or directory, seconds=asked.timeout, scope=scope)
