"""`ostler attach`: print the events of a conversation as they happen."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from typing import Any, Final

from gateway.cli.client import Server
from gateway.cli.failures import Unreachable
from gateway.cli.follow.show import Screen
from gateway.cli.follow.stream import Lost, frames

FROM_START: Final = -1

PATIENCE_SECONDS: Final = 60.0
"""Seconds to wait for a server that went away: its warden restarts it within seconds."""

RETRY_SECONDS: Final = 0.5


def run(server: Server, arguments: Namespace) -> None:
    """Print frames until interrupted, or until the conversation is deleted. Raises Failure."""
    conversation_id = server.conversation_id(arguments.id) if arguments.id else server.newest()
    screen: Screen | None = None
    for frame in following(server, conversation_id, FROM_START if arguments.all else None):
        if arguments.json:
            print(frame, flush=True)
            continue
        if screen is None:
            print(f"attached to {conversation_id}", flush=True)
            screen = Screen()
        screen.show(json.loads(frame))


def following(server: Server, conversation_id: str, after_seq: int | None) -> Iterator[str]:
    """Yield frames over as many connections as necessary: each continues after the last event of the previous
    one.

    Raises Unreachable if the server stays away, and Failure.
    """
    position = Position(after_seq)
    connected = False
    until: float | None = None
    while True:
        try:
            for frame in frames(server, conversation_id, position.after_seq):
                connected, until = True, None
                position.note(json.loads(frame))
                yield frame
        except (Lost, Unreachable) as error:
            if isinstance(error, Unreachable) and not connected:
                raise
            if until is None:
                until = time.monotonic() + PATIENCE_SECONDS
                print(f"ostler: connection lost ({error}); trying again", file=sys.stderr)
            elif time.monotonic() > until:
                raise Unreachable(str(error)) from None
            time.sleep(RETRY_SECONDS)


class Position:
    """The position in the log, so that a new connection can continue there."""

    def __init__(self, after_seq: int | None) -> None:
        self.after_seq = after_seq

    def note(self, frame: dict[str, Any]) -> None:
        """Take a frame into account."""
        match frame:
            case {"type": "durable", "seq": int(seq)}:
                self.after_seq = seq
            case {"type": "sync", "from_seq": int(seq)} if self.after_seq is None:
                self.after_seq = seq - 1
