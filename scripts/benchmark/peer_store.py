"""Fills the store of the peer's server, which is not running: by requests alone it would take hours.

It keeps a directory for each conversation, with `base_state.json`, `meta.json` and a file for each event.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import uuid
from pathlib import Path

PLACE = Path("workspace", "conversations")
LEASES = ("owner_lease.json", ".owner_lease.lock")
STATES = ("base_state.json", "meta.json")


def multiply_conversations(directory: Path, count: int) -> None:
    """Copy a conversation that is there until there are so many."""
    place = directory / PLACE
    there = [path for path in place.iterdir() if path.is_dir()]
    source = there[0]
    old = uuid.UUID(source.name)
    for _ in range(count - len(there)):
        new = uuid.uuid4()
        copy = place / new.hex
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns(*LEASES))
        for name in STATES:
            path = copy / name
            if path.exists():
                text = path.read_text()
                path.write_text(text.replace(str(old), str(new)).replace(old.hex, new.hex))


def multiply_events(directory: Path, conversation: str, count: int) -> None:
    """Add copies of its tool events to a conversation until it has so many events."""
    place = directory / PLACE / uuid.UUID(conversation).hex
    for name in LEASES:
        (place / name).unlink(missing_ok=True)
    events = place / "events"
    there = sorted(events.glob("event-*.json"))
    last = json.loads(there[-1].read_text())["id"]
    tools = [text for path in there if '"kind":"ACPToolCallEvent"' in (text := path.read_text())]
    for number, text in zip(range(len(there), count), itertools.cycle(tools)):
        id_ = str(uuid.uuid4())
        text = re.sub(r'"id":"[^"]*"', f'"id":"{id_}"', text, count=1)
        text = re.sub(r'"parent_id":"[^"]*"', f'"parent_id":"{last}"', text, count=1)
        (events / f"event-{number:05d}-{id_}.json").write_text(text)
        last = id_
    for marker in events.glob(".eventlog-len-*.marker"):
        marker.unlink()
