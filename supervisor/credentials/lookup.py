"""Secrets that are kept elsewhere: fetched with GET whenever an agent starts, and never stored.

The client that gives the URL chooses the target and the headers of a request of this server. So the request
is bounded in time and in bytes, follows no redirect, and uses nothing from the environment (no proxy, no
netrc); an operator can restrict the hosts. Reports of a failure contain neither headers nor path nor body.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import attrs
import trio

from supervisor.credentials.secret import (
    MAX_VALUE_BYTES,
    CredentialsFailure,
    InvalidSecretValue,
    check_exportable,
)
from supervisor.credentials.source import LookupSecret
from supervisor.origin import shown_origin

if TYPE_CHECKING:
    import httpx2

LOOKUP_SECONDS: Final = 30.0
"""Seconds for all secrets of one start together; the wire's own server allows as many for each."""

LOOKUPS_AT_ONCE: Final = 8
"""Requests of one start at the same time."""

NOT_SENT: Final = frozenset(
    (
        *("host", "connection", "keep-alive", "proxy-connection", "proxy-authorization", "te", "trailer"),
        *("transfer-encoding", "upgrade", "expect", "content-length", "accept-encoding"),
    )
)
"""Headers of the connection, which Ostler sets: a client's values would contradict the actual request."""


ENCODINGS: Final = {
    "utf-8": "utf-8",
    "utf8": "utf-8",
    "us-ascii": "ascii",
    "ascii": "ascii",
    "iso-8859-1": "latin-1",
}
"""Charsets that an answer may have. Others can be slow to decode."""


class LookupFailed(CredentialsFailure):
    """A secret cannot be fetched. The text names the secret and the host, and quotes nothing else."""


@attrs.frozen
class Lookups:
    """Fetches secrets. `hosts`: those that may be asked, as `name`, `*.name` or an address; None: any."""

    hosts: tuple[str, ...] | None = None

    def allows(self, url: str) -> bool:
        """Whether the operator lets this server ask the host of an absolute URL."""
        if self.hosts is None or "*" in self.hosts:
            return True
        name = (urlsplit(url).hostname or "").lower().rstrip(".")
        listed = [each.lower().rstrip(".") for each in self.hosts]
        return name in listed or name.endswith(tuple(each[1:] for each in listed if each.startswith("*.")))

    async def fetch(self, sources: Mapping[str, LookupSecret]) -> dict[str, str]:
        """Fetch all values, by name. Raises LookupFailed for the first that is unavailable.

        Takes `LOOKUP_SECONDS` at most. Cancellation closes the connections.
        """
        if not sources:
            return {}
        for name, source in sources.items():
            if not self.allows(source.url):
                raise LookupFailed(f"{_begin(name, source)}: {LOOKUP_REFUSED}")
        found: dict[str, str | LookupFailed] = {}
        client = await trio.to_thread.run_sync(_client)
        slots = trio.CapacityLimiter(LOOKUPS_AT_ONCE)

        async def one(name: str, source: LookupSecret) -> None:
            async with slots:
                try:
                    found[name] = await _get(client, name, source)
                except LookupFailed as error:
                    found[name] = error

        with trio.move_on_after(LOOKUP_SECONDS):
            async with client, trio.open_nursery() as nursery:
                for name, source in sources.items():
                    nursery.start_soon(one, name, source)
        values: dict[str, str] = {}
        for name, source in sources.items():
            value = found.get(name)
            if value is None:
                raise LookupFailed(
                    f"{_begin(name, source)}: no answer within {LOOKUP_SECONDS:g} seconds. {CHECK}"
                )
            if isinstance(value, LookupFailed):
                raise value
            values[name] = value
        return values


LOOKUP_REFUSED: Final = (
    "the operator does not let this server ask that host. Add it to OSTLER_SECRET_LOOKUPS."
)
CHECK: Final = "Check the address and its headers, or give the secret's value instead."


def _begin(name: str, source: LookupSecret) -> str:
    return f"Secret {name} cannot be looked up at {shown_origin(source.url)}"


def _client() -> httpx2.AsyncClient:
    """In a thread: the import takes half a second the first time, the certificates some 20 ms each time."""
    import httpx2

    return httpx2.AsyncClient(
        timeout=LOOKUP_SECONDS,
        follow_redirects=False,
        trust_env=False,
        verify=ssl.create_default_context(),
    )


async def _get(client: httpx2.AsyncClient, name: str, source: LookupSecret) -> str:
    import httpx2

    headers = {key: value for key, value in source.headers.items() if key.lower() not in NOT_SENT}
    # Decompressed it could be a thousand times as large.
    headers["Accept-Encoding"] = "identity"
    begin = _begin(name, source)
    try:
        async with client.stream("GET", source.url, headers=headers) as response:
            if response.has_redirect_location:
                raise LookupFailed(f"{begin}: redirects are not followed. Give the address it leads to.")
            if not response.is_success:
                raise LookupFailed(f"{begin}: it answers with status {response.status_code}. {CHECK}")
            if response.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise LookupFailed(f"{begin}: the answer is compressed, which was not asked for. {CHECK}")
            body = bytearray()
            # Cancelled, not left: each of the iterators below this one is to be closed.
            with trio.CancelScope() as enough:
                async for piece in response.aiter_raw():
                    body += piece
                    if len(body) > MAX_VALUE_BYTES:
                        enough.cancel()
            if len(body) > MAX_VALUE_BYTES:
                raise LookupFailed(f"{begin}: a secret has at most {MAX_VALUE_BYTES} bytes. {CHECK}")
            encoding = response.charset_encoding or "utf-8"
    # UnicodeError and ValueError: of header values, and of hosts that are none.
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, OSError) as error:
        raise LookupFailed(f"{begin}: {type(error).__name__}. {CHECK}") from None
    return _text(bytes(body), encoding, begin)


def _text(body: bytes, encoding: str, begin: str) -> str:
    try:
        value = body.decode(ENCODINGS[encoding.lower()])
    except (KeyError, ValueError):
        raise LookupFailed(f"{begin}: the answer is not text in UTF-8. {CHECK}") from None
    if not value.strip():
        raise LookupFailed(f"{begin}: the answer is empty. {CHECK}")
    try:
        return check_exportable(value)
    except InvalidSecretValue as error:
        raise LookupFailed(f"{begin}: {error}. {CHECK}") from None
