"""Posts to one receiver, by a library that is imported when it is first needed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

import structlog
import trio

from gateway.configuration.address import KEY_HEADER
from gateway.configuration.webhooks import WebhookSpec
from gateway.http.throttled_log import ThrottledLog
from supervisor.version import __version__

if TYPE_CHECKING:
    import httpx2

log = structlog.get_logger(__name__)

POST_SECONDS: Final = 30.0
"""Seconds for one request, from the look-up of the name to the end of the answer."""

AT_ONCE: Final = 32
"""Requests to one receiver at a time, of all conversations; the others wait."""

ANSWER_BYTES: Final = 64 * 1024
"""Bytes of an answer that are read and discarded, so that its connection can be reused."""


class NotDelivered(Exception):
    """A request failed. The message is short and does not quote the address."""


class Receiver:
    """The receiver of one webhook. `session_key` goes along as the wire's own server sends it."""

    def __init__(self, spec: WebhookSpec, session_key: str | None) -> None:
        self.spec = spec
        self._headers = {**spec.headers, "Content-Type": "application/json"}
        self._headers.setdefault("User-Agent", f"Ostler/{__version__}")
        if session_key is not None:
            self._headers[KEY_HEADER] = session_key
        self._client: httpx2.AsyncClient | None = None
        self._opening = trio.Lock()
        self.failing = False
        """Whether the last request failed."""
        self.complaint = ThrottledLog(log, "warning", "webhook not delivered")
        self._slots = trio.CapacityLimiter(AT_ONCE)

    async def post(self, path: str, body: bytes) -> None:
        """Post JSON. Raises NotDelivered. Names are looked up in threads; cancellation ends the request."""
        async with self._slots:
            client = await self._open()
            try:
                with trio.fail_after(POST_SECONDS):
                    await self._exchange(client, self.spec.base_url + path, body)
            except trio.TooSlowError:
                raise NotDelivered(f"no answer within {POST_SECONDS:g} s") from None

    async def _exchange(self, client: httpx2.AsyncClient, url: str, body: bytes) -> None:
        import httpx2

        try:
            async with client.stream("POST", url, content=body, headers=self._headers) as response:
                if not 200 <= response.status_code < 300:
                    raise NotDelivered(f"status {response.status_code}")
                read = 0
                # Left by cancellation, not by `break`: the library's generators are closed in order only by
                # an error.
                with trio.CancelScope() as enough:
                    async for piece in response.aiter_raw():
                        read += len(piece)
                        if read > ANSWER_BYTES:
                            enough.cancel()
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            raise NotDelivered(type(error).__name__) from error

    async def _open(self) -> httpx2.AsyncClient:
        async with self._opening:
            if self._client is None:
                self._client = await trio.to_thread.run_sync(_new_client)
            return self._client

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            with trio.move_on_after(1, shield=True):
                await self._client.aclose()


def _new_client() -> httpx2.AsyncClient:
    """In a thread: the library and the certificates take half a second, the first time."""
    importlib.import_module("httpx2")
    import httpx2

    limits = httpx2.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE // 4)
    return httpx2.AsyncClient(timeout=httpx2.Timeout(POST_SECONDS), limits=limits, follow_redirects=False)
