"""A request of a client, sent to the server that has its conversation."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
import orjson
import structlog
import trio
from quart import Request, Response, current_app, request
from quart.wrappers.response import ResponseBody

from gateway.api import errors
from gateway.api.files.uploads import PassedBody
from gateway.api.forwarding.headers import (
    MISDIRECTED,
    MOVED_HEADER,
    SERVER_HEADER,
    to_client,
    to_owner,
)
from gateway.api.forwarding.owners import CONNECT_SECONDS, WAIT_SECONDS, WRITE_SECONDS, Cut, Owners, Unreached
from gateway.api.requests.messages import IDEMPOTENCY_KEY
from gateway.api.responses import json_response
from gateway.http.access import from_header, is_known
from gateway.http.application import AT_ONCE_BYTES, Application, Body
from gateway.http.client_connection import current
from supervisor.conversations.state.errors import ConversationClosing
from supervisor.machines.errors import NotNow, OwnedElsewhere

if TYPE_CHECKING:
    import httpx2

    from gateway.api.services import Services
    from supervisor.machines.errors import Place

log = structlog.get_logger(__name__)

TAKEOVER_SECONDS: Final = 5.0
"""Seconds beyond the end of a lease for which a request waits for a server that takes over: two for the
takeover, and some for the start of what is needed there."""

FIRST_PAUSE: Final = 0.05
MOST_PAUSE: Final = 1.0
"""Seconds between two looks for the owner: doubled from the first to the most."""

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing: asked again, where the connection ended before the answer."""

AT_ONCE: Final = ("/interrupt", "/pause", "/events/respond_to_confirmation")
"""Ends of the routes of what is meant for this moment: it goes to the owner now, or is refused."""

CREATION: Final = "/api/conversations"

_EMPTY: Final = frozenset({204, 304})
"""Statuses without a body."""


class KeptBody(Body):
    """A body that stays until its request has been answered, since it may be forwarded."""

    def clear(self) -> None:
        """Drop nothing; `let_go` does."""

    def replace(self, data: bytes) -> None:
        """Have it be this."""
        self._data[:] = data


def install(app: Application, services: Services) -> None:
    """Have the application forward what is elsewhere."""
    app.request_class.body_class = KeptBody

    async def handle(error: Exception) -> Response:
        assert isinstance(error, OwnedElsewhere | ConversationClosing)
        if from_server(request):
            answer = json_response({"detail": str(error)}, MISDIRECTED)
            answer.headers[MOVED_HEADER] = "1"
            return answer
        return await _forward(services, error)

    async def closing(error: Exception) -> Response:
        # Handed over while this request was about to change it: it goes to the next owner.
        leaves = services.machines is not None and services.machines.draining.is_set()
        return await handle(error) if leaves else errors.answer(error)

    async def unsettled_now(error: Exception) -> Response:
        return _unavailable(str(error))

    app.register_error_handler(OwnedElsewhere, handle)
    app.register_error_handler(ConversationClosing, closing)
    app.register_error_handler(NotNow, unsettled_now)


def unsettled(error: Exception) -> str | None:
    """Why no server can say now who has the conversation, in one line; None for any other error."""
    return str(error) if isinstance(error, NotNow) else None


def from_server(asked: Any) -> bool:
    """Whether a request, or a handshake, that was admitted comes from another server."""
    return SERVER_HEADER in asked.headers


def is_server(services: Services, asked: Any) -> bool | None:
    """Whether a request shows the servers' key: None without one, False for a wrong one."""
    presented = asked.headers.get(SERVER_HEADER)
    if presented is None:
        return None
    return services.server_key is not None and is_known(from_header(presented), (services.server_key,))


async def _forward(services: Services, elsewhere: OwnedElsewhere | ConversationClosing) -> Response:
    """The owner's answer. Where the owner dies meanwhile, or this server is handing the conversation over,
    that of the server that takes over, which may be this one: the handler is called again, and finds out.

    Cancellation, when the client leaves, ends the request at the owner, too.
    """
    asked = Asked(request, services.owners)
    route = "" if request.url_rule is None else request.url_rule.rule
    at_once = route.endswith(AT_ONCE)
    now = trio.current_time()
    until = now if at_once else now + services.lease_seconds + TAKEOVER_SECONDS
    pause, tried = FIRST_PAUSE, 0
    while True:
        reason = str(elsewhere)
        if isinstance(elsewhere, OwnedElsewhere):
            name = elsewhere.place.name
            asked.name_conversation(route, elsewhere.conversation_id)
            try:
                return await asked.of(elsewhere.place)
            except (Unreached, Cut) as error:
                services.supervisor.forget_owner(elsewhere.conversation_id)
                if isinstance(error, Cut) and not asked.repeatable(route):
                    return _unavailable(
                        f"The server {name} was lost while it had this request: {error}. It may have been "
                        "carried out. Look before you send it again."
                    )
                reason = f"The server {name} has the conversation, and is away: {error}"
        tried += 1
        if asked.taken or (at_once and tried > 1) or (not at_once and trio.current_time() + pause > until):
            return _unavailable(reason)
        if not at_once:
            await trio.sleep(pause)
            pause = min(2 * pause, MOST_PAUSE)
        try:
            handler = cast(Any, current_app).view_functions[request.endpoint]
            return cast(Response, await handler(**(request.view_args or {})))
        except (OwnedElsewhere, ConversationClosing) as again:
            elsewhere = again
        except Exception as error:  # noqa: BLE001 - as the application answers it
            detail = unsettled(error)
            return errors.answer(error) if detail is None else _unavailable(detail)


def _unavailable(detail: str) -> Response:
    answer = json_response({"detail": detail}, 503)
    answer.headers["Retry-After"] = str(math.ceil(TAKEOVER_SECONDS))
    return answer


@attrs.define(eq=False)
class Asked:
    """The request of a client, and the connections to send it on."""

    request: Request
    owners: Owners
    taken: bool = False
    """Whether a part of a body that is passed on has been sent: it is nowhere else."""

    def repeatable(self, route: str) -> bool:
        """Whether it may be carried out twice without harm."""
        if self.request.method in SAFE:
            return True
        if route.endswith("/events") and self.request.method == "POST":
            return IDEMPOTENCY_KEY in self.request.headers or bool(self._given("id"))
        return route == CREATION and bool(self._given("conversation_id"))

    def name_conversation(self, route: str, conversation_id: str) -> None:
        """Have a request for a new conversation name it, so that its server takes it, and it may be sent
        again."""
        body = self._body
        if route != CREATION or self.request.method != "POST" or not isinstance(body, KeptBody):
            return
        if not self._given("conversation_id"):
            body.replace(orjson.dumps({**orjson.loads(body.data), "conversation_id": conversation_id}))

    def _given(self, name: str) -> Any:
        try:
            body = orjson.loads(self._body.data)
        except orjson.JSONDecodeError:
            return None
        return body.get(name) if isinstance(body, dict) else None

    @property
    def _body(self) -> Body:
        return cast(Body, self.request.body)

    async def of(self, place: Place) -> Response:
        """The answer of this server. Raises Unreached, also where it does not have the conversation; Cut."""
        import httpx2

        transport = await self.owners.transport(place.address)
        with self.owners.alive(place):
            try:
                answer = await transport.handle_async_request(self._for(place))
                if answer.status_code == MISDIRECTED and MOVED_HEADER in answer.headers:
                    await answer.aclose()
                    raise Unreached("it no longer has the conversation")
                return await self._passed_on(answer, place)
            except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
                raise Unreached(f"{place.address} does not answer") from error
            except httpx2.TransportError as error:
                raise Cut("the connection ended") from error
        raise Cut("it is dead")

    def _for(self, place: Place) -> httpx2.Request:
        import httpx2

        scope, body = self.request.scope, self._body
        client = str(self.request.remote_addr or "")
        headers = to_owner(scope["headers"], self.owners.key, client)
        content: Any = None
        if isinstance(body, PassedBody):
            content = self._pieces(body)
            length = self.request.content_length
            framing = (b"transfer-encoding", b"chunked")
            headers.append(framing if length is None else (b"content-length", b"%d" % length))
        elif data := body.data:
            content = data
            headers.append((b"content-length", b"%d" % len(data)))
        target = scope["raw_path"] if scope["path"].startswith("/") else self.request.path.encode()
        query = scope["query_string"]
        return httpx2.Request(
            self.request.method,
            place.address,
            headers=headers,
            content=content,
            extensions={
                "target": target + (b"?" + query if query else b""),
                "timeout": {
                    "connect": CONNECT_SECONDS,
                    "pool": WAIT_SECONDS,
                    "read": None,  # commands take long; a server that dies ends the wait
                    "write": WRITE_SECONDS,
                },
            },
        )

    async def _pieces(self, body: PassedBody) -> AsyncIterator[bytes]:
        self.taken = True
        while piece := await body.take():
            yield piece

    async def _passed_on(self, answer: httpx2.Response, place: Place) -> Response:
        headers = to_client(answer.headers.raw)
        length = answer.headers.get("content-length", "")
        data = b""
        passed: ResponseBody | None = None
        if self.request.method == "HEAD" or answer.status_code in _EMPTY:
            await answer.aclose()
        elif length.isdigit() and int(length) <= AT_ONCE_BYTES:
            data = b"".join([piece async for piece in answer.stream])  # type: ignore[union-attr]
            await answer.aclose()
        else:
            passed = _Passed(answer, self.owners, place)
        response = Response(data, status=answer.status_code)
        response.headers.clear()
        response.headers.extend(headers)
        if passed is not None:
            response.response = passed
        response.timeout = None
        return response


class _Passed(ResponseBody):
    """The body of an owner's answer, read as the client reads it."""

    def __init__(self, answer: httpx2.Response, owners: Owners, place: Place) -> None:
        self._answer = answer
        self._owners = owners
        self._place = place
        self._ended = False
        self._token = trio.lowlevel.current_trio_token()

    async def __aenter__(self) -> AsyncIterator[bytes]:
        return self._pieces()

    async def __aexit__(self, *_: Any) -> None:
        self._ended = True
        await self._answer.aclose()

    def __del__(self) -> None:
        # An answer that is cancelled before its body is read never exits: its connection would stay taken.
        if not self._ended:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(trio.lowlevel.spawn_system_task, self._answer.aclose)

    async def _pieces(self) -> AsyncIterator[bytes]:
        import httpx2

        pieces = self._answer.stream.__aiter__()  # type: ignore[union-attr]
        while True:
            piece: bytes | None = None
            reason = "it is dead"
            try:
                with self._owners.alive(self._place):
                    piece = await anext(pieces, b"")
            except httpx2.TransportError as error:
                reason = str(error)
            if piece is None:
                await _break_off(self._place, reason)
                return
            if not piece:
                return
            yield piece


async def _break_off(place: Place, reason: str) -> None:
    """End the connection of the client: HTTP has no other way to say that an answer is not whole."""
    log.warning("answer broken off", server=place.name, reason=reason)
    connection = current.get(None)
    if connection is None:
        raise Cut(reason)
    connection.end()
    await trio.sleep_forever()
