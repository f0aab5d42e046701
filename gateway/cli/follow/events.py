"""`ostler events`: print the events of a conversation with their sequence numbers."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from gateway.cli.client import Server
from gateway.cli.follow.attach import following
from gateway.cli.follow.show import described
from gateway.cli.follow.stream import frames
from gateway.cli.text import cut, one_line, terminal_width


def run(server: Server, arguments: Namespace) -> None:
    """Print what there is, and with --follow what comes, until interrupted. Raises Failure."""
    conversation_id = server.conversation_id(arguments.id)
    after = arguments.since_seq - 1
    width = terminal_width()
    coming: Iterator[dict[str, Any]]
    if arguments.follow:
        coming = (json.loads(text) for text in following(server, conversation_id, after))
    else:
        coming = _there(server, conversation_id, after)
    for frame in coming:
        if frame.get("type") != "durable":
            continue
        print(json.dumps(frame, ensure_ascii=False) if arguments.json else line(frame, width), flush=True)


def _there(server: Server, conversation_id: str, after: int) -> Iterator[dict[str, Any]]:
    """The frames of the events that there are now."""
    through = -1
    for text in frames(server, conversation_id, after):
        frame = json.loads(text)
        yield frame
        if frame.get("type") == "sync":
            through = frame.get("through_seq", -1)
        if frame.get("type") == "durable" and frame["seq"] >= through:
            return
        if frame.get("type") == "transient" and through == -1:
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
