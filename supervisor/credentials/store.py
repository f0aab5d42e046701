"""The store of global secrets: names in clear, values encrypted, one private file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs
import trio

from supervisor.credentials.cipher import Cipher
from supervisor.credentials.errors import CredentialsFailure, NotDecryptable, SecretsCorrupt, WrongMasterKey
from supervisor.credentials.files import replace_private
from supervisor.credentials.master import MasterKey, find_master_key
from supervisor.credentials.secret import Secret, SecretInfo, check_name, check_value

#: In the state directory.
SECRETS_FILE: Final = "secrets.json"

#: Of the file's layout.
FORMAT_VERSION: Final = 1

#: A text encrypted with the master key in every file, so that a wrong key shows before it does harm.
PROBE: Final = b"ostler"

#: Named here, since the store's own ``list`` hides the type inside the class.
SecretInfos = list[SecretInfo]

#: Threads for this room's disk work. One file, changed by one caller at a time, needs one.
DISK_THREADS: Final = 1


@attrs.frozen
class _Entry:
    token: str = attrs.field(repr=False)
    value: Secret
    description: str | None


class SecretStore:
    """Global secrets in ``<state>/secrets.json``, decrypted once and then kept in memory.

    Open it with :meth:`open`; there is nothing to close. One process owns the file: what
    others write into it meanwhile is not seen. Every method may raise SecretsCorrupt or
    WrongMasterKey on first use; the file is then left alone and asked again next time.

    Cancellation: a change that has reached the disk is finished and then visible; one that has
    not yet begun has no effect.
    """

    def __init__(self, path: Path, key: MasterKey | CredentialsFailure) -> None:
        self._path = path
        self._key = key
        self._lock = trio.Lock()
        self._limiter = trio.CapacityLimiter(DISK_THREADS)
        self._entries: dict[str, _Entry] | None = None

    @classmethod
    async def open(cls, state: Path, environ: Mapping[str, str]) -> SecretStore:
        """Find or create the master key of ``state`` (see ``find_master_key``).

        A key that cannot be had does not stop a server from starting: every use of the store
        then raises that error.
        """
        path = state / SECRETS_FILE

        def find() -> MasterKey | CredentialsFailure:
            try:
                return find_master_key(state, environ, needed_by=path)
            except CredentialsFailure as error:
                return error

        return cls(path, await trio.to_thread.run_sync(find))

    @property
    def master(self) -> MasterKey:
        """The key in use. Raises what kept it from being had."""
        if isinstance(self._key, CredentialsFailure):
            raise self._key
        return self._key

    @property
    def key_source(self) -> str:
        """The variable or file that the master key came from."""
        return self.master.source

    @property
    def cipher(self) -> Cipher:
        """For whatever else is to be kept encrypted under the same key."""
        return self.master.cipher

    async def list(self) -> SecretInfos:
        """Names and descriptions, sorted by name."""
        entries = await self._loaded()
        return [SecretInfo(name, entries[name].description) for name in sorted(entries)]

    async def get(self, name: str) -> str | None:
        """The value of one secret."""
        entry = (await self._loaded()).get(name)
        return None if entry is None else entry.value.reveal()

    async def values(self) -> dict[str, str]:
        """All values by name, as an agent's environment wants them."""
        return {name: entry.value.reveal() for name, entry in (await self._loaded()).items()}

    async def set(self, name: str, value: str, description: str | None = None) -> None:
        """Store a secret durably, replacing its value and description.

        Raises InvalidSecretName or InvalidSecretValue.
        """
        check_name(name)
        check_value(value)
        async with self._lock:
            entries = dict(await self._load())

            def write() -> _Entry:
                entry = _Entry(self.cipher.encrypt(value.encode()), Secret(value), description)
                self._write({**entries, name: entry})
                return entry

            entry = await trio.to_thread.run_sync(write, limiter=self._limiter)
            self._entries = {**entries, name: entry}

    async def delete(self, name: str) -> bool:
        """Remove a secret durably; whether there was one."""
        async with self._lock:
            entries = dict(await self._load())
            if entries.pop(name, None) is None:
                return False
            await trio.to_thread.run_sync(self._write, entries, limiter=self._limiter)
            self._entries = entries
            return True

    async def _loaded(self) -> dict[str, _Entry]:
        async with self._lock:
            return await self._load()

    async def _load(self) -> dict[str, _Entry]:
        """Under the lock: the entries, from the disk the first time."""
        if self._entries is None:
            self._entries = await trio.to_thread.run_sync(self._read, limiter=self._limiter)
        return self._entries

    def _read(self) -> dict[str, _Entry]:
        master = self.master
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise SecretsCorrupt(self._path, error.strerror or "it cannot be read") from error
        probe, tokens = self._parse(data)
        try:
            if master.cipher.decrypt(probe) != PROBE:
                raise WrongMasterKey(self._path, master.source)
        except NotDecryptable as error:
            raise WrongMasterKey(self._path, master.source) from error
        entries = {}
        for name, (token, description) in tokens.items():
            try:
                value = master.cipher.decrypt(token).decode()
            except (NotDecryptable, UnicodeError) as error:
                raise SecretsCorrupt(self._path, f"the value of {name} is damaged") from error
            entries[name] = _Entry(token, Secret(value), description)
        return entries

    def _parse(self, data: bytes) -> tuple[str, dict[str, tuple[str, str | None]]]:
        """The file's probe, and token and description by name. Raises SecretsCorrupt."""
        try:
            document = json.loads(data)
            if document["version"] != FORMAT_VERSION:
                raise SecretsCorrupt(self._path, "it was written by another version of Ostler")
            secrets = {
                name: (str(entry["value"]), entry["description"])
                for name, entry in document["secrets"].items()
            }
            return str(document["check"]), secrets
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise SecretsCorrupt(self._path, "it is not the JSON that Ostler writes") from error

    def _write(self, entries: Mapping[str, _Entry]) -> None:
        document = {
            "version": FORMAT_VERSION,
            "check": self.cipher.encrypt(PROBE),
            "secrets": {
                name: {"value": entry.token, "description": entry.description}
                for name, entry in sorted(entries.items())
            },
        }
        replace_private(self._path, json.dumps(document, indent=1).encode() + b"\n")
