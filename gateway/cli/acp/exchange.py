"""What editor and server have asked of each other, so that a new connection continues where one ended.

No input or output here. The editor's lines go in and become what is to be sent; the server's frames go in and
become what the editor gets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import orjson

from gateway.cli.acp.messages import (
    ATTACH,
    AUTH_REQUIRED,
    CANCEL,
    CLOSING,
    INITIALIZE,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    LOAD,
    OPENING,
    PROMPT,
    Line,
    Unreadable,
    error,
    is_cancelled,
    read,
    request,
    request_ended,
    without_key,
)

LINE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of a line of the editor: what the server takes as one message."""

UNANSWERED_MOST: Final = 1000
"""Requests of one side that wait for the other's answer. Editors have a handful."""

HELD_BYTES: Final = 64 * 1024 * 1024
"""Bytes of the editor's unanswered requests, which are sent again after a lost connection: four of the
largest."""

OUTBOX_BYTES: Final = 2 * LINE_BYTES
"""Bytes that wait for the server until the editor is no longer read."""

ANSWERS_MOST: Final = 256
"""Answers to permission requests that are kept in case the server did not get them."""

ANSWERS_BYTES: Final = 1024 * 1024

SESSIONS_MOST: Final = 1000
"""Sessions that the editor has open: far above what one shows."""

FAILURES_MOST: Final = 3
"""Times that the server may fail while a request is unanswered, until that is taken for the reason."""

KEPT: Final = b'"permission-'
"""How the ids begin that stay the same over a reconnect."""

UPDATE: Final = '{"jsonrpc":"2.0","method":"session/update"'
"""How nearly all frames begin; these are passed on unread."""


@attrs.define
class Session:
    """A session that the editor has open. `size`: bytes of the request that opened it. `begun`: the position
    at which that began, None for the end of the log."""

    params: Mapping[str, Any]
    size: int
    begun: str | None


@attrs.define
class Asked:
    """A request of the server that the editor has not answered."""

    here: bool = True
    """Whether it belongs to the connection that there is."""
    ended: bool = False
    """Whether the editor knows that no answer is awaited."""
    again: bool = False
    """Whether the editor got it a second time after that."""


class Exchange:
    """The state of one editor's session with a server. `lost` ends a connection, `opened` begins one."""

    def __init__(self) -> None:
        self._initialize: Line | None = None
        """The editor's request that has been answered, here or by the server."""
        self._sessions: dict[str, Session] = {}
        self._positions: dict[str, str] = {}
        self._outbox: deque[Line] = deque()
        self._outbox_bytes = 0
        self._sent: dict[object, Line] = {}
        """Requests that the server has not answered, and the cancels of such prompts, in order."""
        self._unanswered: dict[bytes, int] = {}
        """The bytes of each unanswered request, sent or not."""
        self._held_bytes = 0
        self._repeated: set[bytes] = set()
        """Unanswered requests that were sent on an earlier connection."""
        self._failures: dict[bytes, int] = {}
        self._asked: dict[bytes, Asked] = {}
        self._answers: dict[bytes, Line] = {}
        self._answers_bytes = 0
        self._own: dict[bytes, str] = {}
        """Own requests and their sessions; that of `initialize` is empty."""
        self._urgent: deque[bytes] = deque()
        self._number = 0
        self._ready = True

    # What the bridge looks at.

    @property
    def full(self) -> bool:
        """Whether the editor is not to be read now."""
        return self._outbox_bytes > OUTBOX_BYTES

    @property
    def ready(self) -> bool:
        """Whether the connection has all that the one before had."""
        return self._ready

    @property
    def sendable(self) -> bool:
        """Whether `next_frame` has one."""
        return bool(self._urgent or (self._ready and self._outbox))

    @property
    def settled(self) -> bool:
        """Whether all is sent, and answered apart from prompts, whose turns continue without the editor."""
        sent = [*self._sent.values(), *(each for each in self._outbox if each.key in self._repeated)]
        return len(sent) == len(self._sent) + len(self._outbox) and all(
            each.method == PROMPT or each.key is None for each in sent
        )

    @property
    def wants_server(self) -> bool:
        """Whether the editor has asked for more than `initialize`."""
        return any(
            each.method and each.key is not None and each.method != INITIALIZE for each in self._outbox
        )

    @property
    def unanswered(self) -> int:
        """Requests of the editor that wait for an answer."""
        return len(self._unanswered)

    @property
    def prompts(self) -> list[str]:
        """The sessions with an unanswered prompt."""
        lines = [*self._sent.values(), *self._outbox]
        return [str(each.session) for each in lines if each.method == PROMPT]

    # The editor.

    def from_editor(self, body: bytes) -> list[bytes]:
        """Take a line; return what the editor gets for it at once."""
        try:
            line = read(body)
        except Unreadable as problem:
            return [problem.answer]
        if line is None:
            return []
        if line.key is None:
            return self._queue(line)
        return self._request(line.key, line) if line.method else self._answer(line.key, line)

    def too_long(self) -> bytes:
        """The answer to a line above LINE_BYTES."""
        return error(
            b"null", INVALID_REQUEST, f"the line has more than {LINE_BYTES // 1024 // 1024} MiB; send less"
        )

    def _queue(self, line: Line) -> list[bytes]:
        self._outbox.append(line)
        self._outbox_bytes += len(line.body)
        return []

    def _request(self, key: bytes, line: Line) -> list[bytes]:
        if key in self._unanswered or key in self._own:
            return [error(key, INVALID_REQUEST, "a request with this id has not been answered yet")]
        crowded = len(self._unanswered) >= UNANSWERED_MOST or self._held_bytes > HELD_BYTES
        if crowded or (line.method in OPENING and len(self._sessions) >= SESSIONS_MOST):
            what = "requests are unanswered" if crowded else "sessions are open"
            return [error(key, INTERNAL_ERROR, f"too many {what}; try again when there are fewer")]
        self._unanswered[key] = len(line.body)
        self._held_bytes += len(line.body)
        return self._queue(line)

    def _answer(self, key: bytes, line: Line) -> list[bytes]:
        asked = self._asked.get(key)
        if asked is not None and asked.again and is_cancelled(line.body):
            asked.again = False  # this answers the one that was ended
            return []
        self._asked.pop(key, None)
        if asked is None or asked.ended:
            return []
        if key.startswith(KEPT):
            self._answers[key] = line
            self._answers_bytes += len(line.body)
            while len(self._answers) > ANSWERS_MOST or self._answers_bytes > ANSWERS_BYTES:
                self._answers_bytes -= len(self._answers.pop(next(iter(self._answers))).body)
        elif not asked.here:
            return []  # the server that asked is gone
        return self._queue(line)

    # The server.

    def next_frame(self) -> bytes | None:
        """What is to be sent next, None if there is nothing. It counts as sent."""
        if self._urgent:
            return self._urgent.popleft()
        if not (self._ready and self._outbox):
            return None
        line = self._outbox.popleft()
        self._outbox_bytes -= len(line.body)
        if line.method and line.key is not None:
            self._sent[line.key] = line
            if line.method == LOAD and line.session is not None:
                return self._load(line.key, line, line.session)
        elif line.method == CANCEL and self._prompts(line.session):
            self._sent[object()] = line
        return line.body

    def _load(self, key: bytes, line: Line, session: str) -> bytes:
        """A load whose beginning the editor has seen continues there."""
        if key not in self._repeated:
            self._positions.pop(session, None)
        position = self._positions.get(session)
        if position is None:
            return line.body
        return request(key, ATTACH, {**line.params, "position": position})

    def from_server(self, frame: str) -> list[bytes]:
        """Take a frame; return what the editor gets for it."""
        if frame.startswith("@"):
            head, _, frame = frame.partition("\n")
            session, _, position = head[1:].partition(" ")
            if session in self._positions or len(self._positions) < 2 * SESSIONS_MOST:
                self._positions[session] = position
        body = frame.encode()
        if b"\n" in body:  # not of our server; between tokens it means nothing
            body = body.replace(b"\n", b" ")
        return [body] if frame.startswith(UPDATE) else self._read(body)

    def _read(self, body: bytes) -> list[bytes]:
        try:
            message = orjson.loads(body)
        except orjson.JSONDecodeError:
            return []
        if not isinstance(message, dict):
            return []
        method = message.get("method")
        if "id" not in message:
            match message:
                case {"method": "$/cancel_request", "params": {"requestId": identity}}:
                    asked = self._asked.get(orjson.dumps(identity))
                    if asked is not None:
                        asked.ended = True
            return [body]
        key = orjson.dumps(message["id"])
        return self._asks(key, body) if isinstance(method, str) else self._answers_to(key, message, body)

    def _asks(self, key: bytes, body: bytes) -> list[bytes]:
        if key in self._answers:
            self._urgent.append(self._answers[key].body)
            return []
        asked = self._asked.get(key)
        if asked is not None and not asked.ended:
            asked.here = True
            return []
        if asked is None and len(self._asked) >= UNANSWERED_MOST:
            for each in [name for name, one in self._asked.items() if one.ended]:
                del self._asked[each]
        if len(self._asked) >= UNANSWERED_MOST:
            self._urgent.append(error(key, INTERNAL_ERROR, "the editor does not answer"))
            return []
        self._asked[key] = Asked(again=asked is not None)
        return [body]

    def _answers_to(self, key: bytes, message: Mapping[str, Any], body: bytes) -> list[bytes]:
        if key in self._own:
            return self._own_answered(self._own.pop(key), failed="error" in message)
        line = self._sent.pop(key, None)
        if line is None:
            return [body] if key == b"null" else []
        self._done(key)
        if "error" not in message:
            self._succeeded(line, message.get("result"))
        if line.method == PROMPT and not self._prompts(line.session):
            self._sent = {
                each: sent
                for each, sent in self._sent.items()
                if sent.method != CANCEL or sent.session != line.session
            }
        return [body]

    def _succeeded(self, line: Line, value: object) -> None:
        if line.method == INITIALIZE:
            self._initialize = line
        elif line.method in OPENING:
            named = value.get("sessionId") if isinstance(value, dict) else None
            session = named if isinstance(named, str) else line.session
            if session is None:
                return
            self._close(session, forget=False)
            params = {each: line.params[each] for each in ("cwd", "mcpServers") if each in line.params}
            begun = "" if line.method in ("session/new", LOAD) else None
            self._sessions[session] = Session(params, len(line.body), begun)
            self._held_bytes += len(line.body)
        elif line.method in CLOSING and line.session is not None:
            self._close(line.session)

    def _close(self, session: str, *, forget: bool = True) -> None:
        closed = self._sessions.pop(session, None)
        self._held_bytes -= 0 if closed is None else closed.size
        if forget:
            self._positions.pop(session, None)

    def _done(self, key: bytes) -> None:
        self._held_bytes -= self._unanswered.pop(key, 0)
        self._failures.pop(key, None)
        self._repeated.discard(key)

    def _prompts(self, session: str | None) -> bool:
        return any(each.method == PROMPT and each.session == session for each in self._sent.values())

    # Connections.

    def opened(self) -> None:
        """A new connection begins."""
        if self._initialize is None:
            self._catch_up()
            return
        self._ready = False
        self._ask(INITIALIZE, self._initialize.params, "")

    def lost(self) -> None:
        """The connection has ended: what it was sent and has not answered is to be sent again."""
        self._urgent.clear()
        self._own.clear()
        self._repeated.update(each.key for each in self._sent.values() if each.key is not None)
        self._outbox.extendleft(reversed(self._sent.values()))
        self._outbox_bytes += sum(len(each.body) for each in self._sent.values())
        self._sent.clear()
        self._ready = False
        for each in self._asked.values():
            each.here = False

    def _ask(self, method: str, params: Mapping[str, Any], session: str) -> None:
        key = b'"ostler-%d"' % self._number
        while key in self._unanswered or key in self._own:
            self._number += 1
            key = b'"ostler-%d"' % self._number
        self._number += 1
        self._own[key] = session
        self._urgent.append(request(key, method, params))

    def _own_answered(self, session: str, *, failed: bool) -> list[bytes]:
        if not session:
            loading = {each.session for each in self._outbox if each.method == LOAD}
            for name, each in self._sessions.items():
                if name not in loading:
                    position = self._positions.get(name, each.begun)
                    self._ask(ATTACH, {**each.params, "sessionId": name, "position": position}, name)
        elif failed:
            self._close(session)
        return self._catch_up() if not self._own else []

    def _catch_up(self) -> list[bytes]:
        """Return the ends of requests that did not come again."""
        self._ready = True
        gone = [key for key, each in self._asked.items() if not (each.here or each.ended)]
        for key in gone:
            self._asked[key].ended = True
        return [request_ended(key) for key in gone]

    # What cannot be done.

    def fail(self, message: str) -> list[bytes]:
        """Answer all requests of the editor with this error."""
        return self._end_all(lambda key, line: error(key, INTERNAL_ERROR, message))

    def refuse(self, message: str) -> list[bytes]:
        """Answer all requests of the editor where the server refused the key. `initialize` succeeds, and says
        how to give one."""

        def answer(key: bytes, line: Line) -> bytes:
            if line.method != INITIALIZE:
                return error(key, AUTH_REQUIRED, message)
            self._initialize = line
            return without_key(line)

        return self._end_all(answer)

    def broken(self) -> list[bytes]:
        """Note that the server failed with what it was sent; answer requests with which it did so often."""
        failed = [key for key in self._sent if isinstance(key, bytes)]
        for key in failed:
            self._failures[key] = self._failures.get(key, 0) + 1
        found = [key for key in failed if self._failures[key] >= FAILURES_MOST]
        return [self._give_up(key, "the server failed at this request; its log says why") for key in found]

    def too_large(self) -> list[bytes]:
        """Answer the largest request: the server does not take a message of this size."""
        sent = [(len(each.body), key) for key, each in self._sent.items() if isinstance(key, bytes)]
        return [self._give_up(max(sent)[1], "the server does not take so large a message")] if sent else []

    def _give_up(self, key: bytes, why: str) -> bytes:
        del self._sent[key]
        self._done(key)
        return error(key, INTERNAL_ERROR, why)

    def _end_all(self, answer: Callable[[bytes, Line], bytes]) -> list[bytes]:
        lines = [*self._sent.values(), *self._outbox]
        self._sent.clear()
        self._outbox.clear()
        self._outbox_bytes = 0
        answers = []
        for line in lines:
            if line.method and line.key is not None:
                answers.append(answer(line.key, line))
                self._done(line.key)
        return answers
