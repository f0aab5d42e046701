"""Quart's routes, requests and responses, with one task for each request.

Quart is general: sessions, signals, blueprints, teardowns, nested contexts, and a nursery with two tasks for
each request, one of which only waits for the client to disconnect. None of that is used here, and it took
more time than most routes do. So this module dispatches a request from the ASGI scope to its handler and
back; Quart and Werkzeug match paths, read requests, make responses and map errors.

When a client disconnects, the connection cancels its request (`connection.Calls`), so no task has to watch
for that. The body is read before the handler begins, since an unread body blocks the connection's reader; the
handler of an upload reads the body itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable
from functools import partial
from typing import Any, ClassVar, Final, cast
from urllib.parse import urlsplit

import trio
from quart import Request, Response
from quart.ctx import RequestContext
from quart.globals import _cv_app, _cv_request
from quart.wrappers.base import BaseRequestWebsocket
from quart.wrappers.response import DataBody
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers.request import TrioBody, TrioRequest
from werkzeug.datastructures import Headers
from werkzeug.exceptions import RequestTimeout
from werkzeug.routing import MapAdapter

from gateway.http.budgets import SMALL_BYTES, Received, Room
from gateway.http.client_connection import current
from gateway.http.wrappers import has_no_body

Before = Callable[[Request], Response | None]
"""Runs before the handler: returns an answer that replaces the handler's, or None. Raises errors as handlers
do."""

After = Callable[[Request, Response], None]
"""Modifies every answer."""

AT_ONCE_BYTES: Final = 64 * 1024
"""The largest body of an answer that is sent without a time limit: the kernel takes it, or the connection's
watch ends its reader (`connection.Connection.overdue`)."""


class ClientGone(Exception):
    """The client disconnected before its body had arrived; there is no one to answer."""


class RequestHeaders(Headers):
    """The headers of a request, which are immutable. A missing header is looked up without an exception."""

    def __init__(self, items: Iterable[tuple[str, str]]) -> None:
        super().__init__(items)
        self._names = {name.lower() for name, _ in self}

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key.lower() in self._names

    def get(self, key: str, *more: Any, **named: Any) -> Any:
        """As `Headers.get`."""
        if more or named or key.lower() in self._names:
            return super().get(key, *more, **named)
        return None


class Body(TrioBody):
    """A request's body, read from the connection on demand, and held as a whole."""

    receive: Callable[[], Awaitable[Any]] | None = None

    kept: ClassVar[bool] = True
    """Whether it is read before the handler begins."""

    def __init__(self, expected_content_length: int | None, max_content_length: int | None) -> None:
        super().__init__(expected_content_length, max_content_length)
        limits = (expected_content_length, max_content_length)
        self.most = min((each for each in limits if each is not None), default=0)
        """The most bytes that it can have."""
        self._room: Room | None = None

    @property
    def received(self) -> Received | None:
        """The budget that counts it; None for a request without a connection."""
        connection = current.get(None)
        return None if connection is None else connection.bodies

    def __await__(self) -> Generator[Any, None, Any]:
        return self._whole().__await__()

    @property
    def data(self) -> bytes:
        """What has arrived of it, and was not dropped."""
        return bytes(self._data)

    async def _whole(self) -> bytes:
        await self.come()
        return bytes(self._data)

    async def come(self) -> None:
        """Read all of it. Raises RequestEntityTooLarge, ClientGone, TooMuchHeld. Cancellation keeps the bytes
        that have arrived."""
        while self._must_raise is None and not self._complete.is_set():
            self.take_in(await self.next())
            if len(self._data) > SMALL_BYTES and self._room is None and self.received is not None:
                self._room = await self.received.room(self.most)
        if self._must_raise is not None:
            raise self._must_raise
        if self._room is not None:
            self._room.shrink(len(self._data))

    def let_go(self) -> None:
        """Release its memory and its share of the budget."""
        self._data.clear()
        if self._room is not None:
            self._room.give()
            self._room = None

    async def next(self) -> Any:
        """The next message with a part of the body. Raises ClientGone."""
        assert self.receive is not None
        message = await self.receive()
        if message["type"] != "http.request":
            raise ClientGone
        return message

    def take_in(self, message: Any) -> None:
        """Append this part. Beyond the limit bytes are dropped, and the reader gets RequestEntityTooLarge."""
        self.append(message.get("body", b""))
        if not message.get("more_body", False):
            self.set_complete()


class PlainRequest(TrioRequest):
    """A request whose body is read from the connection by its own task."""

    body_class = Body

    async def take_body(self) -> None:
        """Read the whole body before the handler runs.

        Raises RequestTimeout, RequestEntityTooLarge, ClientGone, TooMuchHeld. Cancellation keeps the bytes
        that have arrived.
        """
        seconds = float("inf") if self.body_timeout is None else self.body_timeout
        with trio.move_on_after(seconds) as scope:
            await cast(Body, self.body).come()
        if scope.cancelled_caught:
            raise RequestTimeout


class Call(TrioASGIHTTPConnection):
    """One request, in the task that calls it."""

    def _create_request_from_scope(self, send: Any) -> Request:
        scope, config = self.scope, self.app.config
        client = scope.get("client") or ("<local>",)
        headers = [("Remote-Addr", client[0])]
        headers += [
            (name.decode("latin-1").title(), value.decode("latin-1")) for name, value in scope["headers"]
        ]
        if scope["http_version"] < "1.1":
            headers.append(("Host", ""))  # the first one counts
        path = scope["path"]
        return self.app.request_class(
            scope["method"],
            scope["scheme"],
            path if path.startswith("/") else urlsplit(path).path,
            scope["query_string"],
            RequestHeaders(headers),
            "",
            scope["http_version"],
            scope,
            max_content_length=config["MAX_CONTENT_LENGTH"],
            body_timeout=config["BODY_TIMEOUT"],
            send_push_promise=partial(self._send_push_promise, send),
        )

    async def __call__(self, receive: Any, send: Any) -> None:
        """Answer it; without an answer if the client leaves. Cancellation leaves the answer where it is."""
        request = self._create_request_from_scope(send)
        cast(Body, request.body).receive = receive
        try:
            response = cast(Response, await self.app.handle_request(request))
        except ClientGone:
            return
        finally:
            # Also of a request whose handler never read it.
            cast(Body, request.body).let_go()
        body = response.response
        if isinstance(body, DataBody) and body.end - body.begin <= AT_ONCE_BYTES:
            await self._send_whole(send, response, body)
            return
        limit = self.app.config["RESPONSE_TIMEOUT"] if response.timeout is Ellipsis else response.timeout
        with trio.move_on_after(float("inf") if limit is None else float(limit)):
            if isinstance(body, DataBody):
                await self._send_whole(send, response, body)
            else:
                await self._send_response(send, response)

    async def _send_whole(self, send: Any, response: Response, body: DataBody) -> None:
        headers = [(name.lower().encode(), value.encode()) for name, value in response.headers]
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        data = body.data[body.begin : body.end]
        await send({"type": "http.response.body", "body": data, "more_body": False})


class Application(QuartTrio):
    """An ASGI application. `before` and `after` are asked for every request, also where no route is found."""

    asgi_http_class = Call
    request_class = PlainRequest

    def __init__(self, name: str, before: Before, after: After) -> None:
        super().__init__(name, static_folder=None)
        self._before = before
        self._after = after
        self._context = self.app_context()

    def create_url_adapter(self, request: BaseRequestWebsocket | None) -> MapAdapter | None:
        """What matches the request's path. Names of hosts play no part in it."""
        if not isinstance(request, Request):
            return super().create_url_adapter(request)
        return MapAdapter(
            self.url_map,
            "",
            request.root_path,
            "",
            request.scheme,
            request.path,
            request.method,
            request.query_string.decode("latin-1"),
        )

    async def handle_request(self, request: Request) -> Response:
        """The answer to a request. Raises ClientGone, and nothing else: errors are answers."""
        context = RequestContext(self, request)
        outside, inside = _cv_app.set(self._context), _cv_request.set(context)
        try:
            context.match_request()
            response = await self._answer(request)
            self._after(request, response)
        finally:
            _cv_request.reset(inside)
            _cv_app.reset(outside)
        return response

    async def _answer(self, request: Request) -> Response:
        try:
            return self._before(request) or await self._handled(request)
        except ClientGone:
            raise
        except (Exception, BaseExceptionGroup) as error:
            if isinstance(error, BaseExceptionGroup):
                others = error.split(ClientGone)[1]
                if others is None:
                    raise ClientGone from error
                error = others
            return cast(Response, await self.make_response(await self.handle_user_exception(error)))

    async def _handled(self, request: Request) -> Response:
        if request.routing_exception is not None:
            raise request.routing_exception
        assert request.url_rule is not None
        if cast(Body, request.body).kept and not has_no_body(request.scope):
            # The connection's reader notices a disconnect. It buffers a few pieces of an unread body,
            # then it blocks.
            await cast(PlainRequest, request).take_body()
        handler = cast("Callable[..., Awaitable[Response]]", self.view_functions[request.url_rule.endpoint])
        return await handler(**(request.view_args or {}))
