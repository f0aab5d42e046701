"""The store of global secrets: names in the clear, values encrypted, one document."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from supervisor.credentials.cipher import Cipher
from supervisor.credentials.document import PROBE, Document, Sealed, dump_document, parse_document
from supervisor.credentials.external_sources import ExternalSources, FoundSecret, merge
from supervisor.credentials.master import KeyPlaces, MasterKey, Place
from supervisor.credentials.os_keyring import OsKeyring
from supervisor.credentials.secret import (
    CredentialsFailure,
    InvalidSecretValue,
    NotDecryptable,
    Secret,
    SecretInfo,
    SecretsCorrupt,
    SecretsUnavailable,
    WrongMasterKey,
    check_name,
    check_value,
)
from supervisor.documents.changing import Changing
from supervisor.documents.files import FileDocuments
from supervisor.documents.port import Document as StoredDocument
from supervisor.documents.port import Documents, DocumentsUnavailable

log = structlog.get_logger(__name__)

#: The document's name.
SECRETS_FILE: Final = "secrets.json"

#: Named here, since the store's own `list` hides the type inside the class.
SecretInfos = list[SecretInfo]
FoundSecrets = list[FoundSecret]

#: Threads for this room's disk work. One file, changed by one caller at a time, needs one.
DISK_THREADS: Final = 1

#: Most bytes of the file: far more than any set of secrets takes. More would not be read back.
MAX_FILE_BYTES: Final = 64 * 1024 * 1024


@attrs.frozen
class _Entry:
    token: str = attrs.field(repr=False)
    value: Secret
    description: str | None


@attrs.frozen
class _Kept:
    """The decrypted content, and its stamp."""

    stamp: Hashable
    entries: Mapping[str, _Entry]


@attrs.frozen
class Rotation:
    """The result of a rotation: the sources of the new and the previous key, and the number of secrets."""

    source: str
    before: str
    secrets: int


class SecretStore:
    """Global secrets: those in the document `secrets.json`, and those from external directories and
    variables.

    The document is decrypted and then cached until another server changes it; external secrets are read each
    time. Open the store with `open`; there is nothing to close. Every method may raise SecretsCorrupt,
    WrongMasterKey, MasterKeyUnavailable or SecretsUnavailable; the document is then left alone, and a corrupt
    one is read again by the next call. What changes it may raise OSError.

    Cancellation: a change that has reached the disk is finished and then visible; one that has
    not yet begun has no effect.
    """

    def __init__(
        self,
        document: StoredDocument,
        key: MasterKey | CredentialsFailure,
        places: KeyPlaces,
        outside: ExternalSources,
    ) -> None:
        self._document = document
        self._key = key
        self._places = places
        self._outside = outside
        self._lock = Changing(document)
        self._limiter = trio.CapacityLimiter(DISK_THREADS)
        self._kept: _Kept | None = None
        self._problems: tuple[str, ...] = ()

    @classmethod
    async def open(
        cls,
        state: Path,
        environ: Mapping[str, str],
        *,
        keyring: OsKeyring | None = None,
        documents: Documents | None = None,
    ) -> SecretStore:
        """Find or create the master key of `state` (`KeyPlaces.find`), and note what `environ` gives.

        A key that is unavailable does not stop a server from starting: every use of the store
        then raises that error. `keyring` None: none is asked. `documents`: those of the state directory if
        None. Raises SecretsUnavailable.
        """
        document = (documents or FileDocuments(state)).document(SECRETS_FILE)
        places = KeyPlaces(state, environ, keyring)
        try:
            key: MasterKey | CredentialsFailure = await _find(document, places)
        except SecretsUnavailable:
            raise
        except CredentialsFailure as error:
            key = error
        store = cls(document, key, places, ExternalSources.of(environ))
        await store._read_outside()
        return store

    @property
    def master(self) -> MasterKey:
        """The key in use. Raises `failure` if it is unavailable."""
        if isinstance(self._key, CredentialsFailure):
            raise self._key
        return self._key

    @property
    def failure(self) -> CredentialsFailure | None:
        """Why the key is unavailable: the error that every use of the store raises."""
        return self._key if isinstance(self._key, CredentialsFailure) else None

    @property
    def key_source(self) -> str:
        """The variable, file or keyring that the master key came from."""
        return self.master.source

    @property
    def cipher(self) -> Cipher:
        """For encrypting other data under the same key. Read it at each use, since a rotation replaces it."""
        return self.master.cipher

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems of external secrets, as of the last read: one line each, without values."""
        return self._problems

    async def list(self) -> SecretInfos:
        """Names and descriptions of what is stored, sorted by name."""
        entries = await self._loaded()
        return [SecretInfo(name, entries[name].description) for name in sorted(entries)]

    async def get(self, name: str) -> str | None:
        """The value of one stored secret."""
        entry = (await self._loaded()).get(name)
        return None if entry is None else entry.value.reveal()

    async def found(self) -> dict[str, FoundSecret]:
        """Every global secret by name, sorted: the store goes before directories, these before variables."""
        stored = [
            FoundSecret(name, entry.value, "store", description=entry.description)
            for name, entry in (await self._loaded()).items()
        ]
        merged = merge([*stored, *await self._read_outside()])
        return dict(sorted(merged.items()))

    async def values(self) -> dict[str, str]:
        """The values in use, by name, as for an agent's environment."""
        return {name: secret.value.reveal() for name, secret in (await self.found()).items()}

    async def set(self, name: str, value: str, description: str | None = None) -> None:
        """Store a secret durably, replacing its value and description.

        Raises InvalidSecretName or InvalidSecretValue.
        """
        check_name(name)
        check_value(value)
        async with self._lock:
            await self._put(name, value, description)

    async def exchange(self, name: str, value: str, replaceable: Callable[[str], bool]) -> bool:
        """Replace the stored value of a secret, if there is one and it may be replaced; whether it was.

        Atomic: the value passed to `replaceable` is the one replaced. Raises InvalidSecretValue.
        """
        check_value(value)
        async with self._lock:
            old = (await self._load()).get(name)
            if old is None or old.value.reveal() == value or not replaceable(old.value.reveal()):
                return False
            await self._put(name, value, old.description)
            return True

    async def _put(self, name: str, value: str, description: str | None) -> None:
        """Under the lock: write one entry."""
        entries = dict(await self._load())

        def write() -> None:
            entry = _Entry(self.cipher.encrypt(value.encode()), Secret(value), description)
            self._write({**entries, name: entry}, self.master)

        await trio.to_thread.run_sync(write, limiter=self._limiter)

    async def delete(self, name: str) -> bool:
        """Remove a stored secret durably; whether there was one."""
        async with self._lock:
            entries = dict(await self._load())
            if entries.pop(name, None) is None:
                return False
            await trio.to_thread.run_sync(self._write, entries, self.master, limiter=self._limiter)
            return True

    async def rotate(self) -> Rotation:
        """Encrypt every stored secret under another master key (see `KeyPlaces.renew`).

        Other data encrypted with this store's cipher stays as it is and can still be decrypted: the secret
        file keeps the earlier keys, encrypted under the new one.

        The file and its key exist at every moment, also after a crash or a cancellation: the new key is
        stored next to the old one, then the file is replaced as a whole, then the old key is removed. Raises
        CannotRotate, with everything unchanged, and OSError.
        """
        async with self._lock:
            entries = await self._load()
            before = self.master
            try:
                fresh = await self._places.renew(before, shared=self._document.shared)
            except NotDecryptable as error:
                raise SecretsCorrupt(self._document.shown, "an earlier key is damaged") from error

            def write() -> None:
                renewed = {
                    name: attrs.evolve(entry, token=fresh.cipher.encrypt(entry.value.reveal().encode()))
                    for name, entry in entries.items()
                }
                try:
                    self._write(renewed, fresh)
                finally:
                    # The file counts, even where it was replaced and only then something failed.
                    found = _read_document(self._document)
                    if found is not None and fresh.cipher.made(found.document.check):
                        self._kept, self._key = _Kept(found.stamp, renewed), fresh

            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(write, limiter=self._limiter)
                settled = self._key = await self._places.settle(fresh, before)
            log.info("changed the master key", source=settled.source, before=before.source)
            return Rotation(settled.source, before.source, len(entries))

    async def _loaded(self) -> Mapping[str, _Entry]:
        if self._kept is not None and not self._document.shared and not self._lock.here.locked():
            return self._kept.entries  # replaced as a whole, under the lock
        async with self._lock.here:
            return await self._load()

    async def _load(self) -> Mapping[str, _Entry]:
        """Under the lock `here`: the entries, read again only where another server has changed them."""
        if self._kept is not None and not self._document.shared:
            return self._kept.entries
        try:
            kept = await trio.to_thread.run_sync(self._read, limiter=self._limiter)
        except WrongMasterKey:
            if not self._document.shared:
                raise
            # Another server may have changed the key to one that is at hand here, too.
            self._key = await _find(self._document, self._places)
            kept = await trio.to_thread.run_sync(self._read, limiter=self._limiter)
        self._kept = kept
        return kept.entries

    async def _read_outside(self) -> FoundSecrets:
        if not self._outside.directories and not self._outside.variables:
            return []
        found, problems = await trio.to_thread.run_sync(self._outside.read, limiter=self._limiter)
        for problem in problems:
            if problem not in self._problems:
                log.warning("external secret not used", problem=problem)
        self._problems = problems
        return found

    def _read(self) -> _Kept:
        master = self.master
        try:
            if self._kept is not None and self._document.stamp() == self._kept.stamp:
                return self._kept
        except DocumentsUnavailable as error:
            raise SecretsUnavailable(str(error)) from error
        found = _read_document(self._document)
        if found is None:
            return _Kept(None, {})
        if not master.cipher.made(found.document.check):
            raise WrongMasterKey(self._document.shown, master.source)
        entries = {}
        for name, sealed in found.document.secrets.items():
            try:
                value = master.cipher.decrypt(sealed.token).decode()
            except (NotDecryptable, UnicodeError) as error:
                raise SecretsCorrupt(self._document.shown, f"the value of {name} is damaged") from error
            entries[name] = _Entry(sealed.token, Secret(value), sealed.description)
        return _Kept(found.stamp, entries)

    def _write(self, entries: Mapping[str, _Entry], master: MasterKey) -> None:
        secrets = {name: Sealed(entry.token, entry.description) for name, entry in entries.items()}
        data = _dumped(master, secrets)
        if len(data) > MAX_FILE_BYTES:
            raise InvalidSecretValue(
                f"All secrets together would take more than {MAX_FILE_BYTES} bytes. Delete some first."
            )
        self._kept = _Kept(self._document.write(data), entries)


@attrs.frozen
class _Found:
    document: Document
    stamp: Hashable


async def _find(stored: StoredDocument, places: KeyPlaces) -> MasterKey:
    """The master key. If it was just created in the keyring, create a secret file that names its entry; where
    other servers share the secrets, so that they refuse to start with another key."""

    def read() -> Document | None:
        try:
            found = _read_document(stored)
        except SecretsCorrupt:
            return None  # each use of the store raises it
        return None if found is None else found.document

    async def fitting(document: Document | None) -> MasterKey:
        return await places.find(stored.shown, document, stored.exists)

    document = await trio.to_thread.run_sync(read)
    try:
        key = await fitting(document)
    except WrongMasterKey:
        if document is not None:
            raise
        # Perhaps another server that starts at the same time has made the file since we looked.
        document = await trio.to_thread.run_sync(read)
        if document is None:
            raise
        return await fitting(document)
    if (key.place is Place.KEYRING and key.created) or (stored.shared and document is None):
        made = await trio.to_thread.run_sync(lambda: stored.create(_dumped(key, {})))
        if not made:  # but by another server
            await places.discard(key)
            return await fitting(await trio.to_thread.run_sync(read))
    return key


def _read_document(stored: StoredDocument) -> _Found | None:
    """The content of the secret file, None where there is none. Raises SecretsCorrupt, SecretsUnavailable."""
    try:
        found = stored.read(MAX_FILE_BYTES)
    except DocumentsUnavailable as error:
        raise SecretsUnavailable(str(error)) from error
    except OSError as error:
        raise SecretsCorrupt(stored.shown, error.strerror or "it cannot be read") from error
    return None if found is None else _Found(parse_document(found.data, stored.shown), found.stamp)


def _dumped(master: MasterKey, secrets: Mapping[str, Sealed]) -> bytes:
    cipher = master.cipher
    return dump_document(Document(cipher.encrypt(PROBE), secrets, cipher.wrapped, master.entry))
