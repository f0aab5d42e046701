"""A thread with an event loop, on which one conversation runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any


class Lane:
    """The event loop of one conversation, in a separate thread.

    The SDK blocks its loop: hooks, critics and analyzers run there, and it waits there for a lock that a
    thread may hold. The loop that serves the client must not wait for that.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine; may be called from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def end(self) -> None:
        """End the thread when it gets to it. This does not wait for what runs there."""
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
