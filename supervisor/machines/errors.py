"""What keeps this server from serving a conversation, or from serving at all."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class Place:
    """A server, as others see it. `address`: the URL where it listens. `state`: alive, draining, left or
    dead."""

    server: int
    name: str
    address: str
    state: str


class OwnedElsewhere(Exception):
    """Another server has the conversation, and is alive: ask it."""

    def __init__(self, conversation_id: str, place: Place) -> None:
        super().__init__(f"The server {place.name} has the conversation {conversation_id}.")
        self.conversation_id = conversation_id
        self.place = place


class NotNow(Exception):
    """This server cannot serve the conversation at this moment; that passes. The message is for clients."""


class Unclaimed(NotNow):
    """No server has the conversation, and this one may not take it now, since its own lease has ended."""

    def __init__(self, conversation_id: str) -> None:
        super().__init__(f"No server has the conversation {conversation_id} at this moment. Ask again.")
        self.conversation_id = conversation_id


class Reserved(NotNow):
    """This server was started for one conversation, and takes no other."""

    def __init__(self, conversation_id: str) -> None:
        what = f"the conversation {conversation_id} alone" if conversation_id else "no conversation now"
        super().__init__(f"This server takes {what}. Ask another one.")


class NotProvided(NotNow):
    """No server could be started for a conversation. The message has the reason."""


class DatabaseAway(NotNow):
    """The database does not answer, so that this server cannot know who has a conversation. `reason` is for
    logs: it names hosts."""

    def __init__(self, reason: str) -> None:
        super().__init__("The database that the servers share cannot be asked now. Try again later.")
        self.reason = reason


class MachinesRefused(Exception):
    """This server cannot join the others. The message is one line for the terminal, and names the setting."""
