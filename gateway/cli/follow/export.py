"""`ostler conversations export`: a conversation as JSON lines, or as Markdown."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TextIO

from gateway.cli.agents.names import agent_key
from gateway.cli.client import Server
from gateway.cli.failures import Failure
from gateway.cli.present import print_json, warn
from gateway.cli.talk.diff import edits, lines
from gateway.cli.talk.track import Call, CallEnded, Failed, Item, Planned, Said, Track, UserSaid
from gateway.cli.text import clean, one_line, without_codes

FENCE: Final = "```"

MOST_LINES: Final = 10_000
"""Most lines of one change that are printed: more is no longer read."""


def export(server: Server, arguments: Namespace) -> None:
    """Write it to standard output or to a file, which is whole or not there. Raises Failure."""
    conversation_id = server.conversation_id(arguments.id)
    conversation = server.get(f"/api/conversations/{conversation_id}")
    events = server.pages(f"/api/conversations/{conversation_id}/events/search")
    with _output(arguments.output) as out:
        if arguments.format == "jsonl":
            for event in events:
                print(json.dumps(event, ensure_ascii=False), file=out)
        else:
            for text in markdown(conversation, events):
                print(clean(text), file=out)


def diff(server: Server, arguments: Namespace) -> None:
    """Print what the agent's tools changed in files, call by call. Raises Failure."""
    conversation_id = server.conversation_id(arguments.id)
    events = server.pages(f"/api/conversations/{conversation_id}/events/search")
    found = [edit for call in _completed(events) for edit in edits(call.content, call.raw_input)]
    if arguments.json:
        print_json({"edits": [edit._asdict() for edit in found]})
    elif not found:
        warn("the agent showed no change of a file; what its commands changed is in no event")
    for edit in () if arguments.json else found:
        print(f"--- {one_line(edit.path)}{' (new)' if edit.old is None and edit.patch is None else ''}")
        print("\n".join(lines(edit, MOST_LINES)))


def _completed(events: Iterator[Mapping[str, Any]]) -> Iterator[Call]:
    track = Track()
    for seq, event in enumerate(events):
        for item in track.take({"type": "durable", "seq": seq, "event": event}):
            if isinstance(item, CallEnded) and item.call.status == "completed":
                yield item.call


@contextmanager
def _output(name: str | None) -> Iterator[TextIO]:
    if name is None or name == "-":
        yield sys.stdout
        return
    path = Path(name).expanduser().absolute()
    try:
        # In the same directory, so that a failed export leaves the old file. 0600: it may hold secrets.
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise Failure(f"{name} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            yield file
        Path(temporary).replace(path)
    except OSError as error:
        raise Failure(f"{name} cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            Path(temporary).unlink()


def markdown(conversation: Mapping[str, Any], events: Iterator[Mapping[str, Any]]) -> Iterator[str]:
    """The conversation as people read it, piece by piece."""
    agent = agent_key(conversation.get("agent")) or "agent"
    yield f"# {one_line(conversation.get('title') or 'Conversation')}\n"
    yield f"* id: {conversation['id']}"
    yield f"* agent: {agent}"
    yield f"* directory: {conversation['workspace']['working_dir']}"
    yield f"* created: {conversation['created_at']}"
    yield f"* status: {conversation['execution_status']}\n"
    track = Track()
    for seq, event in enumerate(events):
        for item in track.take({"type": "durable", "seq": seq, "event": event}):
            yield from _written(item, agent)


def _written(item: Item, agent: str) -> Iterator[str]:
    match item:
        case UserSaid(text=text, note=note):
            yield f"## Ostler\n\n{without_codes(text)}\n" if note else f"## User\n\n{text}\n"
        case Said(kind="text", text=text) if text:
            yield f"## {agent}\n\n{text}\n"
        case Said(kind="reasoning", text=text) if text:
            yield "\n".join(f"> {line}".rstrip() for line in text.strip().splitlines()) + "\n"
        case CallEnded(call=call):
            yield f"**{one_line(call.title)}** ({call.status})\n"
            for edit in edits(call.content, call.raw_input):
                yield _fenced(f"{edit.path}\n" + "\n".join(lines(edit)), "diff")
            if call.output:
                yield _fenced(call.output)
        case Planned(entries=entries):
            marked = (("x" if status == "completed" else " ", one_line(text)) for status, text in entries)
            yield "\n".join(f"* [{mark}] {text}" for mark, text in marked) + "\n"
        case Failed(code=code, detail=detail):
            yield f"**Failed**: {one_line(without_codes(detail)) or code}\n"


def _fenced(text: str, language: str = "") -> str:
    fence = FENCE
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"
