"""What a page of all conversations shows of each: a slim row, and the feed of what changes in the rows.

The feed costs nothing while no one follows it: rows are made when the first follower comes and dropped some
time after the last one has left. A follower holds one number, so a slow one costs no memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

import attrs
import orjson
import structlog
import trio

from supervisor.agents.containment.marker import take_snapshot
from supervisor.conversations.recording.permission_log import STATE as PERMISSIONS
from supervisor.conversations.recording.usage import spent
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.state.status import AgentPhase
from supervisor.conversations.views import agent_state
from supervisor.events import new_event_id, timestamp_now
from supervisor.journal.errors import JournalError, JournalUnavailable, again
from supervisor.journal.rows import RecordOrder
from supervisor.tight import tight

if TYPE_CHECKING:
    from supervisor.conversations.agent.kind import AgentKind
    from supervisor.conversations.conversation import Conversation
    from supervisor.journal.journal import Journal
    from supervisor.journal.rows import Record

log = structlog.get_logger(__name__)

TICK_SECONDS: Final = 0.25
"""How often changes are looked for. A person sees no difference below this, and looking at 1,000 loaded
conversations takes a millisecond."""

MEASURE_SECONDS: Final = 2.0
"""How often memory and processor time of the agents are measured: each time reads `/proc` once for all."""

POLL_SECONDS: Final = 1.0
"""How often the journal is asked for what other servers changed."""

OVERLAP: Final = timedelta(seconds=5)
"""How far back it is asked for that: clocks of servers differ, and a change may be stored after a later
one."""

LATEST_PAGES: Final = 20
"""The most pages of the latest changes that are read at one look. There are more when this server's clock is
far behind, or when thousands of conversations change within seconds: those are found in turn."""

KEPT_SECONDS: Final = 60.0
"""How long the rows are kept after the last follower has left, for one that reconnects."""

GONE_MAX: Final = 10_000
"""Deleted conversations that are remembered for followers that come back; before that they get all rows."""

PAGE: Final = 100
"""Conversations that are read from the journal at once, some milliseconds."""

TITLE_CHARS: Final = 200
"""Characters of a title or question in a row."""

OPTIONS_BYTES: Final = 2048
"""JSON of the options of a permission request. With more the row has none, and the person opens the
conversation."""

ROW_BYTES: Final = 8 * 1024
"""What a row takes at most as JSON, as long as its directory has an ordinary name; most take half a KiB."""


@attrs.frozen(kw_only=True)
class Live:
    """What only a loaded conversation knows. Memory in bytes; `cpu` in processors, 1.0 is one of them.
    `progress` is the step of an installation."""

    state: AgentPhase
    progress: str | None = None
    queue: int = 0
    restarts: int = 0
    last_exit: str | None = None
    rss_bytes: int | None = None
    cpu: float | None = None
    processes: int | None = None
    last_event_at: str | None = None


STORED: Final = Live(state=AgentPhase.NONE)
"""Of a conversation that is not loaded: it has no process and no work."""


def row(kind: AgentKind, record: ConversationRecord, live: Live = STORED) -> dict[str, Any]:
    """The row of one conversation with this kind of agent, about 500 bytes of JSON. Pure.

    `waits` is the oldest permission request that waits, with the agent's options, and the number of all.
    """
    reported = record.reported.agent_state
    waiting = [each for each in reported.get(PERMISSIONS, ()) if each["status"] == "waiting"]
    used = spent([kind.usage()])
    return {
        "id": record.id,
        "title": _cut(record.title),
        "agent": record.agent.acp_server,
        "agent_name": _cut(reported.get("acp_agent_name")),
        "model": _cut(record.reported.current_model),
        "state": live.state,
        "progress": live.progress and live.progress[:TITLE_CHARS],
        "execution_status": record.now.execution_status,
        "workspace": record.start.working_dir,
        "parent_id": record.start.parent_conversation_id,
        "created_at": record.start.created_at,
        "updated_at": record.updated_at,
        "last_event_at": live.last_event_at or record.updated_at,
        "waits": _waits(waiting),
        "queue": live.queue,
        "restarts": live.restarts,
        "last_exit": live.last_exit,
        "memory": reported.get("memory"),
        "rss_bytes": live.rss_bytes,
        "cpu": live.cpu,
        "processes": live.processes,
        "tokens": used["tokens"],
        "costs": used["costs"],
    }


def _earlier(timestamp: str) -> str:
    """That time less OVERLAP, in the form of records; empty for an empty one."""
    if not timestamp:
        return ""
    moment = datetime.fromisoformat(timestamp) - OVERLAP
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _cut(text: str | None) -> str | None:
    return text and text[:TITLE_CHARS]


def _waits(waiting: list[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not waiting:
        return None
    first = waiting[0]
    fits = len(orjson.dumps(first["options"])) <= OPTIONS_BYTES
    return {
        "request_id": first["id"],
        "title": first["title"][:TITLE_CHARS],
        "tool_kind": first["tool_kind"],
        "security_risk": first["security_risk"],
        "options": first["options"] if fits else [],
        "number": len(waiting),
    }


@attrs.frozen
class Line:
    """A row as it was sent last: the number of its change, its fields, and its JSON. `source`: the hash of
    the stored record that it is made from; None for a loaded conversation."""

    version: int
    shown: Mapping[str, Any]
    body: bytes
    source: int | None = None


@attrs.frozen
class Changed:
    """What came after a version. `all`: that version is unknown here, and the follower drops what it has."""

    version: int
    lines: list[Line]
    gone: list[str]
    all: bool = False


Loaded = Callable[[], Iterable["Conversation"]]

Kinds = Callable[[ConversationRecord], "AgentKind"]


class Overview:
    """The rows of all conversations, and the numbers of their changes.

    `loaded` returns the conversations in memory, `kinds` the kind of an agent; `prepare` imports what they
    need; `hidden` says whose rows are left out. `shared`: other servers have conversations of the journal,
    too, so it is asked for what they changed. Its task runs in `nursery` while there are followers, and for
    `KEPT_SECONDS` afterwards.
    """

    def __init__(
        self,
        journal: Journal,
        loaded: Loaded,
        kinds: Kinds,
        prepare: Callable[[], Awaitable[None]],
        nursery: trio.Nursery,
        hidden: Callable[[str], bool] = lambda _: False,
        shared: bool = False,
    ) -> None:
        self._journal = journal
        self._loaded = loaded
        self._kinds = kinds
        self._prepare = prepare
        self._nursery = nursery
        self._hidden = hidden
        self._shared = shared
        self._followers = 0
        self._running = False
        self._reset()

    def _reset(self) -> None:
        self.epoch = new_event_id()
        """Names this numbering: versions of another one mean nothing here."""
        self.version = 0
        self._lines: OrderedDict[str, Line] = OrderedDict()
        """By id, the one that changed last at the end."""
        self._marks: dict[str, tuple[object, ...]] = {}
        self._gone: OrderedDict[str, int] = OrderedDict()
        self._forgotten = 0
        self._cpu: dict[str, tuple[float, float, float | None]] = {}
        self._measured = -MEASURE_SECONDS
        self._known: set[str] = set()
        """The conversations that were loaded at the last look."""
        self._unloaded: set[str] = set()
        """Those that may have left the memory since, and whose rows may be out of date."""
        self._polled = -POLL_SECONDS
        self._latest = ""
        """The latest `updated_at` of a record that was read."""
        self._turn: str | None = None
        """The page of all conversations that is read next; None: the first one."""
        self._missed: set[str] = set()
        """The rows whose conversations no page of this turn has shown yet."""
        self._unreadable: set[int] = set()
        """The hashes of records that make no row, and were reported."""
        self._problem: JournalError | None = None
        self._ready = trio.Event()
        self._moved = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def following(self) -> AsyncIterator[Overview]:
        """Keep the rows up to date while the block runs; they are complete when it begins.

        Raises JournalError if the conversations cannot be read. Cancellation ends the wait.
        """
        self._followers += 1
        try:
            if not self._running:
                self._running = True
                self._nursery.start_soon(self._run)
            await self._ready.wait()
            if self._problem is not None:
                raise again(self._problem)
            yield self
        finally:
            self._followers -= 1

    async def changed(self, version: int) -> None:
        """Wait until there is a later version."""
        await trio.lowlevel.checkpoint()
        while self.version <= version:
            await self._moved.park()

    def since(self, version: int, epoch: str | None) -> Changed:
        """What changed after this version; everything for another epoch, or a version that is too old."""
        if epoch != self.epoch or not self._forgotten <= version <= self.version:
            return Changed(self.version, list(self._lines.values()), [], all=True)
        later = takewhile(lambda line: line.version > version, reversed(self._lines.values()))
        gone = takewhile(lambda item: item[1] > version, reversed(self._gone.items()))
        return Changed(self.version, list(later), [each for each, _ in gone])

    def deleted(self, conversation_id: str) -> None:
        """Note that a conversation is gone."""
        self._marks.pop(conversation_id, None)
        self._cpu.pop(conversation_id, None)
        if self._lines.pop(conversation_id, None) is None and not self._running:
            return
        # Also without a row: its page may have been read, and its row be made in a moment.
        self.version += 1
        self._gone[conversation_id] = self.version
        while len(self._gone) > GONE_MAX:
            self._forgotten = self._gone.popitem(last=False)[1]
        self._moved.unpark_all()

    def restored(self, conversation: Conversation) -> None:
        """Show a conversation again after `deleted`."""
        self._gone.pop(conversation.id, None)
        if self._ready.is_set():
            self._put(row(conversation.kind, conversation.record, self._live(conversation)))
            self._moved.unpark_all()

    def unloaded(self, conversation_id: str) -> None:
        """Note that a conversation may leave the memory with changes that were not looked at yet."""
        if self._running:
            self._unloaded.add(conversation_id)

    async def _run(self) -> None:
        # A fault here must not end the server, whose nursery this task is in.
        try:
            await self._follow()
        except JournalError as error:
            self._problem = error
            log.warning("conversations cannot be read for the overview", error=str(error))
        except Exception as error:
            self._problem = JournalUnavailable(f"the overview failed: {error}")
            log.exception("overview failed")
        finally:
            # Those that wait are woken by the event that they wait for; the next one begins again.
            ready, problem = self._ready, self._problem
            self._running = False
            self._reset()
            self._problem = problem
            ready.set()

    async def _follow(self) -> None:
        self._problem = None
        await self._prepare()
        await self._read()
        self._look()
        self._ready.set()
        left = trio.current_time()
        while self._followers or trio.current_time() < left + KEPT_SECONDS:
            if self._followers:
                left = trio.current_time()
                await self._measure()
                self._look()
                await self._read_unloaded()
                if self._shared and trio.current_time() >= self._polled + POLL_SECONDS:
                    self._polled = trio.current_time()
                    await self._read_changed()
            await trio.sleep(TICK_SECONDS)

    async def _read_unloaded(self) -> None:
        """Make the rows of conversations that left the memory again, from what is stored."""
        loaded = {each.id for each in self._loaded()}
        wanted = [each for each in self._unloaded if each in self._lines and each not in loaded][:PAGE]
        self._unloaded.difference_update(loaded, wanted)
        if not wanted:
            return
        try:
            records = await self._journal.get_records(wanted)
        except JournalError:
            self._unloaded.update(wanted)  # the rows that there are stay; these are read at a later look
            return
        before = self.version
        for stored in records:
            if stored is not None and stored.id in self._lines:
                self._marks.pop(stored.id, None)
                self._put_stored(stored)
        if self.version > before:
            self._moved.unpark_all()

    async def _read_changed(self) -> None:
        """Make the rows again that other servers changed, and drop those of conversations that they
        deleted."""
        before = self.version
        try:
            await self._read_latest()
            await self._read_in_turn()
        except JournalError:
            return  # the rows that there are stay; the next look finds what changed
        if self.version > before:
            self._moved.unpark_all()

    async def _read_latest(self) -> None:
        """Read what changed last, as far as the clocks of servers agree."""
        # A clock that was ahead leaves a time that no change is later than: then this server's clock counts.
        since, page = _earlier(min(self._latest, timestamp_now())), None
        for _ in range(LATEST_PAGES):
            version = self.version
            found = await self._journal.search_records(
                order=RecordOrder.UPDATED_AT_DESC, page=page, limit=PAGE
            )
            fresh = [each for each in found.items if each.updated_at >= since]
            self._put_others(fresh, version)
            page = found.next_page_id
            if page is None or len(fresh) < len(found.items):
                return

    async def _read_in_turn(self) -> None:
        """Read a page of all conversations, the next one at each look. So every change is found at last, also
        one that a wrong clock dates too early, and what is gone."""
        if self._turn is None:
            self._missed = set(self._lines)
        version = self.version
        found = await self._journal.search_records(page=self._turn, limit=PAGE)
        self._put_others(found.items, version)
        self._missed.difference_update([each.id for each in found.items])
        self._turn = found.next_page_id
        if self._turn is None:
            self._missed.difference_update([each.id for each in self._loaded()])
            for each in self._missed & self._lines.keys():
                self.deleted(each)

    def _put_others(self, records: Iterable[Record], version: int) -> None:
        """Make rows of records that were read after this version; some may be gone meanwhile."""
        loaded = {each.id for each in self._loaded()}
        for stored in records:
            gone = self._gone.get(stored.id, 0) > version
            if stored.id not in loaded and not gone and not self._hidden(stored.id):
                self._put_stored(stored)

    async def _read(self) -> None:
        """Make the rows of what is stored; those of loaded conversations replace them."""
        page: str | None = None
        while True:
            found = await self._journal.search_records(page=page, limit=PAGE)
            for stored in found.items:
                known = stored.id in self._lines or stored.id in self._gone
                if not known and not self._hidden(stored.id):
                    self._put_stored(stored)
            await trio.lowlevel.checkpoint()
            page = found.next_page_id
            if page is None:
                return

    def _put_stored(self, stored: Record) -> None:
        self._latest = max(self._latest, stored.updated_at)
        source, known = hash(stored.record), self._lines.get(stored.id)
        if source in self._unreadable or (known is not None and known.source == source):
            return
        try:
            record = ConversationRecord.load(stored.record)
            self._put(row(self._kinds(record), record), source)
        except Exception as error:  # noqa: BLE001 - one record that cannot be read hides no other
            self._unreadable.add(source)
            log.warning("conversation is not shown", conversation_id=stored.id, error=str(error))

    async def _measure(self) -> None:
        """Measure the agents that run, all in one look at the processes."""
        now = trio.current_time()
        live = [each for each in self._loaded() if each.presence is not None and each.presence.live]
        if now < self._measured + MEASURE_SECONDS or not live:
            return
        self._measured = now
        seen = await take_snapshot()
        for each in live:
            if (agent := each.presence) is not None:
                await agent.measure(seen)
                self._note_cpu(each.id, now, agent.cpu_seconds)

    def _note_cpu(self, conversation_id: str, now: float, seconds: float) -> None:
        before = self._cpu.get(conversation_id)
        share = None
        if before is not None and now > before[0]:
            # Below the last figure: another process.
            share = round(max(0.0, seconds - before[1]) / (now - before[0]), 3)
        self._cpu[conversation_id] = now, seconds, share

    def _look(self) -> None:
        """Find the loaded conversations that changed, by a few figures of each; their rows are made again."""
        before, known = self.version, self._known
        self._known = set()
        for each in self._loaded():
            self._known.add(each.id)
            live = self._live(each)
            record = each.record
            mark = (
                live,
                record.now.execution_status,
                record.title,
                record.updated_at,
                record.reported.current_model,
                id(record.reported.usage),
            )
            if self._marks.get(each.id) != mark and not self._hidden(each.id) and not each.closed:
                self._marks[each.id] = mark
                self._put(row(each.kind, record, live))
        self._unloaded |= known - self._known
        if self.version > before:
            self._moved.unpark_all()

    def _live(self, conversation: Conversation) -> Live:
        agent = conversation.presence
        last = conversation.recorder.last_timestamp or None
        state = agent_state(conversation)
        if agent is None:
            return Live(state=state, queue=len(conversation.queue.waiting), last_event_at=last)
        known = self._cpu.get(conversation.id)
        return Live(
            state=state,
            progress=agent.installing,
            queue=len(conversation.queue.waiting),
            restarts=agent.restarts.count,
            last_exit=agent.last_exit,
            rss_bytes=agent.rss_bytes or None if agent.live else None,
            cpu=known[2] if known is not None and agent.live else None,
            processes=agent.processes or None if agent.live else None,
            last_event_at=last,
        )

    def _put(self, shown: dict[str, Any], source: int | None = None) -> None:
        known = self._lines.get(shown["id"])
        if known is not None and known.shown == shown:
            self._lines[shown["id"]] = attrs.evolve(known, source=source)
            return
        self.version += 1
        self._gone.pop(shown["id"], None)  # made again under the same id
        self._lines[shown["id"]] = Line(self.version, shown, tight(orjson.dumps(shown)), source)
        self._lines.move_to_end(shown["id"])
