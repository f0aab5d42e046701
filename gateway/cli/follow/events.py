"""`ostler events` and `ostler attach`: print the events of a conversation, also as they happen."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gateway.cli.client import Server
from gateway.cli.follow.show import Screen, described
from gateway.cli.follow.stream import LOST, Position, following
from gateway.cli.operate.which import one
from gateway.cli.present import warn
from gateway.cli.tasks import run_tasks
from gateway.cli.text import cut, one_line, plain, terminal_width


def events(server: Server, arguments: Namespace) -> None:
    """Print the existing events, and with --follow new ones, until interrupted. Raises Failure."""
    run_tasks(_events, server, one(server, arguments.id, among="all"), arguments)


async def _events(server: Server, conversation_id: str, arguments: Namespace) -> None:
    position = Position(arguments.since_seq - 1)
    width = terminal_width()
    async with following(server, conversation_id, position.after_seq) as frames:
        async for _, frame in frames:
            position.note(frame)
            if frame["type"] == LOST:
                _warn_lost(frame)
            elif frame["type"] == "durable":
                shown = json.dumps(frame, ensure_ascii=False) if arguments.json else line(frame, width)
                print(shown, flush=True)
            if not arguments.follow and position.caught_up(frame):
                return


def line(frame: Mapping[str, Any], width: int | None) -> str:
    """Number, time, kind and what it says, in one line."""
    event = frame["event"]
    moment = datetime.fromisoformat(event["timestamp"]).astimezone()
    kind = str(event["kind"]).removesuffix("Event")
    said = " ".join(text for _, text in described(event))
    if not said and "key" in event:
        said = f"{event['key']}: {plain(event.get('value'))}"
    return cut(f"{frame['seq']:>5} {moment:%H:%M:%S} {kind:<24} {one_line(said)}".rstrip(), width)


def attach(server: Server, arguments: Namespace) -> None:
    """Print frames until interrupted, or until the conversation is deleted. Raises Failure."""
    conversation_id = server.conversation_id(arguments.id) if arguments.id else server.newest()
    run_tasks(_attach, server, conversation_id, arguments)


async def _attach(server: Server, conversation_id: str, arguments: Namespace) -> None:
    screen: Screen | None = None
    async with following(server, conversation_id, -1 if arguments.all else None) as frames:
        async for text, frame in frames:
            if frame["type"] == LOST:
                _warn_lost(frame)
                continue
            if arguments.json:
                print(text, flush=True)
                continue
            if screen is None:
                print(f"attached to {conversation_id}", flush=True)
                screen = Screen()
            screen.show(frame)


def _warn_lost(frame: Mapping[str, Any]) -> None:
    warn(frame["said"])
