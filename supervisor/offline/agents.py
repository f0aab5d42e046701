"""Starts agents as a server with this state and environment would."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from supervisor.agents.catalog import load_catalog
from supervisor.composition import LateCipher
from supervisor.conversations.agent.launch.launcher import Launcher
from supervisor.conversations.kinds import kind_of
from supervisor.conversations.state.secret_box import SecretBox
from supervisor.credentials.external_sources import is_private
from supervisor.credentials.os_keyring import OsKeyring
from supervisor.credentials.store import SECRETS_FILE, SecretStore
from supervisor.documents.port import Documents

HOMES: Final = "/var/tmp"  # noqa: S108 - a private directory is made there
"""Where agents' homes are: Codex' own sandbox hides /tmp from what it runs, with the home there."""


@asynccontextmanager
async def open_launcher(
    state: Path,
    agents: Path,
    environment: Mapping[str, str],
    keys: Mapping[str, str],
    *,
    keyring: bool,
    documents: Documents,
) -> AsyncIterator[Launcher]:
    """A launcher with the secrets of that state, which writes nothing there but agents that it installs.

    `keys`: the variables with the keys of the server. Agents' private data is in a temporary directory that
    is removed with the block. `documents`: those of the server. Raises CredentialsFailure when the secrets
    cannot be read, OSError.
    """
    place = HOMES if os.access(HOMES, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="ostler-agents-", dir=place) as temporary:
        if await trio.to_thread.run_sync(documents.document(SECRETS_FILE).exists):
            ring = OsKeyring(environment) if keyring else None
            secrets = await SecretStore.open(state, keys, keyring=ring, documents=documents)
        else:  # a new store would make a key, which is a server's business
            private = Path(temporary) / "state"
            private.mkdir(mode=0o700)
            secrets = await SecretStore.open(private, {**keys, "OSTLER_MASTER_KEY": "nothing is kept"})
        await secrets.found()

        async def origins() -> dict[str, str]:
            return {name: secret.source for name, secret in (await secrets.found()).items()}

        yield Launcher(
            catalog=load_catalog(),
            prefix=agents,
            data=Path(temporary) / "data",
            server_environment={name: value for name, value in environment.items() if not is_private(name)},
            secrets=secrets.values,
            origins=origins,
            secret_box=SecretBox(LateCipher(secrets)),
            kinds=kind_of,
        )
