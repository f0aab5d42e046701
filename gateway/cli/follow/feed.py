"""A conversation's frames, read in a thread of its own, so that the main thread can ask the user.

A lost connection is opened again, and continues after the last event that was seen.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import time
from typing import Any, Final

from gateway.cli.client import Server
from gateway.cli.failures import Failure, Unreachable
from gateway.cli.follow.attach import PATIENCE_SECONDS, RETRY_SECONDS, Position
from gateway.cli.follow.stream import Lost, frames

MOST_WAITING: Final = 10_000
"""Frames that wait while a person thinks about a question; then the server is held back."""


class Reconnecting:
    """Stands in the feed where the connection was lost, and why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Feed:
    """The frames of one conversation from a sequence number on.

    The thread is a daemon and ends with the process; `close` makes what it still reads count for nothing.
    """

    def __init__(self, server: Server, conversation_id: str, after_seq: int | None) -> None:
        self._server = server
        self._conversation_id = conversation_id
        self._position = Position(after_seq)
        self._queue: queue.Queue[dict[str, Any] | Reconnecting | Failure] = queue.Queue(MOST_WAITING)
        self._closed = threading.Event()
        self.wake, self._waker = os.pipe()
        """A descriptor that is readable when there may be frames: for who waits for a person, too."""
        os.set_blocking(self._waker, False)
        threading.Thread(target=self._read, name="conversation feed", daemon=True).start()

    def next(self, seconds: float | None = None) -> dict[str, Any] | Reconnecting | None:
        """The next frame; None when none comes in time. Raises Failure where there will be no more.

        Interrupted by signals whose handlers raise.
        """
        try:
            found = self._queue.get(timeout=seconds)
        except queue.Empty:
            return None
        if isinstance(found, Failure):
            raise found
        return found

    @property
    def waiting(self) -> bool:
        """Whether there are frames."""
        return not self._queue.empty()

    def calm(self) -> None:
        """Make `wake` wait for what comes from now on."""
        os.set_blocking(self.wake, False)
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wake, 4096):
                pass

    def close(self) -> None:
        """Nobody follows any longer."""
        self._closed.set()

    def _put(self, item: dict[str, Any] | Reconnecting | Failure) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(item, timeout=1)
                with contextlib.suppress(BlockingIOError):
                    os.write(self._waker, b"!")
                return

    def _read(self) -> None:
        until: float | None = None
        connected = False
        while not self._closed.is_set():
            try:
                for text in frames(self._server, self._conversation_id, self._position.after_seq):
                    connected, until = True, None
                    frame = json.loads(text)
                    self._position.note(frame)
                    self._put(frame)
                    if self._closed.is_set():
                        return
            except (Lost, Unreachable) as error:
                now = time.monotonic()
                if until is None:
                    if not connected and isinstance(error, Unreachable):
                        self._put(error)
                        return
                    until = now + PATIENCE_SECONDS
                    self._put(Reconnecting(str(error)))
                elif now > until:
                    self._put(Unreachable(str(error)))
                    return
                time.sleep(RETRY_SECONDS)
            except Failure as error:
                self._put(error)
                return
            except Exception as error:  # noqa: BLE001 - in a thread nobody would hear of it
                self._put(Failure(f"{type(error).__name__}: {error}"))
                return
