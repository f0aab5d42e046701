"""Uploads: the body is passed on in pieces, and never held as a whole, unlike other bodies.

The connection is read only as fast as the handler takes the bytes (backpressure). `Config.max_upload_bytes`
bounds the body.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import trio
from quart import Request as HttpRequest
from werkzeug.exceptions import RequestEntityTooLarge, RequestTimeout
from werkzeug.sansio.multipart import Data, Epilogue, Event, Field, File, MultipartDecoder, NeedData

from gateway.api.errors import ApiError
from gateway.api.requests.reading import InvalidRequest
from gateway.http.application import Body, PlainRequest
from gateway.http.budgets import SMALL_BYTES
from supervisor.reading.model import ErrorDetail

UPLOAD: Final = re.compile(r"/api/(?:conversations/[^/]+/)?file/upload")
"""Paths of requests with a file."""

PIECE_BYTES: Final = 1024 * 1024
"""Bytes that are taken, parsed and written at a time; fewer if many clients upload. A client has
`Config.body_seconds` for each piece."""

FORM_BYTES: Final = 64 * 1024
"""Most bytes of a form around its file: boundaries, headers, and ignored fields."""

MAX_PARTS: Final = 16
"""Most parts of one form; a client needs one."""

PART: Final = "file"
"""The name of the part with the file."""

_FEED_BYTES: Final = 64 * 1024  # bytes that the parser gets at once
_BOUNDARY: Final = re.compile(r"[ -~]{0,69}[!-~]")  # RFC 2046


class PassedBody(Body):
    """A body that the handler takes in pieces while it arrives."""

    kept = False

    def __init__(self, expected: int | None, most: int | None) -> None:
        super().__init__(expected, most)
        self._came = 0

    def append(self, data: bytes) -> None:
        """Add received bytes. Beyond the limit they are dropped, and the reader gets
        RequestEntityTooLarge."""
        self._came += len(data)
        if self._max_content_length is not None and self._came > self._max_content_length:
            self._must_raise = RequestEntityTooLarge()
            self.set_complete()
        elif self._must_raise is None:
            self._data.extend(data)

    async def take(self) -> bytes:
        """The next PIECE_BYTES, or as many as there is room for, or the rest; empty at the end.

        Raises RequestEntityTooLarge, ClientGone. Cancellation loses nothing: the next call gets the bytes.
        """
        size = SMALL_BYTES
        while self._must_raise is None and not self._complete.is_set() and len(self._data) < size:
            self.take_in(await self.next())
            if size < PIECE_BYTES and len(self._data) >= size and self._has_room():
                size = PIECE_BYTES
        if self._must_raise is not None:
            raise self._must_raise
        data = bytes(self._data)
        self._data.clear()
        return data

    def _has_room(self) -> bool:
        if self._room is None and self.received is not None:
            self._room = self.received.reserve_optional(
                2 * PIECE_BYTES
            )  # one arrives while the other is written
        return self._room is not None or self.received is None


class UploadRequest(PlainRequest):
    """A request whose body is streamed if it is an upload, and held as a whole otherwise."""

    def __init__(self, method: str, scheme: str, path: str, *more: Any, **named: Any) -> None:
        super().__init__(method, scheme, path, *more, **named)
        if method == "POST" and UPLOAD.fullmatch(path):
            self.body = PassedBody(self.content_length, self.upload_bytes)

    upload_bytes: int | None = None


def with_uploads(most: int) -> type[UploadRequest]:
    """The class of requests with this limit in bytes, for files and the form around them."""

    class Request(UploadRequest):
        upload_bytes = most

    return Request


class FormFile:
    """The file in a form (multipart/form-data), found piece by piece. One thread uses it at a time.

    `write` gets the file's bytes.
    """

    def __init__(self, boundary: bytes, write: Callable[[bytes], None]) -> None:
        self._decoder = MultipartDecoder(boundary, FORM_BYTES + _FEED_BYTES, max_parts=MAX_PARTS)
        self._write = write
        self._inside = False
        self._other = 0
        self.files = 0

    def feed(self, data: bytes) -> None:
        """Parse more of the form. Raises InvalidRequest for an invalid form, and what `write` raises."""
        for start in range(0, len(data), _FEED_BYTES):
            self._events(data[start : start + _FEED_BYTES])

    def end(self) -> None:
        """Finish parsing. Raises InvalidRequest, also for a form without a file."""
        self._events(None)
        if not self.files:
            raise _invalid("Field required", "missing")

    def _events(self, data: bytes | None) -> None:
        try:
            self._decoder.receive_data(data)
            while not isinstance(event := self._decoder.next_event(), NeedData | Epilogue):
                self._see(event)
        except (ValueError, UnicodeError, AttributeError) as error:
            if isinstance(error, InvalidRequest):
                raise
            raise InvalidRequest(
                ErrorDetail(("body",), "The body is not a complete multipart form", "value_error")
            ) from None

    def _see(self, event: Event) -> None:
        match event:
            case File(name=name) if name == PART:
                self._inside = True
                self.files += 1
                if self.files > 1:
                    raise _invalid("Value error, one file at a time", "value_error")
            case Field(name=name) if name == PART:
                raise _invalid("Value error, Expected UploadFile", "value_error")
            case Field() | File():
                self._inside = False
            case Data(data=content) if self._inside:
                if content:
                    self._write(content)
            case Data(data=content):
                self._other += len(content)
                if self._other > FORM_BYTES:
                    raise RequestEntityTooLarge


def _invalid(message: str, kind: str) -> InvalidRequest:
    return InvalidRequest(ErrorDetail(("body", PART), message, kind))


def boundary_of(request: HttpRequest) -> bytes:
    """The boundary of the form's parts. Raises ApiError(415) for a body that is not a form."""
    boundary = request.mimetype_params.get("boundary", "")
    if request.mimetype != "multipart/form-data" or not _BOUNDARY.fullmatch(boundary):
        raise ApiError(415, "The body must be multipart/form-data with a boundary")
    return boundary.encode("ascii")


async def pass_on(
    request: HttpRequest, form: FormFile, in_thread: Callable[..., Any], seconds: float
) -> None:
    """Feed the whole body to the form, piece by piece, in threads.

    `seconds`: how long each piece may take to arrive. `in_thread`: runs work in a thread.

    Raises RequestTimeout, RequestEntityTooLarge, InvalidRequest, and what the form's `write` raises.
    """
    body = request.body
    assert isinstance(body, PassedBody)
    while True:
        with trio.move_on_after(seconds) as scope:
            piece = await body.take()
        if scope.cancelled_caught:
            raise RequestTimeout
        if not piece:
            break
        await in_thread(partial(form.feed, piece), "to write a file")
    await in_thread(form.end, "to write a file")
