"""The events of commands, and their log: in memory, bounded, the oldest dropped first."""

from __future__ import annotations

import re
import uuid
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

import attrs
import orjson
import trio

from supervisor.reading.model import Model, described
from supervisor.reading.shapes import as_json
from supervisor.tight import tight

MAX_COMMAND_CHARACTERS: Final = 128 * 1024 - 1
"""Longest command: what one argument may have on Linux (execve(2), MAX_ARG_STRLEN)."""

OUTPUT_CHARACTERS: Final = 1024 * 1024
"""Characters of one stream in one event: the size that clients of the wire know."""

DEFAULT_SECONDS: Final = 300
"""Seconds that a command may run if the client does not say."""

FAILED: Final = -1
"""The exit code of a command that ran out of time, or could not be started."""

PAGE_BYTES: Final = 8 * 1024 * 1024
"""Bytes of one page. A page ends before the event that would exceed them, even below its limit of events."""

PENDING_BYTES: Final = 16 * 1024 * 1024
"""Bytes that may be queued for a watcher that does not read."""

Scope = str | None
"""The conversation that a command belongs to, by its dashed id; None for those that belong to none."""

_CURSOR: Final = re.compile(r"([0-9]{20})_([0-9a-f]{32})")


@attrs.frozen(kw_only=True)
class BashCommand(Model):
    """A command, as requested."""

    TAG: ClassVar[str | None] = "kind"
    TAG_REQUIRED: ClassVar[bool] = True
    kind: ClassVar[str] = "BashCommand"

    command: str
    cwd: str | None
    timeout: int = attrs.field(metadata=described("Seconds"))
    id: str = attrs.field(metadata=described("32 hexadecimal digits"))
    timestamp: str = attrs.field(metadata=described(format="date-time"))


@attrs.frozen(kw_only=True)
class BashOutput(Model):
    """A part of a command's output; the last one has the exit code."""

    TAG: ClassVar[str | None] = "kind"
    TAG_REQUIRED: ClassVar[bool] = True
    kind: ClassVar[str] = "BashOutput"

    id: str = attrs.field(metadata=described("32 hexadecimal digits"))
    timestamp: str = attrs.field(metadata=described(format="date-time"))
    command_id: str
    order: int = attrs.field(metadata=described("Counts the parts of one command from 0"))
    exit_code: int | None = attrs.field(
        metadata=described("null: it runs. Negative: ended by this signal; -1 also: not started, timed out")
    )
    stdout: str | None
    stderr: str | None


@attrs.frozen(kw_only=True)
class BashError(Model):
    """The refusal of a request on a socket."""

    TAG: ClassVar[str | None] = "kind"
    TAG_REQUIRED: ClassVar[bool] = True
    kind: ClassVar[str] = "BashError"

    id: str
    timestamp: str = attrs.field(metadata=described(format="date-time"))
    code: str
    detail: str


@attrs.frozen(eq=False)
class Kept:
    """One event. `body` is its JSON."""

    id: str
    kind: str
    timestamp: str
    scope: Scope
    command_id: str | None
    order: int | None
    body: bytes = attrs.field(repr=False)

    @property
    def cursor(self) -> str:
        """Its `page_id`. Begins with its time, so that it stays a valid position after the event is
        dropped."""
        return f"{re.sub('[^0-9]', '', self.timestamp)}_{self.id}"


@attrs.frozen(kw_only=True)
class Wanted:
    """Which events are searched for. Times are in UTC, in the form of the events."""

    kind: str | None = None
    command_id: str | None = None
    since: str | None = None
    before: str | None = None
    order_above: int | None = None
    newest_first: bool = False
    page: str | None = None
    limit: int = 100

    def fits(self, event: Kept) -> bool:
        """Whether it is one of them, at the right time."""
        return (self.kind is None or event.kind == self.kind) and (
            # A command has no order: it is not left out, as with other servers of this wire.
            self.order_above is None or event.order is None or event.order > self.order_above
        )

    def among(self, events: list[Kept]) -> Iterator[Kept]:
        """The events within the time range, in the page's order, from its cursor on."""
        start = 0 if self.since is None else bisect_left(events, self.since, key=_time)
        end = len(events) if self.before is None else bisect_left(events, self.before, key=_time)
        at = _CURSOR.fullmatch(self.page) if self.page is not None else None
        if at is not None and self.newest_first:
            end = min(end, bisect_right(events, _timestamp(at[1]), key=_time))
        elif at is not None:
            start = max(start, bisect_left(events, _timestamp(at[1]), key=_time))
        found = events[start:end]
        return reversed(found) if self.newest_first else iter(found)


class Watcher:
    """A live reader of the log. Made by `BashLog.watching`."""

    def __init__(self, past: list[bytes]) -> None:
        self._waiting: deque[bytes] = deque(past)
        self._bytes = 0
        self._past = len(past)
        self._changed = trio.Event()
        self.overrun = trio.Event()
        """Set when more than PENDING_BYTES wait: events are missing from then on."""

    def push(self, body: bytes) -> None:
        """Queue a frame."""
        if self._bytes + len(body) > PENDING_BYTES and self._waiting:
            self.overrun.set()
            return
        self._bytes += len(body)
        self._waiting.append(body)
        self._changed.set()

    async def next(self) -> bytes:
        """Wait for the next frame. Cancellation loses nothing."""
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            self._changed = trio.Event()
            await self._changed.wait()
        body = self._waiting.popleft()
        if self._past:
            self._past -= 1  # what was there before it came is the log's, and does not count
        else:
            self._bytes -= len(body)
        return body


class BashLog:
    """The events of all scopes, in the order of their times, each of which is unique.

    At most `most_bytes` of JSON, and `most_events`; the newest one is kept in any case.
    """

    def __init__(self, most_bytes: int, most_events: int) -> None:
        self._most_bytes = most_bytes
        self._most_events = most_events
        self._all: dict[str, Kept] = {}
        self._scopes: dict[Scope, dict[str, Kept]] = {}
        self._commands: dict[str, dict[str, Kept]] = {}
        self._watchers: dict[Scope, set[Watcher]] = {}
        self._last = ""
        self.bytes = 0

    def __len__(self) -> int:
        """How many there are."""
        return len(self._all)

    def stamp(self) -> tuple[str, str]:
        """A new id, and a time later than all before, even if the clock is set back."""
        now = _written(datetime.now(UTC))
        if now <= self._last:
            now = _written(datetime.fromisoformat(self._last) + timedelta(microseconds=1))
        self._last = now
        return uuid.uuid4().hex, now

    def add(self, scope: Scope, event: BashCommand | BashOutput) -> bytes:
        """Add an event, which has the newest stamp, and send it to its scope's watchers. Returns its JSON."""
        command_id, order = (event.command_id, event.order) if isinstance(event, BashOutput) else (None, None)
        kept = Kept(
            id=event.id,
            kind=event.kind,
            timestamp=event.timestamp,
            scope=scope,
            command_id=command_id,
            order=order,
            body=encode(event),
        )
        self._all[kept.id] = kept
        self._scopes.setdefault(scope, {})[kept.id] = kept
        if kept.command_id is not None:
            self._commands.setdefault(kept.command_id, {})[kept.id] = kept
        self.bytes += len(kept.body)
        while len(self._all) > 1 and (self.bytes > self._most_bytes or len(self._all) > self._most_events):
            self._drop(next(iter(self._all.values())))
        for watcher in self._watchers.get(scope, ()):
            watcher.push(kept.body)
        return kept.body

    def error(self, code: str, detail: str) -> bytes:
        """The JSON of an error, which is not stored."""
        id_, timestamp = self.stamp()
        return encode(BashError(id=id_, timestamp=timestamp, code=code, detail=detail))

    def get(self, scope: Scope, event_id: str) -> Kept | None:
        """The event of this id (dashed or not); None if there is none in this scope."""
        return self._scopes.get(scope, {}).get(event_id.replace("-", "").lower())

    def outputs(self, command_id: str) -> list[Kept]:
        """The stored output of a command, in order."""
        return list(self._commands.get(command_id, {}).values())

    def search(self, scope: Scope, wanted: Wanted) -> tuple[list[Kept], str | None]:
        """A page of events, and the cursor of the first one that follows."""
        if wanted.command_id is None:
            found = self._scopes.get(scope, {})
        else:
            # As with other servers of this wire: the command itself is not an output of it.
            found = self._commands.get(wanted.command_id, {})
        items: list[Kept] = []
        size = 0
        for event in wanted.among(list(found.values())):
            if event.scope == scope and wanted.fits(event):
                size += len(event.body)
                if len(items) == wanted.limit or (items and size > PAGE_BYTES):
                    return items, event.cursor
                items.append(event)
        return items, None

    def clear(self, scope: Scope) -> int:
        """Drop all events of the scope. Returns their number."""
        found = list(self._scopes.get(scope, {}).values())
        for event in found:
            self._drop(event)
        return len(found)

    @contextmanager
    def watching(self, scope: Scope, *, past: bool) -> Iterator[Watcher]:
        """Watch the events of the scope while the block runs; with `past` the stored ones come first."""
        watcher = Watcher([event.body for event in self._scopes.get(scope, {}).values()] if past else [])
        self._watchers.setdefault(scope, set()).add(watcher)
        try:
            yield watcher
        finally:
            self._watchers[scope].discard(watcher)
            if not self._watchers[scope]:
                del self._watchers[scope]

    def _drop(self, event: Kept) -> None:
        del self._all[event.id]
        self.bytes -= len(event.body)
        _remove(self._scopes, event.scope, event.id)
        if event.command_id is not None:
            _remove(self._commands, event.command_id, event.id)


def encode(event: Model) -> bytes:
    """The JSON of an event, nulls included."""
    return tight(orjson.dumps(as_json(event)))


def _remove(index: dict[Any, dict[str, Kept]], key: Any, event_id: str) -> None:
    del index[key][event_id]
    if not index[key]:
        del index[key]


def _time(event: Kept) -> str:
    return event.timestamp


def _timestamp(digits: str) -> str:
    """The time of a cursor, in the form of the events."""
    year, month, day, hour, minute, second, rest = (
        digits[start:end] for start, end in ((0, 4), (4, 6), (6, 8), (8, 10), (10, 12), (12, 14), (14, 20))
    )
    return f"{year}-{month}-{day}T{hour}:{minute}:{second}.{rest}Z"


def _written(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
