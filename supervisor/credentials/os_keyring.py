"""The operating system's keyring: used in a thread, with a deadline, and only if its backend is allowed."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol, TypeVar

import trio

from supervisor.credentials.secret import CredentialsFailure

T = TypeVar("T")

#: Imported before the deadline begins: on a busy machine that takes seconds, in which nothing has been asked.
LIBRARIES: Final = ("keyring.core", "keyring.backends.SecretService")

#: Of every entry.
SERVICE: Final = "ostler"

#: Seconds for one call. An unlocked keyring answers within a tenth; a locked one waits for the user, a broken
#: D-Bus for its own limit of 25 s, which is too long for the start of a server.
KEYRING_SECONDS: Final = 2.0

#: Backends by class. All others - plaintext files, null, chains of installed backends - are never used.
ALLOWED: Final[Mapping[str, str]] = {
    "keyring.backends.SecretService.Keyring": "Secret Service",
    "keyring.backends.libsecret.Keyring": "Secret Service, by libsecret",
    "keyring.backends.kwallet.DBusKeyring": "KWallet",
    "keyring.backends.kwallet.DBusKeyringKWallet4": "KWallet 4",
    "keyring.backends.macOS.Keyring": "macOS Keychain",
    "keyring.backends.Windows.WinVaultKeyring": "Windows Credential Locker",
}

#: Where the session's D-Bus is, if there is one.
BUS_VARIABLE: Final = "DBUS_SESSION_BUS_ADDRESS"
RUNTIME_VARIABLE: Final = "XDG_RUNTIME_DIR"
BUS_SOCKET: Final = "bus"


class Backend(Protocol):
    """What of a `keyring` backend is used. Each call may block forever and raise anything."""

    def get_password(self, service: str, username: str, /) -> str | None:
        """The text of an entry, None where there is none."""

    def set_password(self, service: str, username: str, password: str, /) -> None:
        """Store an entry."""

    def delete_password(self, service: str, username: str, /) -> None:
        """Remove an entry."""


#: What the exceptions of `keyring` mean for people, by their class: their own text is never shown.
MEANING: Final[Mapping[str, str]] = {
    "KeyringLocked": "the keyring is locked",
    "InitError": "the keyring cannot be opened; it is locked, or was never set up",
    "SecretServiceNotAvailableException": "the keyring's service does not run",
}


class KeyringUnavailable(CredentialsFailure):
    """The keyring cannot be used. The message says why and quotes no entry."""


class NoKeyring(KeyringUnavailable):
    """There is none, or a backend that is not allowed is configured: not an error that a user must fix."""


def find_backend() -> Backend:
    """The best backend that is allowed, or the one that `keyring` is configured to use. Blocks.

    Raises NoKeyring when there is none, or when another one is configured: so `keyring --disable`
    and `PYTHON_KEYRING_BACKEND` are obeyed.
    """
    # Imported here: most machines that run agents have no keyring, and pay nothing for it.
    from keyring import backend, core

    configured = core.load_env() or core.load_config()
    if configured is not None:
        if class_name(configured) not in ALLOWED:
            raise NoKeyring(f"keyring is configured to use {class_name(configured)}")
        return configured
    usable = [found for found in backend.get_all_keyring() if class_name(found) in ALLOWED]
    if not usable:
        raise NoKeyring("there is no keyring that Ostler trusts")
    return max(usable, key=backend.by_priority)


def _load() -> None:
    for name in LIBRARIES:
        # A failure here recurs, and is reported, in the search for a backend.
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def class_name(backend: object) -> str:
    """Module and name of a backend's class."""
    return f"{type(backend).__module__}.{type(backend).__qualname__}"


def plausible(environ: Mapping[str, str]) -> bool:
    """Whether there can be a keyring: the system has one built in, or there is a session bus. Blocks."""
    if sys.platform in ("darwin", "win32"):
        return True
    if environ.get(BUS_VARIABLE):
        return True
    runtime = environ.get(RUNTIME_VARIABLE)
    return bool(runtime) and (Path(str(runtime)) / BUS_SOCKET).exists()


class OsKeyring:
    """The keyring of this user. Each call runs in a separate thread, which is abandoned after `seconds`.

    An abandoned thread is a daemon and does not delay the exit; after the first timeout every call fails at
    once. Cancellation abandons the thread, too. Every method raises KeyringUnavailable.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        *,
        find: Callable[[], Backend] = find_backend,
        seconds: float = KEYRING_SECONDS,
    ) -> None:
        self._environ = environ
        self._find = find
        self._seconds = seconds
        self._backend: Backend | None = None
        self._given_up: KeyringUnavailable | None = None

    @property
    def name(self) -> str:
        """For people: which keyring it is."""
        kind = None if self._backend is None else ALLOWED.get(class_name(self._backend))
        return "the OS keyring" if kind is None else f"the OS keyring ({kind})"

    async def plausible(self) -> bool:
        """Whether a keyring is likely to be available. Cheap, while a call loads a library and contacts other
        processes."""
        return self._given_up is None and await trio.to_thread.run_sync(plausible, self._environ)

    async def get(self, entry: str) -> str | None:
        """The text of an entry, None where there is none."""
        return await self._ask(lambda backend: backend.get_password(SERVICE, entry))

    async def set(self, entry: str, text: str) -> None:
        """Store an entry, and read it back: some keyrings silently discard it."""

        def store(backend: Backend) -> None:
            backend.set_password(SERVICE, entry, text)
            if backend.get_password(SERVICE, entry) != text:
                raise KeyringUnavailable("the keyring does not keep what it is given")

        await self._ask(store)

    async def delete(self, entry: str) -> None:
        """Remove an entry."""
        await self._ask(lambda backend: backend.delete_password(SERVICE, entry))

    async def _ask(self, question: Callable[[Backend], T]) -> T:
        if self._given_up is not None:
            raise self._given_up
        if self._backend is None and self._find is find_backend:
            await trio.to_thread.run_sync(_load)

        def ask() -> T:
            try:
                if self._backend is None:
                    self._backend = self._find()
                return question(self._backend)
            except KeyringUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 - backends raise what their libraries do
                # Report its type alone: the text of a foreign exception may quote a secret.
                kind = type(error).__name__
                meaning = MEANING.get(kind, "the keyring failed")
                raise KeyringUnavailable(f"{meaning} ({kind})") from None

        with trio.move_on_after(self._seconds):
            # A separate limiter, so that a hung thread takes no slot from other work.
            return await trio.to_thread.run_sync(ask, abandon_on_cancel=True, limiter=trio.CapacityLimiter(1))
        self._given_up = KeyringUnavailable(
            f"the keyring did not answer within {self._seconds:g} s; is it locked?"
        )
        raise self._given_up
