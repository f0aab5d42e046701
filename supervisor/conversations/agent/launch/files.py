"""The files of agents in the data directory: who owns them, and when they go."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import structlog

from supervisor.agents.catalog import Descriptor
from supervisor.agents.homes.shared_logins import SharedLogins
from supervisor.conversations.agent.launch.homes import OWN_PATHS, Homes
from supervisor.conversations.state.record import ConversationRecord
from supervisor.patience import in_time

log = structlog.get_logger(__name__)

WARM_PREFIX: Final = "spare-"
"""Prefix, in the data directory, of the directories in which warm processes are started."""

UNSETTLED_PREFIX: Final = "unsettled-"
"""Prefix, in the data directory, of marker files named after conversations. A marker means that the journal
decides whether the conversation's data stays: the two cannot change atomically."""

CONVERSATION_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The names of conversations' directories. Agents can write into the data directory; other names are
ignored."""


@attrs.frozen
class AgentFiles:
    """The files of one server's agents, below `data`: each conversation's directory, the markers of those
    that are not settled, and the logins that conversations share."""

    data: Path
    homes: Homes
    logins: SharedLogins

    async def forget(self, conversation_id: str) -> None:
        """Remove an agent's data for a conversation. In threads that can be given up.

        What cannot be removed (an agent can use chmod) stays, and is logged.
        """
        try:
            await self.logins.forget(conversation_id)
        except OSError as error:
            log.warning("cannot remove a login", conversation_id=conversation_id, error=str(error))
        try:
            await self.homes.remove(conversation_id)
        except OSError as error:  # PathTimeout is one
            log.warning("agent's data is not removed yet", conversation_id=conversation_id, error=str(error))
        else:
            await self.settle(conversation_id)

    async def unsettle(self, conversation_id: str) -> None:
        """Write a marker: if the server dies, the next one removes the data of this conversation, unless the
        journal has the conversation. In a thread. Cancellation waits for it, within a deadline.

        If the marker cannot be written, the data stays after a kill.
        """
        mark = self.data / f"{UNSETTLED_PREFIX}{conversation_id}"

        def note() -> None:
            self.data.mkdir(parents=True, exist_ok=True, mode=0o700)
            mark.touch(mode=0o600)

        await self._mark(conversation_id, note)

    async def settle(self, conversation_id: str) -> None:
        """Remove the marker of `unsettle`; the rest as there."""
        mark = self.data / f"{UNSETTLED_PREFIX}{conversation_id}"
        await self._mark(conversation_id, partial(mark.unlink, missing_ok=True))

    async def _mark(self, conversation_id: str, change: Callable[[], None]) -> None:
        limiter = OWN_PATHS.of(conversation_id)
        try:
            await in_time(change, "to note whose an agent's data is", limiter=limiter, shield=True)
        except OSError as error:
            log.warning(
                "cannot note whose an agent's data is", conversation_id=conversation_id, error=str(error)
            )

    async def unsettled(self) -> list[str]:
        """The ids of the conversations whose markers an earlier server left."""
        return [name for name in await self._names(UNSETTLED_PREFIX) if CONVERSATION_ID.fullmatch(name)]

    async def hand_down(
        self, record: ConversationRecord, descriptor: Descriptor, conversation_id: str, *, sessions: bool
    ) -> bool:
        """Copy the data of this conversation's agent that a fork's agent needs. The source must have no turn;
        `sessions`: also copy those in a data directory. Returns whether everything was copied.

        Cancellation waits for the copying to end, which is bounded (`copy_data`).
        """
        try:
            return await self.homes.hand_down(record, descriptor, conversation_id, sessions=sessions)
        except OSError as error:
            log.warning("cannot copy an agent's data for a fork", conversation_id=record.id, error=str(error))
            return False

    async def forget_warm(self) -> None:
        """Remove the files of an earlier server's warm processes. In threads that can be given up."""
        for name in await self._names(WARM_PREFIX):
            await self.forget(f"{WARM_PREFIX}{name}")

    async def _names(self, prefix: str) -> list[str]:
        """The names in the data directory that have this prefix, without the prefix."""

        def left() -> list[str]:
            return [entry.name.removeprefix(prefix) for entry in self.data.glob(f"{prefix}*")]

        try:
            return await in_time(left, "to find what was left", limiter=OWN_PATHS.of(prefix))
        except OSError as error:
            log.warning("cannot find what an earlier server left", what=prefix, error=str(error))
            return []
