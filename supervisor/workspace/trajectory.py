"""A conversation as a zip archive, made event by event. Blocking, and never in memory as a whole."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable
from typing import Final, cast

NAME_CHARACTERS: Final = 100
"""Longest part of a file's name that an event's id makes."""

_PLAIN: Final = re.compile(r"[^A-Za-z0-9._-]")
_TIME: Final = (1980, 1, 1, 0, 0, 0)  # zip's oldest: the same conversation makes the same archive
_MODE: Final = 0o100644 << 16


class _Sink:
    """What the archive is written to: a stream that cannot be gone back in."""

    def __init__(self) -> None:
        self.waiting = bytearray()

    def write(self, data: bytes) -> int:
        self.waiting += data
        return len(data)

    def flush(self) -> None:
        pass


class Trajectory:
    """The archive of one conversation: `<hex>/meta.json`, `<hex>/events/event-00000-<id>.json`.

    Each method returns the bytes that are ready. One thread uses it at a time.
    """

    def __init__(self, conversation_id: str, meta: bytes) -> None:
        self._root = conversation_id.replace("-", "")
        self._sink = _Sink()
        self._archive = zipfile.ZipFile(
            cast("zipfile._ZipWritable", self._sink), "w", zipfile.ZIP_DEFLATED, allowZip64=True
        )
        self._number = 0
        self._add("meta.json", meta)

    def add(self, events: Iterable[tuple[str, bytes]]) -> bytes:
        """Add events, each given by its id and its JSON."""
        for event_id, body in events:
            name = _PLAIN.sub("_", event_id)[:NAME_CHARACTERS]
            self._add(f"events/event-{self._number:05d}-{name}.json", body)
            self._number += 1
        return self._taken()

    def end(self) -> bytes:
        """Write the directory of the archive. Nothing can be added afterwards."""
        self._archive.close()
        return self._taken()

    def _add(self, name: str, body: bytes) -> None:
        member = zipfile.ZipInfo(f"{self._root}/{name}", _TIME)
        member.compress_type = zipfile.ZIP_DEFLATED
        member.external_attr = _MODE
        self._archive.writestr(member, body)

    def _taken(self) -> bytes:
        waiting = self._sink.waiting
        self._sink.waiting = bytearray()
        return bytes(waiting)
