"""What the journal needs of a store. SQLite's is in `storage`, PostgreSQL's in `postgres`.

The writer, the eraser and the copying know a `Store`, the logs know `Queries`, and both know errors by their
`Faults` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import attrs
import trio

from supervisor.journal.errors import JournalError, NotOwner
from supervisor.journal.rows import Blob, NewRecord, RecordUpdate, Stored
from supervisor.journal.trouble import Nature

T = TypeVar("T")


class Faults(Protocol):
    """How errors of a database are understood."""

    @property
    def errors(self) -> type[Exception]:
        """What the database raises."""

    def nature(self, error: BaseException) -> Nature:
        """Classify a failure of a write: it passes, is the write's own fault, or lasts."""

    def reason(self, error: BaseException) -> str:
        """Say why nothing can be written now, and what to do: for a failure that passes."""

    def own_fault(self, error: Exception) -> JournalError:
        """The error for the conversation whose write the database refused."""

    def is_damage(self, error: BaseException) -> bool:
        """Whether the data are damaged, for reads and writes alike."""

    def is_full(self, error: BaseException) -> bool:
        """Whether the disk was full."""


class LogHandle(Protocol):
    """The part of a conversation's log that the writer needs."""

    key: int | None
    """Set by the writer when the conversation is created; None before."""
    generation: int
    """How often the conversation had a new owner; set with the key. 0 where there is one server."""
    broken: JournalError | None
    """Set by the writer thread: why queued writes of this handle are dropped."""

    def settle(self, last_seq: int, ticket: int) -> None:
        """On the Trio side: note that everything up to here is durable."""

    def fail(self, error: JournalError) -> None:
        """On the Trio side: note that everything not durable is lost."""


@attrs.define(eq=False, kw_only=True)
class Append:
    """Rows, a record and blobs of one conversation; one transaction. `size` in bytes."""

    handle: LogHandle
    rows: Sequence[Stored]
    record: RecordUpdate | None
    blobs: Sequence[Blob]
    size: int
    last_seq: int
    ticket: int


@attrs.define(eq=False, kw_only=True)
class Call(Generic[T]):
    """An action with an answer. Once it is durable, `answer` and `settled` are set.

    `deletes` marks an action that frees space: it is tried even while nothing else can be written.
    """

    action: Callable[[Store], T]
    handle: LogHandle | None
    deletes: bool = False
    settled: trio.Event = attrs.field(factory=trio.Event)
    answer: T | None = None
    error: JournalError | None = None
    size: int = 0
    done: bool = False
    """Set by the writer thread."""

    def run(self, store: Store) -> None:
        """Run the action, and keep its answer."""
        self.answer = self.action(store)


Op = Append | Call[Any]


class Made(NamedTuple):
    """What a new conversation has from the store."""

    key: int
    generation: int


class Reserve(Protocol):
    """Space that is kept for deletions on a full disk."""

    def fill(self) -> None:
        """Reserve the space, unless that is done."""

    def release(self) -> bool:
        """Free it. Return whether there was any."""


class Store(Protocol):
    """The writing side. Synchronous: only the writer thread calls it, but for `close` after a failed start.

    Methods that write raise what `faults` understands; then nothing of them happened, or that cannot be known
    and does no harm when they are repeated.
    """

    epoch: int
    """The number of this opening of the journal."""
    owner: int | None
    """The server that may write what this store writes; None where there is only one."""
    keeps_updates: bool
    """Whether the updates of events are stored."""
    slice_seconds: float
    """Seconds that one transaction of what erases or copies may take: it delays all other writes."""
    erase_seconds: float | None
    """Seconds after which to look again for what others left to erase; None: there are no others."""

    @property
    def faults(self) -> Faults:
        """How its errors are understood."""

    @property
    def reserve(self) -> Reserve:
        """Its reserved space."""

    def close(self) -> None:
        """Close it."""

    def check_place(self) -> None:
        """Check, before a write, that the database is where it was; connect again if need be."""

    def be_patient(self, patient: bool) -> None:
        """Set how long to wait for locks: the usual time, or a moment during trouble."""

    def probe(self) -> None:
        """Write something without effect. Raises if nothing can be written."""

    def parts(self, ops: list[Op]) -> Iterable[list[Op]]:
        """Cut a batch into parts that are each a transaction, in their order. Lazy."""

    def write(self, ops: Sequence[Op]) -> None:
        """Write a part in one transaction. A handle that may no longer be written gets its `broken`."""

    def committed(self, size: int, conversations: int = 1) -> None:
        """Note that a transaction of about `size` bytes was committed."""

    def checkpoint(self) -> None:
        """Free the space of what is written twice, if that is possible now."""

    def create(self, first: NewRecord) -> Made | None:
        """Add a conversation. Return None when the id is taken."""

    def bury(self, conversation_id: str) -> bool | NotOwner:
        """Remove a conversation from everything that is listed and read. Return whether there was one.

        Its id is free from then on. Its events and blobs, which refer to its key, are left to `erase`.
        """

    def erase(self, rows: int) -> int | None:
        """Remove up to `rows` events, or a matching number of blobs, of one buried conversation.

        Return how many rows were removed; None when nothing of any conversation is left.
        """

    def begin_copy(self) -> int:
        """Allocate the key of a conversation that is copied step by step, and return it.

        The copy is invisible before `end_copy`. Until then it counts as deleted: when the process dies in
        between, another one removes what was copied.
        """

    def copy_events(self, source: int, key: int, first: int, last: int, down: int) -> None:
        """Copy the events from `first` to `last` of a conversation, their numbers lowered by `down`."""

    def copy_blobs(self, source: int, key: int, after: str, most: int) -> str | None:
        """Copy the next `most` blobs in the order of their ids. Return the last id, None at the end."""

    def end_copy(self, key: int, first: NewRecord, rows: Sequence[Stored]) -> Made | None:
        """Make the copy a conversation, with further events at its end. Return None when the id is taken."""

    def forget_copy(self, key: int) -> None:
        """Let `erase` remove the copy, unless it has become a conversation."""


def merged(earlier: RecordUpdate | None, later: RecordUpdate) -> RecordUpdate:
    """The one update that does what both do."""
    if earlier is None or later.title is not None:
        return later
    return attrs.evolve(later, title=earlier.title)
