"""States that wait until what is streamed has become its event.

Clients of the events socket put streamed pieces into a preview, which the event of the same text replaces.
The web UI takes a state between the two for the end of the preview, and shows the text twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import structlog
import trio

from supervisor.conversations.recording.effects import STATE, Recorded
from supervisor.events import ConversationStateUpdateEvent
from supervisor.events.payload import dumps
from supervisor.journal.errors import JournalError

log = structlog.get_logger(__name__)

HELD_MAX: Final = 100
"""The most states that are held: as many as one page of events has."""

HELD_BYTES: Final = 1024 * 1024
"""The most bytes of their values and originals, about: four of the largest states of an external agent."""

HELD_SECONDS: Final = 30.0
"""The longest that a state is held: a model that streams for longer is not to hide what its agent reports."""

AT_ONCE: Final = frozenset(
    {"acp_dropped", "action_risk", "confirmation", "model_call_failed", "updates_dropped"}
)
"""The keys of states that are never held: they report faults, or what a person decides by."""

LAST_COUNTS: Final = frozenset({"stats"})
"""The keys of states that replace the one before them: sums, which change with each request to a model."""


@attrs.define(eq=False)
class HeldStates:
    """The states of one conversation that wait. `release` writes them: called when the time is over."""

    nursery: trio.Nursery | None = None
    """Where the timer runs; without it nothing limits the time."""
    streaming: bool = False
    """Whether a piece was streamed, and no event has come since."""
    _states: list[tuple[str, Recorded, int]] = attrs.field(factory=list)
    """With their keys and weights in bytes."""
    _bytes: int = 0
    _timer: trio.CancelScope | None = None

    def __bool__(self) -> bool:
        return bool(self._states)

    def hold(self, item: Recorded, release: Callable[[], None]) -> bool:
        """Hold an event if it is a state that may wait. Returns False for any other."""
        key = _key(item)
        if key is None or key in AT_ONCE:
            return False
        if key in LAST_COUNTS:
            for at, (other, _, weight) in enumerate(self._states):
                if other == key:
                    del self._states[at]
                    self._bytes -= weight
                    break
        weight = len(dumps(item.draft if item.draft is not None else item.event.value))  # type: ignore[attr-defined]
        weight += sum(len(each.body) for each in item.attachments)
        self._states.append((key, item, weight))
        self._bytes += weight
        if len(self._states) > HELD_MAX or self._bytes > HELD_BYTES:
            release()
        elif self._timer is None and self.nursery is not None:
            self._timer = trio.CancelScope()
            self.nursery.start_soon(self._time_out, self._timer, release)
        return True

    def give(self) -> list[Recorded]:
        """Hand over what is held, in order of arrival."""
        states, self._states, self._bytes = self._states, [], 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return [item for _, item, _ in states]

    async def _time_out(self, timer: trio.CancelScope, release: Callable[[], None]) -> None:
        with timer:
            await trio.sleep(HELD_SECONDS)
            try:
                release()
            except JournalError:
                pass  # the conversation is deleted, or nothing can be stored any more
            except Exception:
                log.exception("cannot record the states that were held")


def _key(item: Recorded) -> str | None:
    """The key of a state; None for another event."""
    if item.draft is not None:
        return str(item.draft["key"]) if item.draft["kind"] == STATE else None
    return item.event.key if isinstance(item.event, ConversationStateUpdateEvent) else None
