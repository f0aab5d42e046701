"""`ostler logs`: print the standard error of an agent, or the last frames between it and the server."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Final

from gateway.cli.client import Server
from gateway.cli.failures import Unreachable
from gateway.cli.operate.conversations import moment
from gateway.cli.operate.which import one
from gateway.cli.present import print_json, warn
from gateway.cli.text import clean, size, without_codes

POLL_SECONDS: Final = 0.5
"""Seconds between two polls while following: short enough for a reader, and cheap for the server."""

EVENTS: Final = 500
"""Events that are searched for the last failure: those of some twenty turns."""

MISSED: Final = "[...]"
"""Printed where lines may be missing: more was written between two polls than the server keeps."""


def run(server: Server, arguments: Namespace) -> None:
    """Print the tail; with `follow` also what is added to it, until interrupted. Raises Failure."""
    conversation_id = one(server, arguments.id, among="agents")
    what, key = ("trace", "frames") if arguments.trace else ("stderr", "lines")
    path = f"/api/agents/{conversation_id}/{what}"
    answer = server.get(path)
    if not arguments.follow:
        kept = bool(answer[key])
        answer[key] = _last(answer[key], arguments.lines)
        if arguments.json:
            print_json(answer)
            return
        if not kept:
            _tell_known(server, conversation_id, arguments)
        for item in answer[key]:
            print(line(item))
        return
    tail = Tail()
    fresh = _last(tail.look(answer[key]), arguments.lines)
    while True:
        for item in fresh:
            print(json.dumps(item) if arguments.json else line(item))
        print(end="", flush=True)
        time.sleep(POLL_SECONDS)
        try:
            fresh = tail.look(server.get(path)[key])
        except Unreachable:
            fresh = []  # it may be back soon
            continue
        if tail.missed and not arguments.json:
            print(MISSED)


def _tell_known(server: Server, conversation_id: str, arguments: Namespace) -> None:
    """Say why there is nothing, and print what the journal has of the last failure."""
    what = "frames" if arguments.trace else "standard error"
    if server.get(f"/api/agents/{conversation_id}")["pid"] is not None:
        warn(f"no {what}: the agent that runs has written nothing")
    else:
        warn('no agent runs, so there is no log to show; "ostler events" shows the conversation')
    if arguments.trace:
        return
    path = f"/api/conversations/{conversation_id}/events/search"
    for event in islice(server.pages(path, "sort_order=TIMESTAMP_DESC"), EVENTS):
        match event:
            case {"key": "agent_exit", "value": {"code": code, "signal": number, "last_words": words}}:
                how = (
                    f"the agent's last exit: signal {number}" if number else f"the agent's last exit: {code}"
                )
            case {"kind": "ConversationErrorEvent", "detail": str(detail)}:
                how, words = "the last failure", without_codes(detail).splitlines()
            case _:
                continue
        warn(f"{how}, on {moment(event['timestamp'])}")
        for each in _last(words, arguments.lines):
            print(line(each))
        return


def line(item: str | Mapping[str, Any]) -> str:
    """A line of standard error, or a frame: when, where to, how large, how it begins."""
    if isinstance(item, str):
        return clean(item)
    when = datetime.fromisoformat(item["timestamp"]).astimezone()
    return f"{when:%H:%M:%S.%f}"[:-3] + f" {item['direction']} {size(item['size']):>5} {clean(item['text'])}"


def _last(items: list[Any], count: int | None) -> list[Any]:
    return items if count is None else items[max(0, len(items) - count) :]


class Tail:
    """Finds the new lines of a tail that is polled. `missed`: lines may be missing."""

    def __init__(self) -> None:
        self._looked_at: list[Any] | None = None
        self._seen: list[Any] = []
        self.missed = False

    def look(self, tail: list[Any]) -> list[Any]:
        """The new lines. A last line that has changed is held back, since it may still grow."""
        start = self._first_new(tail)
        settled = tail == self._looked_at or self._looked_at is None
        end = max(start, len(tail) if settled else len(tail) - 1)
        self._looked_at, self._seen = tail, tail[:end]
        return tail[start:end]

    def _first_new(self, tail: list[Any]) -> int:
        seen = self._seen
        self.missed = False
        for gone in range(len(seen)):
            kept = seen[gone:]
            if tail[: len(kept)] == kept:
                return len(kept)
            *whole, last = kept
            now = tail[len(whole) : len(kept)]
            if tail[: len(whole)] == whole and now and isinstance(last, str) and now[0].startswith(last):
                return len(whole)  # the unfinished line has grown
        self.missed = bool(seen) and bool(tail)
        return 0
