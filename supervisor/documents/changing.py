"""Who changes a document: one task of one server at a time."""

from __future__ import annotations

from types import TracebackType
from typing import Final

import trio

from supervisor.documents.port import Document, DocumentsUnavailable, Release

LOCK_SECONDS: Final = 10.0
"""Seconds to wait for another server that changes a document: each change takes milliseconds."""

LOCK_LOOK_SECONDS: Final = 0.01


class Changing:
    """The lock of those who change a document: of the tasks of this server, `here`, and of all servers.

    Entering raises DocumentsUnavailable after `LOCK_SECONDS` of waiting for another server. Cancellation
    leaves nothing locked.
    """

    def __init__(self, document: Document) -> None:
        self.here = trio.Lock()
        """Enough for a task that must not meet a change half done: it keeps other servers from nothing."""
        self._document = document
        self._release: Release = _nothing
        self._limiter = trio.CapacityLimiter(1)

    async def __aenter__(self) -> None:
        await self.here.acquire()
        if self._document.shared:
            try:
                self._release = await self._locked()
            except BaseException:
                self.here.release()
                raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        release, self._release = self._release, _nothing
        try:
            if self._document.shared:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(release, limiter=self._limiter)
        finally:
            self.here.release()

    async def _locked(self) -> Release:
        with trio.move_on_after(LOCK_SECONDS):
            while True:
                release = await trio.to_thread.run_sync(self._document.try_lock, limiter=self._limiter)
                if release is not None:
                    return release
                await trio.sleep(LOCK_LOOK_SECONDS)
        raise DocumentsUnavailable(
            f"another server has been changing {self._document.shown} for {LOCK_SECONDS:g} s; try again"
        )


def _nothing() -> None:
    """Release what was not locked."""
