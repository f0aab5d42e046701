"""Starts agents without a server, as a server with this state and environment would: for `ostler agents`."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from gateway.cli.failures import Failure
from gateway.cli.locations import agents_directory, with_server_keys
from gateway.configuration.parsing import keyring_allowed
from supervisor.agents import load_catalog
from supervisor.composition import LateCipher
from supervisor.conversations.agent.launch import Launcher
from supervisor.conversations.state.secret_box import SecretBox
from supervisor.credentials import CredentialsFailure, OsKeyring, SecretStore, is_private

SECRETS_FILE = "secrets.json"


@asynccontextmanager
async def offline_launcher(state: Path, env: Mapping[str, str] = os.environ) -> AsyncIterator[Launcher]:
    """A launcher with the secrets of that state, which writes nothing there but what it installs.

    What agents keep is in a temporary directory that goes with the block. Raises Failure when the keys
    or the secrets cannot be read.
    """
    given = with_server_keys(env)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory(prefix="ostler-agents-") as temporary:
        try:
            if (state / SECRETS_FILE).exists():
                keyring = OsKeyring(env) if keyring_allowed(env) else None
                secrets = await SecretStore.open(state, given, keyring=keyring)
            else:  # a new store would make a key, which is a server's business
                private = Path(temporary) / "state"
                private.mkdir(mode=0o700)
                secrets = await SecretStore.open(private, {**given, "OSTLER_MASTER_KEY": "nothing is kept"})
            await secrets.found()
        except CredentialsFailure as error:
            raise Failure(f"the secrets cannot be read: {error}") from None

        async def origins() -> dict[str, str]:
            return {name: secret.source for name, secret in (await secrets.found()).items()}

        yield Launcher(
            catalog=load_catalog(),
            prefix=agents_directory(state, env),
            data=Path(temporary) / "data",
            server_environment={name: value for name, value in env.items() if not is_private(name)},
            secrets=secrets.values,
            origins=origins,
            secret_box=SecretBox(LateCipher(secrets)),
        )
