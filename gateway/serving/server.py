"""One running server: opens the rooms below, serves, and closes everything in order."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import attrs
import structlog
import trio
from hypercorn.typing import ASGIFramework

import supervisor
from gateway.api.mcp_jobs import open_jobs
from gateway.api.services import Services
from gateway.configuration.config import Config
from gateway.configuration.keys import is_key
from gateway.http.listener import BindError, bind, serve_connections, url_of
from gateway.serving import logs
from gateway.serving.control import URL_FILE, ControlSocket, answers
from gateway.serving.late_application import LateApplication
from gateway.serving.loop_clock import LoopClock
from gateway.serving.memory import release_freed
from gateway.serving.notify import Notifier
from gateway.serving.start import collect_as_usual
from supervisor.agents.containment.containment import PID_FILE, killing_agents
from supervisor.agents.containment.levels import Level
from supervisor.agents.containment.lifeline import Lifeline, WardenGone
from supervisor.agents.homes.data_dir import write_private
from supervisor.agents.walls.wall import WallUnavailable
from supervisor.composition import open_secrets
from supervisor.credentials.external_sources import is_private, take_private
from supervisor.credentials.secret import CredentialsFailure
from supervisor.documents.files import FileDocuments
from supervisor.documents.port import Documents
from supervisor.journal.errors import JournalClosed, JournalError, JournalInUse
from supervisor.journal.journal import Journal
from supervisor.machines.errors import DatabaseAway, MachinesRefused
from supervisor.settings.errors import SettingsFailure
from supervisor.state_directory import StateRefused

if TYPE_CHECKING:
    from gateway.api.contract import Machines
    from gateway.api.provisioning.provisioner import Provisioner
    from gateway.api.webhooks.service import Webhooks
    from gateway.configuration.machines import MachinesConfig
    from gateway.serving.several import Loss
    from supervisor.composition import Several
    from supervisor.conversations.supervisor import Supervisor
    from supervisor.machines.machines import Machines as Joined

log = structlog.get_logger(__name__)

SWITCH_SECONDS: Final = 0.0005
"""Seconds that one thread may keep the GIL while another waits for it.

The journal's thread holds it for microseconds at a time; with Python's default of 5 ms a commit would take
that long while the loop is busy.
"""

AGAIN_SECONDS: Final = 0.25
"""Seconds between two attempts to open the services over a database that went away meanwhile."""

ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that end the server in order."""


class StartupError(Exception):
    """The server cannot start, or cannot continue. The message is one line for the terminal."""


FORESEEN: Final = (
    BindError,
    StateRefused,
    JournalError,
    CredentialsFailure,
    SettingsFailure,
    MachinesRefused,
    DatabaseAway,
    WallUnavailable,
    OSError,
)
"""Failures of a start whose message is fit for people."""


def run(config: Config, lifeline: Lifeline | None = None, keys: Mapping[str, str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT.

    `keys`: variables with keys and secrets that are not in the environment.

    Raises StartupError if the server could not start or its journal failed, WardenGone if it ended because
    its warden had ended.
    """
    logs.configure(config.log)
    sys.setswitchinterval(SWITCH_SECONDS)
    started = trio.Event()
    try:
        trio.run(partial(serve, config, started=started, lifeline=lifeline, keys=keys), clock=LoopClock())
    except (Exception, BaseExceptionGroup) as error:
        reasons = list(_leaves(error))
        of_journal = [reason for reason in reasons if isinstance(reason, JournalError)]
        if started.is_set() and of_journal:
            for reason in reasons:
                if not isinstance(reason, JournalError):
                    log.exception("another failure besides the journal", exc_info=reason)
            raise StartupError("; ".join(dict.fromkeys(map(_line, of_journal)))) from error
        if any(isinstance(reason, JournalInUse) for reason in reasons):
            raise StartupError(in_use(config.state)) from error
        if started.is_set() or not all(isinstance(reason, FORESEEN) for reason in reasons):
            raise
        raise StartupError("; ".join(_line(reason) for reason in reasons)) from error
    if lifeline is not None and lifeline.gone:
        raise WardenGone("the warden was killed; the server ended its agents and stopped")


async def serve(
    config: Config,
    *,
    started: trio.Event | None = None,
    lifeline: Lifeline | None = None,
    keys: Mapping[str, str] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, or until cancelled; then stop accepting, finish, and close.

    Prints the address on stdout once the server accepts connections. Variables with secrets are removed from
    this process's environment; `keys` are such variables that were removed before. With a warden, the sockets
    are those of the previous server, if there was one. When the warden ends, the agents are killed at once.

    Owns everything that it opens, and closes it in this order: sockets, agents, journal.
    """
    notifier = Notifier.take(os.environ)
    environ = {**os.environ, **take_private(os.environ), **(keys or {})}
    sockets = (lifeline.listening() if lifeline is not None else []) or await _bind(config)
    try:
        # Signals are handled until the last agent is gone, so that a second one can shorten a shutdown.
        async with trio.open_nursery() as hearing:
            async with (
                _open_when_possible(config, environ, sockets, lifeline) as services,
                _control_socket(config, url_of(config, sockets)) as control,
                trio.open_nursery() as root,
            ):
                if lifeline is not None:
                    lifeline.end_without(killing_agents())
                    services.activity.warden_restarts = lifeline.restarts
                await hearing.start(_obey_signals, services, root.cancel_scope, lifeline)
                root.start_soon(notifier.keep_alive)
                root.start_soon(_watch_journal, services.supervisor.journal, notifier)
                root.start_soon(services.history.watch, services.supervisor)
                if services.machines is not None:
                    root.start_soon(_empty, services)
                    root.start_soon(_resume_webhooks, services)
                    if config.machines is not None and config.machines.only_conversation is not None:
                        root.start_soon(_leave_unneeded, services, config.machines)
                async with trio.open_nursery() as serving:
                    app = LateApplication(services)
                    root.start_soon(app.prepare)
                    root.start_soon(release_freed, lambda: services.supervisor.figures().turns_running > 0)
                    serve = partial(
                        serve_connections, connection_limits=services.connection_limits, control=control
                    )
                    await serving.start(serve, cast(ASGIFramework, app), sockets, config, services.closing)
                    if lifeline is not None:
                        lifeline.serving(sockets)
                    root.start_soon(_take_leave, services.closing, lifeline, notifier)
                    logs.greet(url_of(config, sockets), config.state)
                    await notifier.ready(f"Listening on {url_of(config, sockets)}")
                    collect_as_usual()
                    if started is not None:
                        started.set()
                root.cancel_scope.cancel()
            hearing.cancel_scope.cancel()
    finally:
        for sock in sockets:
            sock.close()


async def _bind(config: Config) -> list[socket.socket]:
    """Listen. Raises BindError, or JournalInUse where a server runs on the state directory: most likely it
    has the port, too, and another port would not help."""
    try:
        return await bind(config)
    except BindError:
        if await trio.to_thread.run_sync(answers, config.state):
            raise JournalInUse(in_use(config.state)) from None
        raise


async def _watch_journal(journal: Journal, notifier: Notifier) -> None:
    """Report to the service manager while nothing can be stored.

    Raises JournalError if nothing can ever be stored: the next server, which the warden starts, may do
    better, or say why it cannot.
    """
    reported = None
    while True:
        if journal.failure is not None and not isinstance(journal.failure, JournalClosed):
            log.error("journal failed; stopping the server", error=str(journal.failure))
            raise JournalError(
                f"the journal failed and the server stopped: {journal.failure}. Look at its file and its "
                "disk, then start the server again"
            )
        trouble = None if journal.trouble is None else journal.trouble.reason
        if trouble == reported:
            await journal.changed()
        else:
            reported = trouble
            await notifier.status(
                "Running" if trouble is None else f"The journal cannot be written: {trouble}"
            )


@asynccontextmanager
async def _control_socket(config: Config, url: str) -> AsyncIterator[socket.socket | None]:
    """Open the socket for operators, and its file; without it the server continues. The server's address is
    in another file, for people.

    Call it after opening the journal, whose lock ensures that no other server uses the state directory.
    """
    address = config.state / URL_FILE
    with suppress(OSError):
        await trio.to_thread.run_sync(write_private, address, f"{url}\n")
    try:
        opened = await trio.to_thread.run_sync(ControlSocket, config.state)
    except OSError as error:
        log.warning("control socket unavailable; commands need the server's address", reason=str(error))
        yield None
        return
    try:
        yield opened.socket
    finally:
        opened.close()
        with suppress(OSError):
            address.unlink()


async def _take_leave(closing: trio.Event, lifeline: Lifeline | None, notifier: Notifier) -> None:
    await closing.wait()
    if lifeline is not None:
        lifeline.closing()
    await notifier.stopping()


async def _empty(services: Services) -> None:
    """Hand all conversations over to other servers once that is asked for: by `ostler drain`, or by the end
    of this server."""
    assert services.machines is not None
    await services.machines.draining.wait()
    await services.supervisor.hand_over(services.config.supervision.drain_seconds)
    services.emptied.set()


async def _resume_webhooks(services: Services) -> None:
    """Take up what servers that ended left to deliver; endless."""
    while services.webhooks is not None:
        await trio.sleep(services.lease_seconds)
        services.webhooks.resume_soon()


async def _drain_and_close(services: Services, machines: Machines) -> None:
    """Have the others take the conversations, while this server still passes requests on; then close it."""
    with suppress(DatabaseAway):
        await machines.drain(machines.name)
    machines.draining.set()
    await services.emptied.wait()
    services.closing.set()


async def _leave_unneeded(services: Services, config: MachinesConfig) -> None:
    """End this server, in order, when the conversation that it was started for needs it no longer."""
    from gateway.serving.unneeded import wait_until_unneeded

    assert services.machines is not None
    assert config.only_conversation is not None
    await wait_until_unneeded(services, config.only_conversation, config.unneeded_seconds)
    await _drain_and_close(services, services.machines)


async def _obey_signals(
    services: Services,
    scope: trio.CancelScope,
    lifeline: Lifeline | None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Handle signals: the first SIGTERM, SIGINT or SIGHUP begins an orderly shutdown, the next one cuts it
    short.

    A signal that reports the warden's death kills the agents at once: this process may be killed next, and
    then nothing would end them. (If the server is stopped, the kernel sends it SIGHUP, since its process
    group is orphaned, and continues it.) One of several servers ends as if it had been killed itself: others
    take up what is cut off, while turns that it ends in order wait for a person.
    """
    closing = services.closing
    heard = [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]  # as under nohup
    ending = False
    with trio.open_signal_receiver(*heard) as signals:
        async with trio.open_nursery() as emptying:
            task_status.started()
            async for number in signals:
                if lifeline is not None and lifeline.gone:
                    log.error("warden is gone; ending the agents and the server")
                    if services.machines is not None:
                        services.machines.lose("its warden is gone")
                    services.supervisor.hurry(kill=True)
                    scope.cancel()
                else:
                    logs.take_leave(interrupted=number == signal.SIGINT)
                    log.info("stopping", signal=signal.Signals(number).name)
                    if closing.is_set():
                        services.supervisor.hurry()
                        scope.cancel()
                    elif services.machines is not None and not ending:
                        ending = True
                        emptying.start_soon(_drain_and_close, services, services.machines)
                        continue
                closing.set()


@asynccontextmanager
async def _open_when_possible(
    config: Config, environ: Mapping[str, str], sockets: list[socket.socket], lifeline: Lifeline | None
) -> AsyncIterator[Services]:
    """Open the services, as soon as the database answers where there is one: also after it went away while
    they were opened. Otherwise as `open_services`."""
    url = url_of(config, sockets)
    if config.machines is None:
        async with open_services(config, environ, url, lifeline) as services:
            yield services
        return
    from gateway.serving.waiting import await_database
    from supervisor.database.faults import is_away

    async with AsyncExitStack() as stack:
        while True:
            await await_database(config.machines.database, config, sockets)
            try:
                services = await stack.enter_async_context(open_services(config, environ, url, lifeline))
            except Exception as error:
                if not all(is_away(reason) for reason in _leaves(error)):
                    raise
                log.warning("the database went away; waiting for it again", reason=_line(error))
                await trio.sleep(AGAIN_SECONDS)
            else:
                break
        yield services


@asynccontextmanager
async def open_services(
    config: Config, environ: Mapping[str, str], url: str, lifeline: Lifeline | None
) -> AsyncIterator[Services]:
    """Open the services over the state directory, which is created if necessary, or over the database. `url`:
    where this server listens.

    Raises what keeps one of them from being opened (FORESEEN).

    Leaving the block, also by cancellation, stops every agent and closes the journal.
    """
    documents: Documents = FileDocuments(config.state)
    if config.machines is not None:
        from supervisor.database.documents import PostgresDocuments

        documents = PostgresDocuments(config.machines.database)
    secrets = await open_secrets(config.state, environ, keyring=config.keyring, documents=documents)
    several: Several | None = None
    loss: Loss | None = None
    trusted: str | None = None
    handed: Mapping[str, str] = {}
    if config.machines is not None:
        from gateway.serving import several as joining

        loss = joining.Loss(lifeline)
        several = await joining.several_of(config.machines, secrets, url, lifeline, loss)
        trusted = joining.server_key(secrets)
        handed = await joining.handed(config.machines, secrets, environ)
    elif secrets.failure is not None:
        log.error("stored secrets cannot be used", reason=str(secrets.failure))
    descriptors, supervision = config.descriptors, config.supervision
    limits = attrs.evolve(supervision.limits, agent_slots=descriptors.agents, terminals=descriptors.terminals)
    reachable = attrs.evolve(supervision.walls.reachable, connections=descriptors.door_connections)
    walls = attrs.evolve(supervision.walls, reachable=reachable)
    private = [value for name, value in environ.items() if is_private(name)]
    # What webhooks send along is perhaps a token.
    private += [value for spec in config.webhooks for value in spec.headers.values()]
    async with (
        supervisor.open(
            config.state,
            environ={name: value for name, value in environ.items() if not is_key(name)},
            supervision=attrs.evolve(supervision, limits=limits, walls=walls),
            containment=config.containment or Level.TREE,
            vocabulary=config.event_vocabulary,
            busy_seconds=config.journal_busy_seconds,
            hidden=(*config.session_api_keys, *private),
            secrets=secrets,
            documents=documents,
            several=several,
        ) as ostler,
        open_jobs(ostler.mcp) as jobs,
        _open_webhooks(config, ostler.supervisor, documents, ostler.machines) as webhooks,
        _open_provisioner(config, several, ostler.machines, handed) as provisioner,
    ):
        if loss is not None:
            loss.kill = killing_agents()
        services = Services(
            config=config,
            supervisor=ostler.supervisor,
            launcher=ostler.launcher,
            settings=ostler.settings,
            profiles=ostler.profiles,
            secrets=secrets,
            documents=documents,
            mcp=jobs,
            webhooks=webhooks,
            bash=ostler.bash,
            machines=ostler.machines,
            server_key=trusted,
            lease_seconds=several.lease_seconds if several is not None else 0.0,
            provisioner=provisioner,
        )
        try:
            yield services
        finally:
            with trio.CancelScope(shield=True):  # bounded: both drop what is open
                if ostler.machines is not None:
                    await services.owners.close()
                await trio.to_thread.run_sync(documents.close)


@asynccontextmanager
async def _open_provisioner(
    config: Config, several: Several | None, machines: Joined | None, handed: Mapping[str, str]
) -> AsyncIterator[Provisioner | None]:
    """Start servers for conversations, with OSTLER_PROVISION."""
    if config.machines is None or config.machines.provision is None:
        yield None
        return
    from gateway.api.provisioning.provisioner import open_provisioner

    assert several is not None
    assert machines is not None
    # Without keys: they have been removed.
    environment = {name: value for name, value in os.environ.items() if not is_key(name)}
    async with open_provisioner(config.machines, machines, several.address, handed, environment) as opened:
        yield opened


@asynccontextmanager
async def _open_webhooks(
    config: Config, supervisor: Supervisor, documents: Documents, machines: Joined | None
) -> AsyncIterator[Webhooks | None]:
    """Open the webhooks; few servers have any, and the others do not load what sends them."""
    if not config.webhooks:
        yield None
        return
    from gateway.api.webhooks.cursors import FILE, FileTable, SharedTable, Table
    from gateway.api.webhooks.service import open_webhooks

    table: Table = FileTable(config.state / FILE)
    if machines is not None:
        from supervisor.database.documents import PostgresDocuments

        assert isinstance(documents, PostgresDocuments)
        table = SharedTable(documents, machines.server)
    async with open_webhooks(config.webhooks, config.session_api_keys, table, supervisor) as webhooks:
        yield webhooks


def in_use(state: Path) -> str:
    """What to say of a state directory that another server has: its process and its address."""
    process, url = (_content(state / name) for name in (PID_FILE, URL_FILE))
    who = f"process {process}" if process else "another process"
    where = f", which serves at {url}" if url else ""
    return (
        f"the state directory {state} is in use by {who}{where}; "
        "use that server, or end it, or name another directory with --state"
    )


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
