"""Logins to MCP servers, encrypted in the document `mcp-logins.json`.

A login is the state of `helper.py`. It belongs to an address: under another address the name of a server
means nothing. The server and the commands share the file.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

import attrs

from supervisor.documents.port import Documents, Release
from supervisor.documents.shared_files import UnusableError, locked, refuse_more
from supervisor.stored import loads

FILE: Final = "mcp-logins.json"
AWAY: Final = "move it away, and log in again"

VERSION: Final = 1

MAX_BYTES: Final = 4 * 1024 * 1024
"""Of the file: a thousand logins."""

LOCK_NAME: Final = 16
"""Characters of a login's key in the name of its lock."""

EARLY_SECONDS: Final = 60.0
"""A token is renewed so long before it expires: a request that carries it may be on its way for a while."""

EARLY_PART: Final = 1 / 4
"""Of tokens that live shorter than that would make sense for: this part of their life."""


class Cipher(Protocol):
    """Encrypts for the disk, and decrypts. Both raise errors of their own."""

    def encrypt(self, data: bytes) -> str:
        """A token."""

    def decrypt(self, token: str) -> bytes:
        """What the token was made of."""


class LoginsError(Exception):
    """The file of logins cannot be used; one line. It is left as it is."""


@attrs.frozen
class Token:
    """An access token. `expires_at` in seconds since the epoch; None if it does not expire."""

    value: str = attrs.field(repr=False)
    expires_at: float | None
    lifetime: float | None
    renewable: bool

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Token | None:
        """The one in a login's state, if there is one."""
        tokens = state.get("tokens")
        if not isinstance(tokens, Mapping):
            return None
        value = tokens.get("access_token")
        if not isinstance(value, str) or not value:
            return None
        expires_at, lifetime = state.get("token_expires_at"), tokens.get("expires_in")
        return cls(
            value,
            float(expires_at) if isinstance(expires_at, int | float) else None,
            float(lifetime) if isinstance(lifetime, int | float) else None,
            bool(tokens.get("refresh_token")),
        )

    def fresh(self, now: float | None = None) -> bool:
        """Whether it stays valid for a while."""
        if self.expires_at is None:
            return True
        early = EARLY_SECONDS if self.lifetime is None else min(EARLY_SECONDS, self.lifetime * EARLY_PART)
        return (time.time() if now is None else now) < self.expires_at - early

    def alive(self, now: float | None = None) -> bool:
        """Whether it has not expired yet."""
        return self.expires_at is None or (time.time() if now is None else now) < self.expires_at


@attrs.frozen
class _Logins:
    """The file: encrypted logins by the keys of their addresses."""

    logins: dict[str, str]


class LoginStore:
    """The document, with the cipher for it. Every method blocks, and raises LoginsError or what the cipher
    raises."""

    def __init__(self, documents: Documents, cipher: Cipher) -> None:
        self._document = documents.document(FILE, by_programs=True)
        self._where = self._document.shown
        self._cipher = cipher

    def get(self, url: str) -> dict[str, Any] | None:
        """Return the login to the server at this address."""
        token = self._read().get(_key(url))
        if token is None:
            return None
        try:
            found = json.loads(self._cipher.decrypt(token))
        except ValueError as error:
            raise LoginsError(f"{self._where} is not usable: a login in it is damaged; {AWAY}") from error
        if not isinstance(found, dict) or found.get("url") != url or not isinstance(found.get("state"), dict):
            raise LoginsError(f"{self._where} is not usable: a login in it belongs to another server; {AWAY}")
        state: dict[str, Any] = found["state"]
        return state

    def put(self, url: str, state: Mapping[str, Any]) -> None:
        """Store a login durably, replacing the previous one."""
        token = self._cipher.encrypt(json.dumps({"url": url, "state": state}).encode())
        self._change(url, token)

    def try_lock(self, url: str) -> Release | None:
        """Try to lock a login across processes, to renew or end it: what releases it, which blocks, too, or
        None if another process has the lock.

        If two processes use one refresh token, the login ends.
        """
        part = _key(url)[:LOCK_NAME]
        try:
            return self._document.try_lock(part)
        except OSError as error:
            raise LoginsError(
                f"cannot use {error.filename or self._where}: {error.strerror or error}"
            ) from error

    def drop(self, url: str) -> bool:
        """Remove a login. Returns whether there was one."""
        return self._change(url, None)

    def _change(self, url: str, token: str | None) -> bool:
        try:
            with locked(self._document.try_lock):
                logins = self._read()
                there = logins.pop(_key(url), None) is not None
                if token is not None:
                    logins[_key(url)] = token
                elif not there:
                    return False
                document = json.dumps({"version": VERSION, "logins": logins}, indent=2).encode()
                if token is not None and len(document) > MAX_BYTES:  # it would not be read back
                    raise LoginsError(
                        f"cannot write {self._where}: all logins together would take more than {MAX_BYTES} "
                        "bytes; end some with `ostler mcp logout`"
                    )
                self._document.write(document)
                return there
        except (OSError, UnusableError) as error:
            raise LoginsError(f"cannot write {self._where}: {_why(error)}") from error

    def _read(self) -> dict[str, str]:
        try:
            found = self._document.read(MAX_BYTES + 1)
            if found is None:
                return {}
            refuse_more(found.data, MAX_BYTES)
            return loads(_Logins, found.data, VERSION).logins
        except (OSError, UnusableError) as error:
            raise LoginsError(f"cannot read {self._where}: {_why(error)}") from error
        except ValueError as error:
            raise LoginsError(f"{self._where} is not usable: {error}; {AWAY}") from None


def _key(url: str) -> str:
    """The key of an address: it may hold credentials, so it is not a name in the clear."""
    return hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()


def _why(error: OSError | UnusableError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
