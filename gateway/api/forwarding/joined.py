"""The events of the commands of all servers, on one socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
import trio
from quart import websocket
from trio_websocket import ConnectionClosed

from gateway.api.forwarding.fan_out import others, place
from gateway.api.forwarding.owners import Unreached
from gateway.api.forwarding.sockets import connected
from gateway.api.sockets.websocket import Closed

if TYPE_CHECKING:
    from gateway.api.services import Services
    from supervisor.machines.membership import ServerView

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 5.0
"""Seconds between two looks for servers that came, or came back."""


async def follow_others(services: Services) -> None:
    """Send the frames of the same socket of every other server to the client, until cancelled. Each is read
    as fast as the client reads; what a server sends while it is not reached is missing."""
    followed: set[int] = set()

    async def follow(server: ServerView) -> None:
        try:
            async with connected(services.owners, place(server)) as connection:
                while True:
                    await websocket.send(await connection.get_message())
        except (Unreached, Closed, ConnectionClosed) as error:
            log.info("commands of a server not followed", server=server.name, reason=str(error))
        finally:
            followed.discard(server.server)

    async with trio.open_nursery() as nursery:
        while True:
            try:
                found = await others(services)
            except Exception as error:  # noqa: BLE001 - the database is away: those that are followed stay
                log.debug("servers not looked at", reason=str(error))
                found = []
            for each in found:
                if each.server not in followed:
                    followed.add(each.server)
                    nursery.start_soon(follow, each)
            await trio.sleep(LOOK_SECONDS)
