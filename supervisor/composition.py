"""The entry point for programs: all parts of the supervisor, opened over a state directory.

async with supervisor.open("state") as ostler:
    conversation = await ostler.start("demo", working_dir=".")
    await conversation.ask("What is a nursery?")
    print(await conversation.final_response())
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs
import structlog
import trio

from supervisor.acp import MAX_FRAME_BYTES
from supervisor.agents.catalog import CUSTOM, load_catalog, presets
from supervisor.agents.containment.containment import open_containment
from supervisor.agents.containment.levels import Level
from supervisor.agents.containment.warden import DRAIN_SECONDS
from supervisor.agents.limits.values import NO_LIMITS, AgentLimits
from supervisor.agents.restart import RestartPolicy
from supervisor.agents.walls.walls import WallsWanted, build
from supervisor.conversations.agent.admission import DEFAULT_WARM, Limits, Slots, memory_left
from supervisor.conversations.agent.launch.launcher import Launcher
from supervisor.conversations.kinds import kind_of
from supervisor.conversations.mcp.logins import McpLogins
from supervisor.conversations.mcp.probe import McpProbe
from supervisor.conversations.recording.bounds.attachments import Allowance
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.errors import InvalidStart
from supervisor.conversations.state.secret_box import SecretBox
from supervisor.conversations.state.start import StartRequest
from supervisor.conversations.state.status import LIVE_STATUSES
from supervisor.conversations.supervisor import Supervisor, open_supervisor
from supervisor.credentials.external_sources import DIRECTORY_VARIABLES, FoundSecret, is_private
from supervisor.credentials.lookup import Lookups
from supervisor.credentials.os_keyring import OsKeyring
from supervisor.credentials.secret import CredentialsFailure
from supervisor.credentials.store import SecretStore
from supervisor.documents.files import FileDocuments
from supervisor.documents.port import Documents
from supervisor.events import Vocabulary
from supervisor.hooks.config import HookSource
from supervisor.journal.journal import open_journal
from supervisor.journal.storage.store import lock_file
from supervisor.mcp.file import McpFile
from supervisor.mcp.logins import LoginStore
from supervisor.mcp.server import server_errors
from supervisor.settings.agent import AgentSettings, LimitBounds
from supervisor.settings.built_in import decode_built_in
from supervisor.settings.errors import SettingsError, SettingsFailure
from supervisor.settings.exposure import StorageCipher
from supervisor.settings.profiles.profiles import AgentProfileStore
from supervisor.settings.storage.store import SettingsStore
from supervisor.state_directory import make_private, remove_temporary
from supervisor.version import __version__
from supervisor.workspace.commands.bash import Bash, BashLimits, open_bash

if TYPE_CHECKING:
    from supervisor.conversations.conversation import Conversation
    from supervisor.database.address import Database
    from supervisor.journal.journal import Journal
    from supervisor.machines.directory import Moved
    from supervisor.machines.machines import Machines
    from supervisor.machines.volumes import Volumes

log = structlog.get_logger(__name__)

JOURNAL_FILE: Final = "journal.sqlite3"
AGENTS_DIR: Final = "agents"
"""Directory of installed agents."""

DATA_DIR: Final = "data"
"""Directory of the data of agents that are kept apart per conversation."""

BUSY_SECONDS: Final = 5.0
"""Seconds that a write waits for another process that holds the journal's file."""


class Secrets(Protocol):
    """The secrets of a server by name, and their cipher: `SecretStore`, or a stand-in for tests."""

    @property
    def cipher(self) -> StorageCipher:
        """The cipher of the secrets. Raises CredentialsFailure while its key is missing."""

    async def values(self) -> Mapping[str, str]:
        """Return all secrets, by name. Raises CredentialsFailure."""

    async def found(self) -> Mapping[str, FoundSecret]:
        """Return the secrets from outside the store, with their sources."""

    async def exchange(self, name: str, value: str, replaceable: Callable[[str], bool]) -> bool:
        """Replace a value if the present one may be replaced. Return whether it did."""


@attrs.frozen
class LateCipher:
    """The cipher of `secrets`, looked up at each use: a missing key must not stop the start."""

    secrets: Secrets

    def encrypt(self, data: bytes) -> str:
        """Encrypt. Raises CredentialsFailure."""
        return self.secrets.cipher.encrypt(data)

    def decrypt(self, token: str) -> bytes:
        """Decrypt. Raises CredentialsFailure."""
        return self.secrets.cipher.decrypt(token)


@attrs.frozen(kw_only=True)
class Supervision:
    """How agents are supervised.

    `agents`: the directory of installed agents; None: one in the state directory.

    `max_frame`: the longest message of an agent, in bytes.

    `drain_seconds`: how long running turns may continue at the end before they are interrupted.

    `hooks`: whose hooks run.

    `keep_updates`: whether agents' own updates are stored with the events.

    `lookups`: which hosts may be asked for secrets that are kept elsewhere.

    `warm_processes`: how many of each agent wait for the next conversation, by the agent's key.

    `agent_limits`: those of each agent's process tree.

    `walls`: what agents can reach of the machine.
    """

    limits: Limits = attrs.field(factory=Limits)
    restart: RestartPolicy = attrs.field(factory=RestartPolicy)
    deadlines: Deadlines = attrs.field(factory=Deadlines)
    allowance: Allowance = attrs.field(factory=Allowance)
    drain_seconds: float = DRAIN_SECONDS
    agents: Path | None = None
    max_frame: int = MAX_FRAME_BYTES
    hooks: HookSource = HookSource.REQUEST
    keep_updates: bool = True
    lookups: Lookups = attrs.field(factory=Lookups)
    bash: BashLimits = attrs.field(factory=BashLimits)
    warm_processes: Mapping[str, int] = attrs.field(factory=lambda: DEFAULT_WARM)
    agent_limits: AgentLimits = NO_LIMITS
    walls: WallsWanted = attrs.field(factory=WallsWanted)


@attrs.frozen(kw_only=True)
class Several:
    """How this server is one of several over one database.

    `address`: the URL at which the others reach it.
    `only_conversation`: the one that this server takes; FRONT: none.
    `lease_seconds`: its silence after which they take over. `on_lease` gets the end of each lease (seconds of
    CLOCK_MONOTONIC), 0 at the orderly end; `on_lost` is called when another server has declared this one
    dead: then nothing of it counts any more.
    """

    database: Database
    name: str
    address: str
    lease_seconds: float
    labels: Mapping[str, str] = attrs.field(factory=dict)
    volumes: Volumes
    only_conversation: str | None = None
    on_lease: Callable[[float], None] = lambda _: None
    on_lost: Callable[[], None] = lambda: None


@attrs.frozen(kw_only=True)
class Ostler:
    """The open parts of the supervisor. `open` opens and closes them."""

    supervisor: Supervisor
    launcher: Launcher
    settings: SettingsStore
    profiles: AgentProfileStore
    secrets: Secrets
    mcp: McpProbe
    bash: Bash
    machines: Machines | None = None

    async def start(
        self,
        agent: str | Sequence[str],
        *,
        working_dir: str | Path = ".",
        secrets: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> Conversation:
        """Create a conversation. Its agent starts with the first message.

        `agent`: a name of the catalogue (`demo`, `claude-code`, ...), or the command of an ACP agent.

        `settings`: further fields of `AgentSettings`; of the built-in agent (`openhands`) those of its own
        kind (`llm` ...).

        `secrets`: environment variables for the agent.

        Raises InvalidStart, JournalError.
        """
        catalog = self.launcher.catalog
        chosen: AgentSettings
        if not isinstance(agent, str):
            chosen = AgentSettings(**settings | {"acp_server": CUSTOM, "acp_command": tuple(agent)})
        elif agent in catalog and catalog[agent].native_events:
            chosen = decode_built_in(settings, (), server_errors)
        elif agent in catalog and agent != CUSTOM:
            chosen = AgentSettings(**settings | {"acp_server": agent, "acp_command": catalog[agent].command})
        else:
            names = ", ".join(sorted(catalog.keys() - {CUSTOM}))
            raise InvalidStart(
                f"Unknown agent {agent!r}. Name one of these, or give a command: {names}.", ("agent",)
            )
        request = StartRequest(
            working_dir=str(working_dir),
            agent=chosen,
            event_vocabulary=Vocabulary.EXTENDED,
            secrets=dict(secrets or {}),
        )
        conversation, _ = await self.supervisor.create(request)
        return conversation


async def open_secrets(
    state: Path, environ: Mapping[str, str], *, keyring: bool, documents: Documents | None = None
) -> SecretStore:
    """Open the secret store of a state directory, and create the directory if necessary. `documents`: those
    of the directory if None.

    Raises StateRefused, SecretsUnavailable, OSError.
    """
    await trio.to_thread.run_sync(make_private, state)
    store = await SecretStore.open(
        state, environ, keyring=OsKeyring(environ) if keyring else None, documents=documents
    )
    if store.failure is not None:
        log.error("stored secrets cannot be used", reason=str(store.failure))
    return store


@asynccontextmanager
async def open(  # noqa: A001 - `supervisor.open`, as trio.open_nursery and the built-in one are called
    state: str | Path,
    *,
    environ: Mapping[str, str] | None = None,
    supervision: Supervision | None = None,
    containment: Level | None = Level.TREE,
    keyring: bool = True,
    vocabulary: Vocabulary | None = None,
    busy_seconds: float = BUSY_SECONDS,
    hidden: Sequence[str] = (),
    secrets: Secrets | None = None,
    documents: Documents | None = None,
    several: Several | None = None,
) -> AsyncIterator[Ostler]:
    """Open everything over the state directory, and supervise agents while the block runs.

    `state`: the directory; it is created if necessary.

    `environ`: the environment of which agents inherit the allowed part (default: this process's), with the
    keys of the secret store.

    `hidden`: values that are masked in what agents say.

    `containment`: None relies on process groups and sessions. With a level, a process may have one such block
    at a time.

    `keyring`: whether the master key may be in the operating system's keyring.

    `vocabulary`: forces one event vocabulary for all conversations.

    `secrets`: stands in for the secret store.

    `documents`: where settings and other small documents are; None: in the state directory.
    `several`: this server is one of several; what is else in the state directory is in their database then.

    Raises StateRefused, JournalError, CredentialsFailure, SettingsFailure, WallUnavailable or OSError for
    what cannot be opened.

    Owns everything that it opens: leaving the block, also by cancellation, stops every agent and closes the
    journal.
    """
    directory = Path(state).expanduser().absolute()  # noqa: ASYNC240 - reads no disk
    environ = dict(os.environ if environ is None else environ)
    supervision = supervision or Supervision()
    await trio.to_thread.run_sync(make_private, directory)
    catalog = await trio.to_thread.run_sync(load_catalog)
    documents = documents or FileDocuments(directory)
    store = (
        await open_secrets(directory, environ, keyring=keyring, documents=documents)
        if secrets is None
        else secrets
    )
    cipher = LateCipher(store)
    bounds = LimitBounds({limit.value: most for limit, most in supervision.agent_limits})
    settings = SettingsStore(documents, presets(catalog), server_errors, cipher, bounds)
    secret_box = SecretBox(cipher)
    logins = McpLogins(LoginStore(documents, cipher), environ, directory)

    async def origins() -> dict[str, str]:
        return {name: secret.source for name, secret in (await store.found()).items()}

    async def routing() -> dict[str, Any]:
        try:
            return await settings.routing()
        except (SettingsFailure, CredentialsFailure, OSError) as error:
            # An agent with its own model does not need them.
            log.warning("profiles of models cannot be read", reason=str(error))
            return {}

    # Files with secrets that are not in the state directory.
    given = (Path(environ[name]) for name in DIRECTORY_VARIABLES if environ.get(name))
    wanted = attrs.evolve(supervision.walls, hidden=(*supervision.walls.hidden, *given))
    walls = await trio.to_thread.run_sync(build, wanted, directory, catalog, environ)
    launcher = Launcher(
        catalog=catalog,
        walls=walls,
        prefix=supervision.agents or directory / AGENTS_DIR,
        data=directory / DATA_DIR,
        server_environment=environ,
        secrets=store.values,
        origins=origins,
        keep_secret=store.exchange,
        routing=routing,
        project_hooks=supervision.hooks is HookSource.PROJECT,
        max_frame=supervision.max_frame,
        mcp_file=McpFile(directory, documents),
        mcp_logins=logins,
        hidden=(*hidden, *(value for name, value in environ.items() if is_private(name))),
        secret_box=secret_box,
        kinds=kind_of,
        lookups=supervision.lookups,
        limits=supervision.agent_limits,
    )

    async def default_agent() -> AgentSettings:
        try:
            return await settings.agent()
        except SettingsError as error:
            raise InvalidStart(f"no agent in the settings can run: {error}", ("body",)) from error

    async with AsyncExitStack() as stack:
        machines: Machines | None = None
        claims = _Claims()
        if several is None:
            journal = await stack.enter_async_context(
                open_journal(
                    directory / JOURNAL_FILE, busy_timeout=busy_seconds, keep_updates=supervision.keep_updates
                )
            )
        else:
            machines, journal = await stack.enter_async_context(
                _open_shared(several, directory, supervision, claims)
            )
            from supervisor.machines.disks import Disks

            assert machines is not None
            disks = Disks(name=several.name, instance=machines.instance, volumes=several.volumes)
            data = (disks.data or directory) / DATA_DIR
            launcher = attrs.evolve(launcher, disks=disks, data=data)
        if containment is not None:
            # The journal's lock proves that no other server uses this state, so leftovers may be removed.
            await stack.enter_async_context(open_containment(directory, containment))
        # After the agents' leftovers, which may still write there.
        await trio.to_thread.run_sync(remove_temporary, directory)
        terminals = Slots(supervision.limits.terminals)
        bash = await stack.enter_async_context(
            open_bash(environ, limits=supervision.bash, secrets=launcher.confidential, slots=terminals)
        )
        opened = await stack.enter_async_context(
            open_supervisor(
                journal=journal,
                launcher=launcher,
                secret_box=secret_box,
                documents=documents,
                default_agent=default_agent,
                forced_vocabulary=vocabulary,
                deadlines=supervision.deadlines,
                restart=supervision.restart,
                limits=supervision.limits,
                terminals=terminals,
                drain_seconds=supervision.drain_seconds,
                allowance=supervision.allowance,
                hooks=supervision.hooks,
                warm_processes=supervision.warm_processes,
                machines=machines,
            )
        )
        claims.take, claims.count = opened.claimed, opened.loaded_count
        claims.ready.set()
        stack.callback(claims.looking.cancel)  # before the supervisor closes, which takes up nothing more
        yield Ostler(
            supervisor=opened,
            launcher=launcher,
            settings=settings,
            profiles=AgentProfileStore(settings),
            secrets=store,
            mcp=McpProbe(environ, _home(environ, directory), logins),
            bash=bash,
            machines=machines,
        )


@attrs.define
class _Claims:
    """What this server claims from others before it can take that up: the supervisor is opened last."""

    ready: trio.Event = attrs.field(factory=trio.Event)
    looking: trio.CancelScope = attrs.field(factory=lambda: trio.CancelScope(shield=True))
    """Cancelled when this server claims no more."""
    take: Callable[[Sequence[tuple[str, Moved | None]]], Awaitable[None]] | None = None
    count: Callable[[], int] = lambda: 0

    async def __call__(self, claimed: Sequence[tuple[str, Moved | None]]) -> None:
        await self.ready.wait()
        assert self.take is not None
        await self.take(claimed)

    def busy(self) -> tuple[int, int]:
        """The free memory of this machine in bytes, and the number of loaded conversations."""
        return memory_left() or 0, self.count()


@asynccontextmanager
async def _alone(journal: Path) -> AsyncIterator[None]:
    """Hold the lock that a journal in files would have: one server uses a state directory. Raises
    JournalInUse."""
    lock = await trio.to_thread.run_sync(lock_file, journal)
    try:
        yield
    finally:
        os.close(lock)


@asynccontextmanager
async def _open_shared(
    several: Several, directory: Path, supervision: Supervision, claims: _Claims
) -> AsyncIterator[tuple[Machines, Journal]]:
    """Join the other servers, and open the journal that they share. The lease is renewed until the journal is
    closed, also while this server ends. Raises MachinesRefused, JournalInUse, JournalError."""
    from supervisor.journal.postgres.opening import open_shared_journal
    from supervisor.machines.machines import open_machines

    async with (
        _alone(directory / JOURNAL_FILE),
        open_machines(
            several.database,
            state=directory,
            name=several.name,
            address=several.address,
            labels=several.labels,
            ttl=several.lease_seconds,
            version=__version__,
            on_lease=several.on_lease,
            on_lost=several.on_lost,
            volumes=several.volumes.volumes,
            only_conversation=several.only_conversation,
        ) as machines,
        trio.open_nursery() as nursery,
    ):

        async def look() -> None:
            with claims.looking:
                await machines.run(claims, claims.busy)

        nursery.start_soon(look)
        try:
            async with open_shared_journal(
                several.database,
                machines.server,
                live=frozenset(each.value for each in LIVE_STATUSES),
                keep_updates=supervision.keep_updates,
            ) as journal:
                journal.on_lost = several.on_lost
                yield machines, journal
        finally:
            claims.looking.cancel()


def _home(environ: Mapping[str, str], otherwise: Path) -> Path:
    """Return the working directory of programs that belong to no conversation."""
    home = Path(environ.get("HOME") or otherwise)
    return home if home.is_dir() else otherwise
