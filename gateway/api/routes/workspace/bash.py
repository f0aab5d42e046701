"""Commands of clients: start, watch and stop them, for the server and for a conversation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC
from functools import partial
from typing import Annotated, Any, Final, Literal

import attrs
from quart import Response, request

from gateway.api import schemas
from gateway.api.errors import ApiError
from gateway.api.requests.bodies import ExecuteBashRequest, event_ids, json_body
from gateway.api.requests.reading import (
    PAGE_LIMIT,
    AnyUuid,
    PageLimit,
    Query,
    Whole,
    page_limit,
    path_uuid,
    read_body,
    read_query,
)
from gateway.api.requests.timestamps import parse_timestamp
from gateway.api.responses import json_response, page_response, raw_json_response, success
from gateway.api.routes.conversations.conversations import UNKNOWN
from gateway.api.routing import Handler, Route, find, params_of
from gateway.api.services import Services
from supervisor.conversations.state.errors import UnknownConversation
from supervisor.reading.model import described
from supervisor.reading.rules import Form
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
    command_id__eq: AnyUuid | None = attrs.field(
        default=None, metadata=described("The output of this command. The command itself is not among it")
    )
    timestamp__gte: UtcMoment | None = attrs.field(default=None, metadata=described("Naive times are in UTC"))
    timestamp__lt: UtcMoment | None = None
    order__gt: Whole | None = attrs.field(
        default=None,
        metadata=described("Output with a larger order; commands have none, and are not left out"),
    )
    sort_order: Literal["TIMESTAMP", "TIMESTAMP_DESC"] = "TIMESTAMP"
    page_id: str | None = attrs.field(default=None, metadata=described("next_page_id of the page before"))
    limit: PageLimit | None = None

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
            limit=self.limit or MAX_PAGE,
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
        missing = not await services.access.in_thread(partial(os.path.lexists, cwd), "to look at a directory")
        if missing and _plain(cwd) in await services.known():
            await _make(services, cwd)
    return bash.start(asked.command, cwd=cwd, seconds=asked.timeout)


def _absolute(path: str) -> str:
    """As it is where it is absolute already: clients are shown it again."""
    return path if path.startswith("/") else os.path.abspath(path)  # noqa: PTH100 - reads no disk


def _plain(path: str) -> str:
    return os.path.normpath(path)


async def _make(services: Services, directory: str) -> None:
    try:
        await services.access.in_thread(
            partial(os.makedirs, directory, exist_ok=True), "to make a working directory"
        )
    except OSError:
        return  # the command says what is wrong with it


@attrs.frozen
class BashRoutes:
    """Handlers of `/api/bash` and `/api/conversations/<id>/bash`."""

    services: Services

    async def start(self, conversation_id: str | None = None) -> Response:
        """Start a command; its output is read by searching for events."""
        return raw_json_response(encode((await self._start(conversation_id)).event))

    async def execute(self, conversation_id: str | None = None) -> Response:
        """Run a command to its end. It continues if the client disconnects."""
        command = await self._start(conversation_id)
        return raw_json_response(await self._bash().result(command))

    async def search(self, conversation_id: str | None = None) -> Response:
        """A page of events."""
        bash, scope = self._bash(), await self._scope(conversation_id)
        query = read_query(BashEventsQuery, request.args, page_limit(MAX_PAGE))
        items, next_page_id = bash.log.search(scope, query.wanted())
        return page_response(b",".join([item.body for item in items]), next_page_id)

    async def get(self, event_id: str, conversation_id: str | None = None) -> Response:
        """One event."""
        bash, scope = self._bash(), await self._scope(conversation_id)
        found = bash.log.get(scope, event_id)
        if found is None:
            raise ApiError(404, "Not Found")
        return raw_json_response(found.body)

    async def batch(self, conversation_id: str | None = None) -> Response:
        """The events of the ids in the body, in that order, null for unknown ones."""
        bash, scope = self._bash(), await self._scope(conversation_id)
        ids = event_ids(await json_body(request), self.services.config.max_event_ids)
        found = [bash.log.get(scope, event_id) for event_id in ids]
        bodies = [b"null" if item is None else item.body for item in found]
        if sum(map(len, bodies)) > MAX_BATCH_BYTES:
            raise ApiError(413, f"These events are more than {MAX_BATCH_BYTES} bytes. Ask for fewer.")
        return raw_json_response(b"[" + b",".join(bodies) + b"]")

    async def clear(self, conversation_id: str | None = None) -> Response:
        """Delete all events; running commands continue."""
        bash, scope = self._bash(), await self._scope(conversation_id)
        return json_response({"cleared_count": bash.log.clear(scope)})

    async def stop(self, command_id: str, conversation_id: str | None = None) -> Response:
        """End a command with all that it has started. One that has ended already is fine."""
        bash, scope = self._bash(), await self._scope(conversation_id)
        if not await bash.stop(_hex(path_uuid(command_id, "command_id")), scope):
            raise ApiError(404, "Not Found")
        return success()

    def _bash(self) -> Bash:
        return bash_of(self.services)

    async def _scope(self, conversation_id: str | None) -> Scope:
        """Raises Invalid (no UUID) or UnknownConversation."""
        if conversation_id is None:
            return None
        await find(self.services, conversation_id)
        return path_uuid(conversation_id, "conversation_id")

    async def _start(self, conversation_id: str | None) -> Command:
        bash = self._bash()
        if conversation_id is None:
            return await start(self.services, read_body(ExecuteBashRequest, await json_body(request)))
        conversation = await find(self.services, conversation_id)
        asked = read_body(ExecuteBashRequest, await json_body(request))
        directory = (await conversation.durable_info())["workspace"]["working_dir"]
        await _make(self.services, directory)
        if asked.cwd:
            await self.services.access.admit(asked.cwd, within=directory, loc=LOC)
        scope = path_uuid(conversation_id, "conversation_id")
        if conversation.log.deleted:
            # Meanwhile; from here to the start nothing else runs, and a deletion ends what it finds.
            raise UnknownConversation(f"Conversation not found: {scope}")
        return bash.start(asked.command, cwd=asked.cwd or directory, seconds=asked.timeout, scope=scope)

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        return (*self._below("/api", {}), *self._below("/api/conversations/<conversation_id>", UNKNOWN))

    def _below(self, above: str, unknown: Mapping[int, str]) -> tuple[Route, ...]:
        base = f"{above}/bash"
        events = f"{base}/bash_events"
        off = {403: "Commands are switched off (OSTLER_WORKSPACE_ACCESS)", **unknown}
        full = {**off, 429: "Too many commands are running"}
        gone = {**off, 404: "No such event, command or conversation"}
        event = schemas.ref("BashEvent")
        limit = {PAGE_LIMIT: schemas.integer(1, MAX_PAGE, MAX_PAGE)}
        ids = schemas.array(schemas.STRING, maxItems=self.services.config.max_event_ids)

        def route(method: str, path: str, handler: Handler, summary: str, **more: Any) -> Route:
            return Route(method=method, path=path, handler=handler, summary=summary, tag=TAG, **more)

        body = ExecuteBashRequest
        return (
            route("POST", f"{base}/start_bash_command", self.start, "Start a command",
                  body=body, result=schemas.ref(BashCommand.NAME), errors=full),
            route("POST", f"{base}/execute_bash_command", self.execute, "Run a command to its end",
                  body=body, result=schemas.ref(BashOutput.NAME), errors=full),
            route("GET", f"{events}/search", self.search, "List events of commands page by page",
                  query=params_of(BashEventsQuery, limit), result=schemas.ref("BashEventPage"), errors=off),
            route("GET", f"{events}/", self.batch, "Get events of commands by id",
                  body=ids, result=schemas.array(schemas.nullable(event)),
                  errors={**off, 413: "More events than one answer may have"}),
            route("GET", f"{events}/<event_id>", self.get, "Get one event of a command",
                  result=event, errors=gone),
            route("DELETE", events, self.clear, "Forget all events of commands",
                  result=schemas.ref("ClearedEvents"), errors=off),
            route("POST", f"{base}/bash_commands/<command_id>/stop", self.stop, "End a command",
                  result=schemas.ref("Success"), errors=gone),
        )  # fmt: skip
