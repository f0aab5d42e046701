"""`ostler events`: print the events of a conversation with their sequence numbers."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gateway.cli.client import Server
from gateway.cli.follow.attach import lost
from gateway.cli.follow.show import described
from gateway.cli.follow.stream import LOST, Position, following
from gateway.cli.tasks import run_tasks
from gateway.cli.text import cut, one_line, terminal_width


def run(server: Server, arguments: Namespace) -> None:
    """Print the existing events, and with --follow new ones, until interrupted. Raises Failure."""
    run_tasks(_events, server, server.conversation_id(arguments.id), arguments)


async def _events(server: Server, conversation_id: str, arguments: Namespace) -> None:
    position = Position(arguments.since_seq - 1)
    width = terminal_width()
    async with following(server, conversation_id, position.after_seq) as frames:
        async for _, frame in frames:
            position.note(frame)
            if frame["type"] == LOST:
                lost(frame)
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
        said = f"{event['key']}={json.dumps(event.get('value'), ensure_ascii=False)}"
    return cut(f"{frame['seq']:>5} {moment:%H:%M:%S} {kind:<24} {one_line(said)}".rstrip(), width)
