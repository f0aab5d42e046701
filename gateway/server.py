"""One running server: opens the rooms below, serves, and closes everything in order."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, cast

import attrs
import structlog
import trio
from hypercorn.typing import ASGIFramework

import supervisor
from gateway import logs
from gateway.app import create_app
from gateway.config import Config
from gateway.control import ControlSocket
from gateway.keys import is_key
from gateway.listener import BindError, bind, serve_connections, url_of
from gateway.mcp_jobs import open_jobs
from gateway.notify import Notifier
from gateway.services import Services
from supervisor.agents import Level, Lifeline
from supervisor.agents.lifeline import WardenGone
from supervisor.composition import open_secrets
from supervisor.credentials import CredentialsFailure, is_private, take_private
from supervisor.journal import Journal, JournalClosed, JournalError
from supervisor.settings import (
    SettingsFailure,
)
from supervisor.state_directory import StateRefused

log = structlog.get_logger(__name__)

SWITCH_SECONDS: Final = 0.0005
"""How long one thread may keep the interpreter while another waits for it. The journal's thread holds it for
microseconds at a time; with Python's default of 5 ms a commit beside a busy loop would take that long."""


ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end the server in order."""


class StartupError(Exception):
    """The server cannot start, or cannot go on. The message is one line for the terminal."""


FORESEEN: Final = (BindError, StateRefused, JournalError, CredentialsFailure, SettingsFailure, OSError)
"""Failures of a start whose message is made for people."""


def run(config: Config, lifeline: Lifeline | None = None, keys: Mapping[str, str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises StartupError when it could not start, or its journal failed,
    WardenGone when it ended since its warden had. `keys` are variables with keys and secrets that are not in
    the environment."""
    logs.configure()
    sys.setswitchinterval(SWITCH_SECONDS)
    started = trio.Event()
    try:
        trio.run(partial(serve, config, started=started, lifeline=lifeline, keys=keys))
    except (Exception, BaseExceptionGroup) as error:
        reasons = list(_leaves(error))
        failures = list(
            dict.fromkeys(_line(reason) for reason in reasons if isinstance(reason, JournalError))
        )
        if started.is_set() and failures:
            for reason in reasons:
                if not isinstance(reason, JournalError):
                    log.exception("failed together with the journal", exc_info=reason)
            raise StartupError("; ".join(failures)) from error
        if started.is_set() or not all(isinstance(reason, FORESEEN) for reason in reasons):
            raise
        raise StartupError("; ".join(_line(reason) for reason in reasons)) from error
    if lifeline is not None and lifeline.gone:
        raise WardenGone("the warden was killed; the server has ended its agents, and itself")


async def serve(
    config: Config,
    *,
    started: trio.Event | None = None,
    lifeline: Lifeline | None = None,
    keys: Mapping[str, str] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, or until cancelled; then stop accepting, finish, and close.

    Prints the address on stdout once the server accepts connections. Everything that is opened here is
    closed here: sockets first, then the agents, then the journal. With a warden the sockets are those of the
    server before, if there was one. Variables with secrets are taken out of this process's environment;
    `keys` are such variables that have been taken out before. When the warden ends, there is no finishing:
    the agents are killed at once.
    """
    notifier = Notifier.take(os.environ)
    environ = {**os.environ, **take_private(os.environ), **(keys or {})}
    sockets = (lifeline.listening() if lifeline is not None else []) or await bind(config)
    try:
        # Signals are heard until the last agent is gone, so that an end that has begun can become a faster
        # one.
        async with trio.open_nursery() as hearing:
            async with (
                open_services(config, environ) as services,
                _control_socket(config) as control,
                trio.open_nursery() as root,
            ):
                await hearing.start(_obey_signals, services, root.cancel_scope, lifeline)
                root.start_soon(notifier.keep_alive)
                root.start_soon(_watch_journal, services.supervisor.journal, notifier)
                async with trio.open_nursery() as serving:
                    app = cast(ASGIFramework, create_app(services))
                    serve = partial(
                        serve_connections, connection_limits=services.connection_limits, control=control
                    )
                    await serving.start(serve, app, sockets, config, services.closing)
                    if lifeline is not None:
                        lifeline.serving(sockets)
                    root.start_soon(_take_leave, services.closing, lifeline, notifier)
                    logs.say(f"Ostler is listening on {url_of(config, sockets)}")
                    await notifier.ready(f"Listening on {url_of(config, sockets)}")
                    gc.freeze()  # what is there by now stays: the collector need not look through it
                    if started is not None:
                        started.set()
                root.cancel_scope.cancel()
            hearing.cancel_scope.cancel()
    finally:
        for sock in sockets:
            sock.close()


async def _watch_journal(journal: Journal, notifier: Notifier) -> None:
    """Tell the service manager when nothing can be stored. Raises JournalError when nothing ever can be: the
    next server, which the warden starts, may do better, and else says why it cannot."""
    told = None
    while True:
        if journal.failure is not None and not isinstance(journal.failure, JournalClosed):
            log.error("the journal failed; the server ends", error=str(journal.failure))
            raise JournalError(f"the server ends, since its journal failed: {journal.failure}")
        trouble = None if journal.trouble is None else journal.trouble.reason
        if trouble == told:
            await journal.changed()
        else:
            told = trouble
            await notifier.status(
                "Running" if trouble is None else f"The journal cannot be written: {trouble}"
            )


@asynccontextmanager
async def _control_socket(config: Config) -> AsyncIterator[socket.socket | None]:
    """The socket for operators, and its file; a server that cannot have it goes on without.

    After the journal was opened, whose lock tells that no other server uses the state directory.
    """
    try:
        opened = await trio.to_thread.run_sync(ControlSocket, config.state)
    except OSError as error:
        log.warning("no control socket: operators need the address", reason=str(error))
        yield None
        return
    try:
        yield opened.socket
    finally:
        opened.close()


async def _take_leave(closing: trio.Event, lifeline: Lifeline | None, notifier: Notifier) -> None:
    await closing.wait()
    if lifeline is not None:
        lifeline.closing()
    await notifier.stopping()


async def _obey_signals(
    services: Services,
    scope: trio.CancelScope,
    lifeline: Lifeline | None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """The first SIGTERM, SIGINT or SIGHUP begins an orderly end; the next one cuts connections, and what
    turns have left of their time, short.

    One that tells of the warden's end is no order: whoever killed the warden may kill us next, and then
    nobody would be there to end the agents. (To a server that is stopped the kernel sends SIGHUP then, since
    its process group is an orphan, and has it go on.)
    """
    closing = services.closing
    heard = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]  # as under nohup
    with trio.open_signal_receiver(*heard) as signals:
        task_status.started()
        async for number in signals:
            if lifeline is not None and lifeline.gone:
                log.error("the warden is gone; ending the agents at once, then the server")
                services.supervisor.hurry(kill=True)
                scope.cancel()
            else:
                log.info("stopping", signal=signal.Signals(number).name)
                if closing.is_set():
                    services.supervisor.hurry()
                    scope.cancel()
            closing.set()


@asynccontextmanager
async def open_services(config: Config, environ: Mapping[str, str]) -> AsyncIterator[Services]:
    """Open the rooms below over the state directory, which is made if need be.

    Leaving the block, also by cancellation, stops every agent and closes the journal. Raises what keeps
    one of them from being opened (FORESEEN).
    """
    secrets = await open_secrets(config.state, environ, keyring=config.keyring)
    if secrets.failure is not None:
        log.error("stored secrets cannot be used", reason=str(secrets.failure))
    supervision, places = config.supervision, config.descriptors
    limits = attrs.evolve(supervision.limits, places=places.agents, terminals=places.terminals)
    private = [value for name, value in environ.items() if is_private(name)]
    async with (
        supervisor.open(
            config.state,
            environ={name: value for name, value in environ.items() if not is_key(name)},
            supervision=attrs.evolve(supervision, limits=limits),
            containment=config.containment or Level.TREE,
            vocabulary=config.event_vocabulary,
            busy_seconds=config.journal_busy_seconds,
            hidden=(*config.session_api_keys, *private),
            secrets=secrets,
        ) as ostler,
        open_jobs(ostler.mcp) as jobs,
    ):
        yield Services(
            config=config,
            supervisor=ostler.supervisor,
            launcher=ostler.launcher,
            settings=ostler.settings,
            profiles=ostler.profiles,
            secrets=secrets,
            mcp=jobs,
        )


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
