"""Writes translated events to the journal: times, tree links, bytes. Synchronous, in arrival order.

The recorder is the only writer of its conversation's log, so that events and streamed pieces keep their
order.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs
import structlog

from supervisor.acp import shorten_session_id
from supervisor.conversations.recording import usage
from supervisor.conversations.recording.agent_updates import AgentUpdates
from supervisor.conversations.recording.bounds.attachments import Attachment
from supervisor.conversations.recording.bounds.truncation import EVENT_BYTES, fitting
from supervisor.conversations.recording.effects import (
    STATE,
    UNDATED,
    Aborted,
    Delta,
    Effect,
    Opened,
    Recorded,
    Title,
    ToolOutput,
    Usage,
)
from supervisor.conversations.recording.held_states import HeldStates
from supervisor.conversations.recording.streamed import WIRE, LiveOutput, StreamedWire, aborted, inside
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.state.state import Update
from supervisor.conversations.state.transitions import after
from supervisor.credentials.masking import NOTHING, Masker
from supervisor.events import (
    ACPToolCallEvent,
    AgentErrorEvent,
    ConversationStateUpdateEvent,
    Event,
    ObservationEvent,
    UserRejectObservation,
    Vocabulary,
    dump_stamped,
    dumps,
    new_event_id,
    timestamp_now,
)
from supervisor.journal.errors import JournalError, TooLarge
from supervisor.journal.growing import Growing
from supervisor.journal.log import Log
from supervisor.journal.rows import Blob, Frame, RecordUpdate, Row

log = structlog.get_logger(__name__)

TITLE_CHARS: Final = 200
"""Longest title taken from an agent: as long as one that a person may set."""

ENDS: Final = (ObservationEvent, AgentErrorEvent, UserRejectObservation, ACPToolCallEvent)
"""Events after which a call's shell output is complete. An ACP call's first event precedes all of its
output."""

TOGETHER_BYTES: Final = 256 * 1024
"""The most bytes of events that are searched for secrets together, since the search copies them."""

_TICK: Final = datetime.timedelta(microseconds=1)

BEHIND: Final = datetime.timedelta(minutes=1)
"""How far the clock may lie behind a conversation's last event before it is reported: time servers adjust
clocks by less."""

BEHIND_KEY: Final = "clock_behind"
"""The key of the state that reports a larger difference."""


def later(previous: str, now: str) -> str:
    """Return `now`, or one microsecond after `previous` if the clock did not advance.

    Clients page and catch up by timestamp, so the order of the log must be the order of its times.
    """
    if now > previous:
        return now
    moved = _moment(previous) + _TICK
    return moved.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _moment(timestamp: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(timestamp)


@attrs.define
class Recorder:
    """Writes one conversation's events; owns its record's timestamps and tree leaf."""

    log: Log
    record: ConversationRecord
    last_timestamp: str = ""
    unsaved: bool = False
    """Whether the record has usage figures that are not written yet."""
    mask: Masker = NOTHING
    """Masks the agent's secrets in every event except a person's messages."""
    live: LiveOutput | None = None
    """Shows what tools write while they run."""
    held: HeldStates = attrs.field(factory=HeldStates)
    """The agent's states that wait until the open items are events."""
    updates: AgentUpdates = attrs.field(init=False)
    """What the agent sent, as it sent it."""
    logger: Any = attrs.field(init=False)
    """One for all parts of the conversation: its lines carry the conversation's id."""
    _open_items: dict[str, Growing] = attrs.field(factory=dict)
    """The items being streamed, until their events are written."""
    _behind: bool | None = None
    """Whether the clock lies behind the events and this must be reported; False once it was."""

    def __attrs_post_init__(self) -> None:
        self.logger = log.bind(conversation_id=self.record.id)
        self.updates = AgentUpdates(self.log, self.record.id, lambda: self.mask, self._token)

    def _token(self) -> str | None:
        """The session's id if it is a secret."""
        session_id = self.record.now.session_id
        return session_id if session_id != self.record.id else None

    @property
    def extended(self) -> bool:
        """Whether the conversation reads the extended vocabulary."""
        return self.record.start.vocabulary is Vocabulary.EXTENDED

    def write(self, events: Iterable[Event | Recorded], *, quiet: bool = False) -> int:
        """Append events and the record as it is now, in one transaction. Returns the last sequence number.

        `quiet` is for changes of the agent's process only. It keeps the conversation's time of change, so
        that a background restart or stop of an agent does not move the conversation up in lists.
        """
        self.release_states()  # before what comes after them
        rows, blobs = self._rows(events)
        if not quiet:
            # The clock's time, not the event's: a clock that was once ahead must not keep this conversation
            # at the top of lists.
            self.record.updated_at = timestamp_now()
        self.unsaved = False
        return self._append(rows, self._update(), blobs)

    def apply(self, cause: object, *, quiet: bool = False) -> int:
        """Change what the conversation is by a cause (`state.state`), and append what that brings to the
        journal in the same transaction. Returns the sequence number of the event that the cause brings along,
        or else the last one.

        A change without events is stored with the next write (`unsaved`). Raises JournalError; then nothing
        is stored, but the state has changed.
        """
        # The state first, so that the record in the transaction is the one after the cause.
        self.record.now, items = after(self.record.now, cause)
        if items:
            events = [self.state(item.key, item.value) if type(item) is Update else item for item in items]
            last = self.write(events, quiet=quiet)
            numbered = enumerate(items, last + 1 - len(items))
            return next((seq for seq, item in numbered if type(item) is not Update), last)
        self.unsaved = True
        return self.log.last_seq

    def relay(self, events: Iterable[Event | Recorded]) -> None:
        """Append what an agent sent.

        Only the leaf of the record changes, which a loaded log knows: the record is not written again for
        every event.
        """
        events = list(events)
        leaf = self.record.leaf_event_id
        try:
            rows, blobs = self._rows(events)
        except Exception:
            self.record.leaf_event_id = leaf  # nothing of them is written
            if len(events) < 2:
                raise
            # One event that cannot be encoded must not take the others with it.
            self._relay_apart(events)
            return
        self._relay(rows, blobs)

    def _relay_apart(self, events: Sequence[Event | Recorded]) -> None:
        """Write events one by one, so that a fault in one does not affect the others. Raises it at the
        end."""
        fault: Exception | None = None
        for event in events:
            try:
                self.relay((event,))
            except JournalError:
                raise
            except Exception as error:  # noqa: BLE001 - raised below
                fault = error
        if fault is not None:
            raise fault

    def _relay(self, rows: Sequence[Row], blobs: Sequence[Blob]) -> None:
        try:
            self._append(rows, None, blobs)
        except TooLarge as error:
            if len(rows) > 1:  # the others are stored
                for row in rows:
                    self._relay((row,), blobs)
                    blobs = ()
                return
            # The event is lost, but the conversation continues.
            self.logger.warning("event is too large to store", error=str(error))
            value = {"kind": "too_large", "detail": str(error)}
            self._append(self.rows([self.state("acp_dropped", value)]))
            for row in rows:
                self._abort(row.id, "too_large")
        else:
            if self._open_items:
                for row in rows:
                    self._open_items.pop(row.id, None)
                self._release_at_end()

    def _append(
        self, rows: Sequence[Row], record: RecordUpdate | None = None, blobs: Sequence[Blob] = ()
    ) -> int:
        """Append to the log, with what the agent sent since the last event."""
        lines = self.updates.pending() if rows else b""
        if not lines:
            return self.log.append(rows, record, blobs)
        rows[0].updates = lines
        try:
            last = self.log.append(rows, record, blobs)
        except Exception:
            rows[0].updates = b""  # the next event takes them
            raise
        self.updates.clear()
        return last

    def _rows(self, events: Iterable[Event | Recorded]) -> tuple[list[Row], list[Blob]]:
        # First, since the returned number must be that of the caller's last event.
        rows = [self._row(self._behind_event())] if self._behind else []
        blobs: list[Blob] = []
        for item in events:
            if isinstance(item, Recorded):
                if item.attachments:
                    blobs.extend(map(self._blob, item.attachments))
                rows.append(self._row(item.event) if item.draft is None else self._drafted(item.draft))
            else:
                rows.append(self._row(item))
        self._hide(rows)
        return rows, blobs

    def _blob(self, attachment: Attachment) -> Blob:
        data = attachment.body if attachment.masked else self.mask.content(attachment.body)
        self.record.blob_bytes += len(data)
        return Blob(id=attachment.blob_id, data=data, media_type=attachment.media_type)

    def rows(self, events: Iterable[Event]) -> list[Row]:
        """The rows that `write` would append, for a caller that stores them itself."""
        rows = [self._row(event) for event in events]
        self._hide(rows)
        return rows

    def save(self, *, quiet: bool = False) -> None:
        """Store the record as it is now, without an event; `quiet` as for `write`."""
        if not quiet:
            self.record.updated_at = timestamp_now()
        self.unsaved = False
        self.log.update_record(self._update())

    def _update(self) -> RecordUpdate:
        record = self.record
        return RecordUpdate(
            record=record.dump(),
            status=record.now.execution_status,
            title=record.title,
            updated_at=record.updated_at,
        )

    def _stamp(self) -> str:
        """The time of the next event."""
        now = timestamp_now()
        if now <= self.last_timestamp:
            if self._behind is None and _moment(self.last_timestamp) - _moment(now) > BEHIND:
                self._behind = True
            now = later(self.last_timestamp, now)
        self.last_timestamp = now
        return now

    def _behind_event(self) -> ConversationStateUpdateEvent:
        self._behind = False
        now, last = timestamp_now(), self.last_timestamp
        self.logger.warning("clock is behind the events", clock=now, last_event=last)
        detail = (
            "The last event is dated later than this machine's clock shows: the clock was set back. Events "
            "keep their order, so they are dated right after the last one until the clock has passed it. "
            "If the clock is right, begin a new conversation to have right dates."
        )
        return self.state(BEHIND_KEY, {"clock": now, "last_event": last, "detail": detail})

    def _row(self, event: Event) -> Row:
        """An event as it is written, with the secrets that it has."""
        timestamp = self._stamp()
        record = self.record
        parent = record.leaf_event_id if self.extended else None
        if not isinstance(event, ConversationStateUpdateEvent):
            record.leaf_event_id = event.id
        body = dump_stamped(event, record.start.vocabulary, timestamp, parent)
        if len(body) > EVENT_BYTES and event.source != "user":
            body = fitting(body)
        return Row(id=event.id, kind=event.kind, source=event.source, timestamp=timestamp, body=body)

    def _drafted(self, event: dict[str, Any]) -> Row:
        timestamp = self._stamp()
        record = self.record
        event["timestamp"] = timestamp
        if record.leaf_event_id is not None and self.extended:
            event["parent_id"] = record.leaf_event_id
        kind = event["kind"]
        if kind != STATE:
            record.leaf_event_id = event["id"]
        body = dumps(event)
        if len(body) > EVENT_BYTES:
            body = fitting(body)
        return Row(event["id"], kind, event["source"], timestamp, body)

    def _hide(self, rows: Sequence[Row]) -> None:
        """Mask the secrets in events, except in a person's messages; shorten the session's id, a bearer
        token. Most events have none, so they are searched together."""
        session_id = self._token()
        if not self.mask and session_id is None:
            return
        token = None if session_id is None else session_id.encode()
        if len(rows) > 1 and sum([len(row.body) for row in rows]) <= TOGETHER_BYTES:
            # Events contain no line feed, so that no match spans two of them.
            bodies = b"\n".join([row.body for row in rows])
            if not (self.mask.suspects(bodies) or (token is not None and token in bodies)):
                return
        for row in rows:
            # A person's own words stay as they were written.
            if row.source != "user":
                body = self.mask.document(row.body)
                if token is not None and token in body:
                    body = shorten_session_id(body.decode(), session_id).encode()
                row.body = body

    def state(self, key: str, value: Any) -> ConversationStateUpdateEvent:
        """A state update, to be written."""
        return ConversationStateUpdateEvent(id=new_event_id(), timestamp=UNDATED, key=key, value=value)

    def emit(self, effects: Sequence[Effect]) -> None:
        """Write, stream or record what the translator produced, in order."""
        recorded: list[Event | Recorded] = []
        for out in effects:
            if isinstance(out, Recorded):
                if self._open_items and self._waits(out):
                    continue
                recorded.append(out)
                if self.live is not None and self.live.shows:
                    if out.draft is not None:
                        self.live.ended(out.draft.get("tool_call_id", ""))
                    elif isinstance(out.event, ENDS):
                        self.live.ended(out.event.tool_call_id)
                if self._open_items and _id(out) in self._open_items:
                    if self.held or len(self._open_items) > 1:
                        self.relay(recorded)  # so that what waits for it is next
                        recorded = []
                    else:
                        self.held.streaming = False  # what follows waits no more, and is stored with it
                continue
            if isinstance(out, Attachment):
                self.log.append((), None, (self._blob(out),))
                continue
            if recorded:
                self.relay(recorded)
                recorded = []
            if isinstance(out, Delta | Opened):
                self.stream(out)
            elif isinstance(out, Aborted):
                self._abort(out.item_id, out.reason)
            elif isinstance(out, ToolOutput):
                if self.live is not None:
                    self.live.take(out)
            elif isinstance(out, Usage):
                self.record.reported.usage = usage.with_report(self.record.reported.usage, out)
                self.unsaved = True
            elif isinstance(out, Title):
                title = out.text[:TITLE_CHARS]
                if self.record.autotitle and self.record.title != title:
                    self.record.title = title
                    self.unsaved = True
                    state = Recorded(self.state("title", title))
                    if not (self._open_items and self._waits(state)):
                        self.write([state])
        if recorded:
            self.relay(recorded)

    # -- states that wait -----------------------------------------------------------------------------

    def _waits(self, item: Recorded) -> bool:
        """Whether this waits until the open items are events, since it is a state of the agent's."""
        held = self.held
        if held.streaming and held.hold(item, self.release_states):
            return True
        if _id(item) not in self._open_items:
            self.release_states()  # it stands in between itself, and comes after them
            held.streaming = False
        return False

    def _release_at_end(self) -> None:
        if not self._open_items:
            self.release_states()

    def release_states(self) -> None:
        """Write the states that wait. Raises JournalError."""
        if self.held:
            self.relay(self.held.give())

    # -- streamed, not journalled ---------------------------------------------------------------------

    def stream(self, item: Delta | Opened) -> None:
        """Publish a piece of a segment, to present subscribers and those that join before it ends."""
        self.held.streaming = True
        if isinstance(item, Opened):
            self._open_items.pop(item.item_id, None)
            if not item.alongside:
                self.abort_items("failed")  # its agent has forgotten them
            begun = Growing(item.item_id, self.log.last_seq, WIRE, item.attempt)
            self._open_items[item.item_id] = begun
            self.log.begin(begun, alongside=item.alongside)
            return
        growing = self._open_items.get(item.item_id)
        if growing is None:
            return  # it was aborted
        if item.call is not None and growing.wire is WIRE:
            growing.wire = StreamedWire(item.call)
        content = item.content
        if self.record.now.session_id != self.record.id:  # which is no secret
            content = shorten_session_id(content, self.record.now.session_id)
        growing.add(item.kind, inside(content), item.order, timestamp_now())
        self.log.grow(growing)

    def abort_items(self, reason: str) -> None:
        """Announce to subscribers that the open items will not become events.

        `reason` is `too_large` (the journal refuses the event) or `failed` (a bug in Ostler). Otherwise every
        item becomes an event, however its turn ends.
        """
        for item_id in list(self._open_items):
            self._abort(item_id, reason)

    def _abort(self, item_id: str, reason: str) -> None:
        item = self._open_items.pop(item_id, None)
        if item is not None:
            # Without text, its beginning was not announced.
            self.log.abandon(item, aborted(item, reason) if item.size else None)
            self._release_at_end()

    def publish(self, event: bytes) -> None:
        """Publish an event that is not journalled, such as a snapshot of the state."""
        self.log.publish(Frame(legacy=event, session=b'{"type":"transient","event":' + event + b"}"))


def _id(item: Recorded) -> str:
    return str(item.draft["id"]) if item.draft is not None else item.event.id
