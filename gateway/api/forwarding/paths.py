"""Where a path is: on the server that has a conversation in that directory."""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING

from quart import has_request_context, has_websocket_context, request, websocket

from gateway.api.forwarding.owners import ALIVE
from gateway.api.forwarding.requests import from_server
from supervisor.machines.errors import OwnedElsewhere

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.api.services import Services


async def look_elsewhere(services: Services, path: str) -> None:
    """Raise OwnedElsewhere where another server, and not this one, has a conversation in whose working
    directory the path is; of several, the innermost directory counts.

    For a request of another server it does nothing: that one has looked.
    """
    assert services.machines is not None
    asked = request if has_request_context() else websocket if has_websocket_context() else None
    if asked is None or from_server(asked):
        return
    elsewhere: OwnedElsewhere | None = None
    for conversation_id in _in_its_directory(await services.known.by_conversation(), path):
        place = await services.machines.place_of(conversation_id)
        if place is None or place.state not in ALIVE:
            continue
        if place.server == services.machines.server:
            return
        elsewhere = elsewhere or OwnedElsewhere(conversation_id, place)
    if elsewhere is not None:
        raise elsewhere


MOST_ASKED = 20
"""Conversations in one directory that are looked up, the newest first: each is a query."""


def _in_its_directory(directories: Mapping[str, str], path: str) -> list[str]:
    """The conversations with the innermost of the directories that the path is in. Pure."""
    path = os.path.normpath(path)
    found: dict[str, list[str]] = {}
    for conversation_id, directory in directories.items():
        directory = os.path.normpath(directory)
        if path == directory or path.startswith(f"{directory.rstrip('/')}/"):
            found.setdefault(directory, []).append(conversation_id)
    return found[max(found, key=len)][:MOST_ASKED] if found else []
