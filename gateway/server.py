"""One running server: opens the rooms below, serves, and closes everything in order."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, cast

import attrs
import structlog
import trio
from hypercorn.typing import ASGIFramework

from gateway import logs
from gateway.app import create_app
from gateway.config import Config
from gateway.listener import BindError, bind, serve_connections, url_of
from gateway.mcp_jobs import open_jobs
from gateway.notify import Notifier
from gateway.services import Services
from supervisor.agents import Level, Lifeline, load_catalog, open_containment, presets
from supervisor.conversations.errors import InvalidStart
from supervisor.conversations.launcher import Launcher
from supervisor.conversations.mcp_logins import McpLogins
from supervisor.conversations.mcp_probe import McpProbe
from supervisor.conversations.supervisor import open_supervisor
from supervisor.conversations.vault import Vault
from supervisor.credentials import CredentialsFailure, OsKeyring, SecretStore, is_private, take_private
from supervisor.journal import JournalError, open_journal
from supervisor.mcp import server_errors
from supervisor.mcp.file import McpFile
from supervisor.mcp.logins import LoginStore
from supervisor.settings import (
    AgentProfileStore,
    AgentSettings,
    SettingsError,
    SettingsFailure,
    SettingsStore,
)

log = structlog.get_logger("gateway")

JOURNAL_FILE: Final = "journal.sqlite3"
AGENTS_DIR: Final = "agents"
"""Installed agents."""

DATA_DIR: Final = "data"
"""Data directories of agents that are kept apart per conversation."""

STATE_MODE: Final = 0o700

SWITCH_SECONDS: Final = 0.0005
"""How long one thread may keep the interpreter while another waits for it. The journal's thread holds it for
microseconds at a time; with Python's default of 5 ms a commit beside a busy loop would take that long."""


class StartupError(Exception):
    """The server cannot start. The message is one line for the terminal."""


@attrs.frozen
class StoreCipher:
    """The secret store's cipher, asked for when it is needed: a key that is missing must not stop a start."""

    store: SecretStore

    def encrypt(self, data: bytes) -> str:
        """Seal. Raises CredentialsFailure."""
        return self.store.cipher.encrypt(data)

    def decrypt(self, token: str) -> bytes:
        """Open. Raises CredentialsFailure."""
        return self.store.cipher.decrypt(token)


FORESEEN: Final = (BindError, JournalError, CredentialsFailure, SettingsFailure, OSError)
"""Failures of a start whose message is made for people."""


def run(config: Config, lifeline: Lifeline | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises StartupError when it could not be started."""
    logs.configure()
    sys.setswitchinterval(SWITCH_SECONDS)
    started = trio.Event()
    try:
        trio.run(partial(serve, config, started=started, lifeline=lifeline))
    except (Exception, BaseExceptionGroup) as error:
        reasons = list(_leaves(error))
        if started.is_set() or not all(isinstance(reason, FORESEEN) for reason in reasons):
            raise
        raise StartupError("; ".join(_line(reason) for reason in reasons)) from error


async def serve(
    config: Config, *, started: trio.Event | None = None, lifeline: Lifeline | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, or until cancelled; then stop accepting, finish, and close.

    Prints the address on stdout once the server accepts connections. Everything that is opened here is
    closed here: sockets first, then the agents, then the journal. With a warden the sockets are those of the
    server before, if there was one. Variables with secrets are taken out of this process's environment.
    """
    notifier = Notifier.take(os.environ)
    environ = {**os.environ, **take_private(os.environ)}
    sockets = (lifeline.listening() if lifeline is not None else []) or await bind(config)
    try:
        async with open_services(config, environ) as services, trio.open_nursery() as root:
            await root.start(_obey_signals, services.closing, root.cancel_scope)
            root.start_soon(notifier.keep_alive)
            async with trio.open_nursery() as serving:
                app = cast(ASGIFramework, create_app(services))
                await serving.start(serve_connections, app, sockets, config, services.closing)
                if lifeline is not None:
                    lifeline.serving(sockets)
                root.start_soon(_take_leave, services.closing, lifeline, notifier)
                print(f"Ostler is listening on {url_of(config, sockets)}", flush=True)
                await notifier.ready(f"Listening on {url_of(config, sockets)}")
                if started is not None:
                    started.set()
            root.cancel_scope.cancel()
    finally:
        for sock in sockets:
            sock.close()


async def _take_leave(closing: trio.Event, lifeline: Lifeline | None, notifier: Notifier) -> None:
    await closing.wait()
    if lifeline is not None:
        lifeline.closing()
    await notifier.stopping()


async def _obey_signals(
    closing: trio.Event,
    scope: trio.CancelScope,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """The first SIGTERM or SIGINT begins an orderly end, the next one cuts connections short."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            log.info("stopping", signal=signal.Signals(number).name)
            if closing.is_set():
                scope.cancel()
            closing.set()


@asynccontextmanager
async def open_services(config: Config, environ: Mapping[str, str]) -> AsyncIterator[Services]:
    """Open the rooms below over the state directory, which is made if need be.

    Leaving the block, also by cancellation, stops every agent and closes the journal. Raises what keeps
    one of them from being opened (FORESEEN).
    """
    await trio.to_thread.run_sync(_make_private, config.state)
    catalog = await trio.to_thread.run_sync(load_catalog)
    secrets = await SecretStore.open(
        config.state, environ, keyring=OsKeyring(environ) if config.keyring else None
    )
    cipher = StoreCipher(secrets)
    settings = SettingsStore(config.state, presets(catalog), server_errors, cipher)
    vault = Vault(cipher)
    logins = McpLogins(LoginStore(config.state, cipher), environ, config.state)
    supervision = config.supervision

    async def origins() -> dict[str, str]:
        return {name: secret.source for name, secret in (await secrets.found()).items()}

    launcher = Launcher(
        catalog=catalog,
        prefix=supervision.agents or config.state / AGENTS_DIR,
        data=config.state / DATA_DIR,
        server_environment={name: value for name, value in environ.items() if not is_private(name)},
        secrets=secrets.values,
        origins=origins,
        keep_secret=secrets.exchange,
        mcp_file=McpFile(config.state),
        mcp_logins=logins,
        hidden=(*config.session_api_keys, *(value for name, value in environ.items() if is_private(name))),
        vault=vault,
    )

    async def default_agent() -> AgentSettings:
        try:
            return (await settings.get()).agent(settings.rules.presets)
        except SettingsError as error:
            raise InvalidStart(f"the settings name no agent that can run: {error}", ("body",)) from error

    async with (
        open_journal(config.state / JOURNAL_FILE) as journal,
        # The journal's lock tells that no other server uses this state, so that what is left of one may go.
        open_containment(config.state, config.containment or Level.TREE),
        open_supervisor(
            journal=journal,
            launcher=launcher,
            vault=vault,
            default_agent=default_agent,
            forced_vocabulary=config.event_vocabulary,
            deadlines=supervision.deadlines,
            restart=supervision.restart,
            limits=supervision.limits,
            drain_seconds=supervision.drain_seconds,
        ) as supervisor,
        open_jobs(McpProbe(environ, _home(environ, config.state), logins)) as jobs,
    ):
        yield Services(
            config=config,
            supervisor=supervisor,
            launcher=launcher,
            settings=settings,
            profiles=AgentProfileStore(settings),
            secrets=secrets,
            mcp=jobs,
        )


def _home(environ: Mapping[str, str], otherwise: Path) -> Path:
    """Where programs are started that belong to no conversation."""
    home = Path(environ.get("HOME") or otherwise)
    return home if home.is_dir() else otherwise


def _make_private(state: Path) -> None:
    state.mkdir(mode=STATE_MODE, parents=True, exist_ok=True)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
