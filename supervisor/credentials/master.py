"""The master key: its location, the choice among several, and its rotation.

The key that decrypts the existing secrets has precedence, wherever it is stored. Next, a variable precedes
the keyring, though the keyring is safer: an operator set it on purpose, for a server that must start without
a logged-in user.
"""

from __future__ import annotations

import base64
import enum
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from supervisor.credentials.cipher import Cipher
from supervisor.credentials.document import Document
from supervisor.credentials.os_keyring import KeyringUnavailable, NoKeyring, OsKeyring
from supervisor.credentials.secret import (
    CannotRotate,
    CredentialsFailure,
    MasterKeyUnavailable,
    SecretsCorrupt,
    WrongMasterKey,
)
from supervisor.private_files import create_private, replace_private

log = structlog.get_logger(__name__)

#: Looked at in this order. The second is the name that peers of this wire use.
KEY_VARIABLES: Final = ("OSTLER_MASTER_KEY", "OH_SECRET_KEY")

#: Earlier keys, separated by commas: values encrypted under them can still be decrypted.
PREVIOUS_VARIABLES: Final = ("OSTLER_PREVIOUS_MASTER_KEYS", "OH_PREVIOUS_SECRET_KEYS")

#: Next to the secrets, if neither a variable nor a keyring holds the key.
KEY_FILE: Final = "master.key"

#: The next key, during a rotation: it becomes KEY_FILE once the secrets are encrypted under it.
NEW_KEY_FILE: Final = "master.key.new"

#: Random bytes of a created key: as many as SHA-256 keeps.
KEY_BYTES: Final = 32

#: Random bytes in the name of a keyring entry, so that no two state directories share one.
ENTRY_BYTES: Final = 8


class Place(enum.Enum):
    """Where a master key is kept."""

    VARIABLE = "variable"
    PREVIOUS = "previous"
    FILE = "file"
    NEW_FILE = "new file"
    KEYRING = "keyring"


@attrs.frozen
class MasterKey:
    """A key at hand. `source` names the variable, the file or the keyring; `created`: made just now.

    `cipher` also opens what the other keys at hand made. `entry` is the keyring's name for the key.
    """

    cipher: Cipher
    source: str
    created: bool = False
    place: Place = Place.VARIABLE
    entry: str | None = None


class KeyPlaces:
    """Finds, creates and rotates the master key of one state directory.

    `environ` holds KEY_VARIABLES and PREVIOUS_VARIABLES; with `keyring` None none is used.
    """

    def __init__(self, state: Path, environ: Mapping[str, str], keyring: OsKeyring | None) -> None:
        self._state = state
        self._phrases = {
            name: environ[name].strip() for name in KEY_VARIABLES if environ.get(name, "").strip()
        }
        self._previous = [
            (phrase.strip(), name)
            for name in PREVIOUS_VARIABLES
            for phrase in environ.get(name, "").split(",")
            if phrase.strip()
        ]
        self._keyring = keyring

    async def find(self, where: str, document: Document | None, exists: Callable[[], bool]) -> MasterKey:
        """The key that the secret file was written with; without such a file, the key to use for a new one.

        `document` is the content of the file `where`, None if there is none or it is not readable. A key
        that fits it is used, wherever it is stored. For a new file the order is: KEY_VARIABLES, an existing
        key file, the keyring, a new key file.

        Raises WrongMasterKey when no key fits, MasterKeyUnavailable when it is in a keyring that cannot be
        read, SecretsCorrupt for a key file that cannot be used. No key is made while the file `exists`, which
        blocks: under a fresh one nothing could be read.
        """
        keys, problem = await trio.to_thread.run_sync(self._at_hand)
        if document is not None:
            return await self._fitting(where, document, keys, problem)
        for key in keys:
            if key.place is not Place.PREVIOUS:
                return _with_others(key, keys)
        if problem is not None:
            raise problem
        if await trio.to_thread.run_sync(exists):
            raise WrongMasterKey(where, f"{self._state / KEY_FILE}, which is missing")
        return _with_others(await self._create(), keys)

    async def renew(self, current: MasterKey, *, shared: bool = False) -> MasterKey:
        """The key to rotate to, already stored but not in use.

        It is a variable's, if that differs from the one in use; else a new key, in the keyring if there is
        one, else in NEW_KEY_FILE. Its cipher decrypts everything that `current` decrypts. Raises CannotRotate
        if the variable holds the current key, if a key would move out of the keyring, or if other servers
        share the secrets (`shared`) and could not know a new key; NotDecryptable if an earlier key is
        damaged; OSError. Cancellation leaves at most an unused key behind.
        """
        for name, phrase in self._phrases.items():
            if not current.cipher.same_key(Cipher(phrase)):
                return await _renewed(current, MasterKey(Cipher(phrase), name))
            raise CannotRotate(
                f"the master key comes from {name}; start Ostler with a new key there and the present one in "
                f"{PREVIOUS_VARIABLES[0]}, then rotate"
            )
        if shared:
            raise CannotRotate(
                "several servers share the secrets, and each needs the new master key: start all of them "
                f"with it in {KEY_VARIABLES[0]} and the present one in {PREVIOUS_VARIABLES[0]}, then rotate"
            )
        phrase = _fresh_phrase()
        try:
            stored = await self._into_keyring(phrase)
        except KeyringUnavailable as error:
            if current.place is Place.KEYRING:
                raise _cannot_move(str(error)) from error
            _note_unused(error)
            stored = None
        if stored is not None:
            return await _renewed(current, stored)
        if current.place is Place.KEYRING:
            raise _cannot_move("it cannot be reached")
        if current.place is Place.NEW_FILE:
            await trio.to_thread.run_sync(self._promote)  # it is the only copy of the key in use
        path = self._state / NEW_KEY_FILE
        await trio.to_thread.run_sync(replace_private, path, phrase.encode() + b"\n")
        return await _renewed(current, MasterKey(Cipher(phrase), str(path), place=Place.NEW_FILE))

    async def settle(self, current: MasterKey, before: MasterKey) -> MasterKey:
        """Finish a rotation once the secret file is encrypted under `current`: remove the previous key.

        The secret file keeps it, encrypted. A key that cannot be removed is logged and stays. Returns
        `current` with its final location.
        """
        if current.place is not Place.NEW_FILE:
            await trio.to_thread.run_sync(self._remove_files, current)
        if self._keyring is not None and before.entry not in (None, current.entry):
            await self.discard(before)
        return await self._settled(current)

    async def discard(self, key: MasterKey) -> None:
        """Remove a key from the keyring. One that cannot be removed is logged."""
        if key.entry is not None and self._keyring is not None:
            try:
                await self._keyring.delete(key.entry)
            except KeyringUnavailable as error:
                log.warning("cannot remove an old key from the keyring", entry=key.entry, reason=str(error))

    async def _fitting(
        self, where: str, document: Document, keys: list[MasterKey], problem: CredentialsFailure | None
    ) -> MasterKey:
        fitting = next((key for key in keys if key.cipher.made(document.check)), None)
        if fitting is None and document.keyring_entry is not None:
            # Asked last, since it takes time.
            fitting = await self._from_keyring(where, document.keyring_entry)
            if not fitting.cipher.made(document.check):
                raise WrongMasterKey(where, fitting.source)
        if fitting is None:
            if problem is not None:
                raise problem
            tried = " or ".join(dict.fromkeys(key.source for key in keys))
            raise WrongMasterKey(where, tried or f"{self._state / KEY_FILE}, which is missing")
        wanted = next(iter(self._phrases), fitting.source)
        if wanted != fitting.source:
            log.warning(
                "secrets are still encrypted with another key; run `ostler secrets rotate`",
                in_use=fitting.source,
                wanted=wanted,
            )
        return await self._settled(_with_others(fitting, keys, document.retired))

    async def _settled(self, key: MasterKey) -> MasterKey:
        """The key, in KEY_FILE if it was in NEW_KEY_FILE."""
        if key.place is not Place.NEW_FILE:
            return key
        try:
            await trio.to_thread.run_sync(self._promote)
        except OSError as error:
            log.warning("cannot rename the new key file", reason=error.strerror)
            return key
        return attrs.evolve(key, source=str(self._state / KEY_FILE), place=Place.FILE)

    async def _from_keyring(self, where: str, entry: str) -> MasterKey:
        if self._keyring is None:
            raise MasterKeyUnavailable(where, "its use is turned off (OSTLER_KEYRING)")
        try:
            phrase = await self._keyring.get(entry)
        except KeyringUnavailable as error:
            raise MasterKeyUnavailable(where, str(error)) from error
        if phrase is None:
            raise MasterKeyUnavailable(where, f"it has no entry {entry}")
        return MasterKey(Cipher(phrase), self._keyring.name, place=Place.KEYRING, entry=entry)

    async def _create(self) -> MasterKey:
        phrase = _fresh_phrase()
        try:
            stored = await self._into_keyring(phrase)
        except KeyringUnavailable as error:
            _note_unused(error)
            stored = None
        if stored is not None:
            return stored
        path = self._state / KEY_FILE
        created = await trio.to_thread.run_sync(create_private, path, phrase.encode() + b"\n")
        # Read back even after creating: when two servers start at once, the file decides.
        phrase = await trio.to_thread.run_sync(_read_phrase, path)
        if created:
            log.info("created a master key for secrets", file=str(path))
        return MasterKey(Cipher(phrase), str(path), created, Place.FILE)

    async def _into_keyring(self, phrase: str) -> MasterKey | None:
        """The key, stored in a new entry of the keyring; None where there can be no keyring.

        Raises KeyringUnavailable.
        """
        if self._keyring is None or not await self._keyring.plausible():
            return None
        entry = f"master-key-{os.urandom(ENTRY_BYTES).hex()}"
        await self._keyring.set(entry, phrase)
        log.info("created a master key for secrets", keyring=self._keyring.name, entry=entry)
        return MasterKey(Cipher(phrase), self._keyring.name, True, Place.KEYRING, entry)

    def _at_hand(self) -> tuple[list[MasterKey], CredentialsFailure | None]:
        """The keys in variables and key files, by preference; and the error of an invalid key file.
        Blocks."""
        problem: CredentialsFailure | None = None
        keys = [MasterKey(Cipher(phrase), name) for name, phrase in self._phrases.items()]
        for file, place in ((KEY_FILE, Place.FILE), (NEW_KEY_FILE, Place.NEW_FILE)):
            path = self._state / file
            try:
                if path.exists():
                    keys.append(MasterKey(Cipher(_read_phrase(path)), str(path), place=place))
            except SecretsCorrupt as error:
                problem = problem or error
        for phrase, name in self._previous:
            keys.append(MasterKey(Cipher(phrase), name, place=Place.PREVIOUS))
        return keys, problem

    def _promote(self) -> None:
        """Rename the new key file to KEY_FILE. If it is missing, another process has renamed it already."""
        with suppress(FileNotFoundError):
            (self._state / NEW_KEY_FILE).replace(self._state / KEY_FILE)

    def _remove_files(self, current: MasterKey) -> None:
        """Remove key files whose keys `current` includes."""
        for path in (self._state / KEY_FILE, self._state / NEW_KEY_FILE):
            try:
                if path.exists() and current.cipher.knows(Cipher(_read_phrase(path))):
                    path.unlink()
            except (OSError, SecretsCorrupt) as error:
                log.warning("cannot remove the earlier key file", reason=str(error))


def _cannot_move(reason: str) -> CannotRotate:
    """The error for a rotation that would move the key from the keyring to a file."""
    return CannotRotate(
        f"the OS keyring holds the master key and takes no new one: {reason}. Nothing was changed. "
        "Unlock the keyring, start Ostler again, then rotate"
    )


def _note_unused(error: KeyringUnavailable) -> None:
    """Log that the key goes to a file since the keyring cannot be used."""
    if isinstance(error, NoKeyring):
        log.info("OS keyring not used", reason=str(error))
    else:
        log.warning(
            "the OS keyring cannot be used, and the new master key goes to a file. Unlock the keyring, start "
            "Ostler again and run `ostler secrets rotate` to move it, or set OSTLER_KEYRING=off",
            reason=str(error),
        )


async def _renewed(current: MasterKey, key: MasterKey) -> MasterKey:
    """The key, with a cipher that decrypts everything that `current` decrypts."""
    wrapped = await trio.to_thread.run_sync(key.cipher.wrap, current.cipher)
    return attrs.evolve(key, created=True, cipher=key.cipher.opening(wrapped=wrapped))


def _with_others(key: MasterKey, keys: Iterable[MasterKey], wrapped: Iterable[str] = ()) -> MasterKey:
    """The key, with a cipher that also decrypts tokens of the others and of earlier keys."""
    # A new key that is not in use has encrypted nothing: an interrupted rotation left it.
    others = [
        each.cipher
        for each in keys
        if each.place is not Place.NEW_FILE and not each.cipher.same_key(key.cipher)
    ]
    return attrs.evolve(key, cipher=key.cipher.opening(others, wrapped))


def _fresh_phrase() -> str:
    """A phrase, so that the content of a key file may later move into a variable."""
    return base64.urlsafe_b64encode(os.urandom(KEY_BYTES)).decode("ascii")


def _read_phrase(path: Path) -> str:
    try:
        phrase = path.read_text("ascii").strip()
    except (OSError, UnicodeError) as error:
        raise SecretsCorrupt(path, "the key file cannot be read") from error
    if not phrase:
        raise SecretsCorrupt(path, "the key file is empty")
    return phrase
