"""The home directory of a conversation's agent: the user's, or a private one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from supervisor.agents.catalog import OWN, Descriptor
from supervisor.agents.homes.data_dir import HOME_LINKS, make_directory
from supervisor.agents.homes.home import Furnishing, Home, copy_data, furnish_home, remove_tree, settle_home
from supervisor.agents.homes.short_path import remove_short_path, short_path, short_place
from supervisor.conversations.state.record import ConversationRecord
from supervisor.patience import KeyedLimiters, in_time
from supervisor.settings.agent import AgentSettings

TEMPORARY: Final = "tmp"
"""Subdirectory of the conversation's directory for the agent's temporary files, removed after its process."""

REMOVE_SECONDS: Final = 30.0
"""Seconds to wait for the removal of an agent's data: some ten thousand files. The removal then continues in
its thread."""

OWN_PATHS: Final = KeyedLimiters(2)
"""Concurrent threads for the paths of one conversation, since its agent can make them hang."""


@attrs.frozen
class OwnHome:
    """A private home that is ready, and the environment variables that point to it."""

    home: Home
    environment: Mapping[str, str]

    async def settle(self) -> None:
        """After the agent's end: remove its temporary files, and copy back the logins that it replaced.

        Raises OSError.
        """
        directory = self.home.path.parent
        leave = partial(_leave, directory)
        limiter = OWN_PATHS.of(directory.name)
        await in_time(leave, "to remove temporary files", limiter=limiter, seconds=REMOVE_SECONDS)
        await settle_home(self.home)


@attrs.frozen
class Homes:
    """The homes of one server's conversations, below `data`: they stay until their conversation is deleted.

    `real` is the home of the user who runs the server. Owns files only.
    """

    data: Path
    real: Path | None

    async def open(self, record: ConversationRecord, descriptor: Descriptor) -> OwnHome | None:
        """Create or refresh the agent's private home; None for an agent that uses the user's.

        Raises OSError. Cancellation waits for the writing to end.
        """
        spec = furnishing(record.agent, descriptor)
        if spec is None:
            return None
        directory = self.data / record.id
        home = await furnish_home(directory / descriptor.key, self.real, spec, avoid=self.data.parent)
        ready = partial(_make_temporary, directory)
        limiter = OWN_PATHS.of(record.id)
        short, emptied = await in_time(ready, "to empty the directory of temporary files", limiter=limiter)
        temporary = str(emptied)
        variables = {"HOME": str(short / descriptor.key), "TMPDIR": temporary, "TMUX_TMPDIR": temporary}
        return OwnHome(home, variables)

    async def hand_down(
        self, record: ConversationRecord, descriptor: Descriptor, conversation_id: str, *, sessions: bool
    ) -> bool:
        """Copy the source agent's data for a fork's agent: its private home within the bounds, else with
        `sessions` those in its data directory; no login that Ostler put there. Returns whether all sessions
        were copied.

        Raises OSError. Cancellation waits for the copying to end.
        """
        source = self.data / record.id / descriptor.key
        whole = furnishing(record.agent, descriptor) is not None
        if not source.is_dir() or not (whole or sessions):
            return True
        names = ("",) if whole else descriptor.sessions
        logins = [spec.path for spec in descriptor.file_secrets]
        return whole | await copy_data(source, self.data / conversation_id / descriptor.key, names, logins)

    async def remove(self, conversation_id: str) -> None:
        """Remove the data of a conversation's agent. In a thread, which is abandoned if it hangs.

        Raises OSError (PathTimeout is one).
        """
        remove = partial(_remove, self.data / conversation_id)
        limiter = OWN_PATHS.of(conversation_id)
        await in_time(remove, "to remove the data", limiter=limiter, seconds=REMOVE_SECONDS)


def furnishing(settings: AgentSettings, descriptor: Descriptor) -> Furnishing | None:
    """The contents of an agent's private home; None if it uses the user's.

    The settings override the descriptor. The home of an isolated agent has only the git identity, and what
    the settings name.
    """
    isolated = settings.acp_isolate_data_dir
    kind = settings.acp_home or descriptor.home_kind
    if isolated and not descriptor.data_dir_env:
        kind = OWN  # only HOME determines where its data is
    if kind != OWN or descriptor.module is not None:
        return None
    links, copies = settings.acp_home_links, settings.acp_home_copies
    if isolated:
        return Furnishing(links=(*HOME_LINKS, *links), copies=copies, bare=True)
    home = descriptor.home
    if home is None:
        return Furnishing(links=links, copies=copies)
    return Furnishing(private=home.private, links=(*home.links, *links), copies=(*home.copies, *copies))


def _make_temporary(directory: Path) -> tuple[Path, Path]:
    """A path for the conversation's directory that is short enough for sockets, and an empty directory in
    it."""
    temporary = short_place(directory / TEMPORARY)
    remove_tree(temporary)
    make_directory(temporary)
    return short_path(directory), temporary


def _remove(directory: Path) -> None:
    _leave(directory)
    remove_tree(directory)


def _leave(directory: Path) -> None:
    """Remove what is outside the conversation's directory, or useless without an agent."""
    temporary = short_place(directory / TEMPORARY)
    remove_tree(temporary)
    with suppress(OSError):
        if temporary.parent != directory:
            temporary.parent.rmdir()
    remove_short_path(directory)
