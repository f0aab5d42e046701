"""Events of the scenarios, kept for the peer's own SDK to read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.support.client import Rest
from tests.support.sockets import Collector


class Recording:
    """Files of JSON lines `{"form": "ws" | "rest", "where": ..., "event": ...}`: one of each process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / f"{os.getpid()}.jsonl"

    def add(self, form: str, where: str, events: list[dict[str, Any]]) -> None:
        with self.path.open("a") as file:
            for event in events:
                file.write(json.dumps({"form": form, "where": where, "event": event}) + "\n")

    async def keep(
        self, where: str, rest: Rest, conversation: str, socket: Collector | None = None, *, before: int = 0
    ) -> None:
        """The journal by REST (search and by id) after the first `before` events, and what the event socket
        sent."""
        events = (await rest.events(conversation))[before:]
        ids = [event["id"] for event in events]
        by_id = await rest.events_by_id(conversation, ids) if ids else []
        assert [event["id"] for event in by_id] == ids
        self.add("rest", where, by_id)
        if socket is not None:
            self.add("ws", where, socket.frames)

    def __len__(self) -> int:
        return sum(len(path.read_text().splitlines()) for path in self.paths())

    def paths(self) -> list[Path]:
        """The files of all processes."""
        return sorted(self.directory.glob("*.jsonl"))
