"""`ostler attach`: print the events of a conversation as they happen."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final

from gateway.cli.client import Server
from gateway.cli.follow.show import Screen
from gateway.cli.follow.stream import LOST, following
from gateway.cli.tasks import run_tasks

FROM_START: Final = -1


def run(server: Server, arguments: Namespace) -> None:
    """Print frames until interrupted, or until the conversation is deleted. Raises Failure."""
    conversation_id = server.conversation_id(arguments.id) if arguments.id else server.newest()
    run_tasks(_attach, server, conversation_id, arguments)


async def _attach(server: Server, conversation_id: str, arguments: Namespace) -> None:
    screen: Screen | None = None
    async with following(server, conversation_id, FROM_START if arguments.all else None) as frames:
        async for text, frame in frames:
            if frame["type"] == LOST:
                lost(frame)
                continue
            if arguments.json:
                print(text, flush=True)
                continue
            if screen is None:
                print(f"attached to {conversation_id}", flush=True)
                screen = Screen()
            screen.show(frame)


def lost(frame: Mapping[str, Any]) -> None:
    """Say why the connection ended."""
    print(f"ostler: connection lost ({frame['reason']}); trying again", file=sys.stderr)
