"""Prepares the start of a conversation's agent: program, environment, credentials, MCP servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import trio

from supervisor.acp import MAX_FRAME_BYTES, Jail
from supervisor.agents.catalog import OWN, Descriptor, behaving
from supervisor.agents.environment import base_environment, concerning
from supervisor.agents.errors import InstallError
from supervisor.agents.homes.credential import Choice
from supervisor.agents.limits.disk import disk_use
from supervisor.agents.limits.hits import hit_of
from supervisor.agents.limits.mechanisms import Mechanism
from supervisor.agents.limits.values import NO_LIMITS, AgentLimits, Limit
from supervisor.agents.remote import relay
from supervisor.agents.walls.enclosure import Enclosure
from supervisor.agents.walls.further import Paths
from supervisor.agents.walls.network import Network
from supervisor.agents.walls.wall import Mechanism as Made
from supervisor.agents.walls.wall import Wall, WallUnavailable
from supervisor.agents.walls.walls import Walls
from supervisor.conversations.agent.launch.credentials import (
    AgentCredentials,
    KeepSecret,
    Prepared,
    declared_files,
)
from supervisor.conversations.agent.launch.files import AgentFiles
from supervisor.conversations.agent.launch.homes import OWN_PATHS
from supervisor.conversations.agent.launch.login import Login
from supervisor.conversations.agent.launch.plan import Plan, Traits
from supervisor.conversations.mcp.logins import McpLogins
from supervisor.conversations.mcp.mounting import Mounting, gather
from supervisor.conversations.state.errors import AgentFailure
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.state.secret_box import SecretBox
from supervisor.credentials.common import PLAIN_NAMES
from supervisor.credentials.lookup import LookupFailed, Lookups
from supervisor.credentials.masking import Masker
from supervisor.credentials.secret import REDACTED, CredentialsFailure
from supervisor.mcp.configured import FROM_CONVERSATION, Server, resolve, without_secrets
from supervisor.mcp.file import McpFile
from supervisor.patience import in_time
from supervisor.settings.agent import AgentSettings, agent_settings_to_dict
from supervisor.settings.errors import SettingsFailure
from supervisor.settings.exposure import secrets_of
from supervisor.settings.remote import RELAY_COMMAND
from supervisor.working_directory import make_working_directory

if TYPE_CHECKING:
    from supervisor.agents.install.packages import Launch
    from supervisor.machines.disks import Disks

CUSTOM: Final = "custom"
"""The key of an agent that is configured only by its command."""

CONVERSATION: Final = "conversation"
"""The source of a conversation's own secret."""


@attrs.frozen
class Furnished:
    """What the agent's kind adds to a session: secrets, extension parameters, and values in these that must
    be masked besides the secrets."""

    secrets: Mapping[str, str] = attrs.field(repr=False)
    parameters: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    confidential: Collection[str] = attrs.field(default=(), repr=False)


@attrs.frozen
class Furnishing(Traits):
    """The part of `kind.AgentKind` that a start needs."""

    async def furnish(
        self, launcher: Launcher, settings: AgentSettings, given: Mapping[str, str], own: Collection[str]
    ) -> Furnished:
        """Compose what a start gives it. `settings`: decrypted. `given`: the secrets that it may have, `own`
        the names of the conversation's. Raises CredentialsFailure, SettingsFailure."""
        return Furnished(given)


@attrs.frozen(kw_only=True)
class Launcher:
    """Plans starts for one server. Planning installs the agent and fetches secrets, but starts no process.

    `secrets` returns the global secrets by name. `origins` names their sources; a secret without an origin is
    from the store.

    `lookups` fetches the secrets that a conversation has elsewhere.

    `keep_secret` stores a new value (a token that an agent rotated) if the present one may be replaced.
    Without it the value stays in the data directory only.

    `hidden` are the server's own secrets; they are masked in agents' output, though no agent gets them.

    `routing` returns the model profiles that the built-in agent may switch to, with their keys:
    `llm_profiles` and `meta_profiles`, by name.

    `project_hooks`: whether the built-in agent runs hooks that it finds in the workspace.

    `kinds` chooses the kind of a conversation's agent.

    `mcp_file` has the MCP servers of this machine, `mcp_logins` the tokens for those that require a login.

    `disks`: those of this server, where there are several servers.

    `limits`: the operator's, for the process tree of each agent.

    `walls`: what agents can reach of the machine.
    """

    catalog: Mapping[str, Descriptor]
    prefix: Path
    data: Path
    server_environment: Mapping[str, str] = attrs.field(repr=False)
    secrets: Callable[[], Awaitable[Mapping[str, str]]]
    secret_box: SecretBox
    kinds: Callable[[ConversationRecord], Furnishing]
    lookups: Lookups = attrs.field(factory=Lookups)
    origins: Callable[[], Awaitable[Mapping[str, str]]] | None = None
    hidden: Sequence[str] = attrs.field(default=(), repr=False)
    keep_secret: KeepSecret | None = None
    routing: Callable[[], Awaitable[Mapping[str, Any]]] | None = None
    max_frame: int = MAX_FRAME_BYTES
    project_hooks: bool = False
    mcp_file: McpFile | None = None
    mcp_logins: McpLogins | None = None
    disks: Disks | None = None
    limits: AgentLimits = NO_LIMITS
    walls: Walls = attrs.field(factory=lambda: Walls(wall=Wall.OFF))
    forks: set[str] = attrs.field(factory=set)
    """Ids of conversations to which a copy of an agent's memory is being moved."""
    _credentials: AgentCredentials = attrs.field(init=False)

    @_credentials.default
    def _their_credentials(self) -> AgentCredentials:
        return AgentCredentials(
            catalog=self.catalog,
            data=self.data,
            server_environment=self.server_environment,
            origins=self.origins,
            keep_secret=self.keep_secret,
        )

    def disk_of(self, working_dir: str) -> str | None:
        """The disk of a new conversation's workspace, where there are several servers."""
        return None if self.disks is None else self.disks.of(working_dir)

    def _data_disk(self, *, moves: bool) -> str | None:
        """The disk of the agent's data: of the directory for all agents' data, or else (`moves` is false) of
        the home of the server's user."""
        if self.disks is None:
            return None
        return self.disks.of_data if moves else self.disks.own

    @property
    def files(self) -> AgentFiles:
        """The agents' files."""
        return AgentFiles(self.data, self._credentials.homes, self._credentials.logins)

    def descriptor(self, record: ConversationRecord) -> Descriptor:
        """The descriptor of a conversation's agent: by its key, else `custom`.

        A command alone selects no agent of the catalogue, so that a program named `codex-acp` does not get
        Codex' secrets. Reading the settings recognises a command that equals a preset's.
        """
        found = self.catalog.get(record.agent.acp_server) or self.catalog[CUSTOM]
        return self.behaving(found, record, record.reported.agent_state.get("acp_agent_name"))

    def behaving(self, descriptor: Descriptor, record: ConversationRecord, name: str | None) -> Descriptor:
        """The descriptor of an agent that reports `name` in its handshake, with the overrides of the
        settings."""
        settings = record.agent
        return behaving(
            descriptor,
            self.catalog,
            name=name,
            methods=settings.acp_client_methods,
            after_cut_off=settings.acp_after_cut_off,
        )

    async def confidential(self) -> tuple[str, ...]:
        """The values that no output may show: the global secrets, if readable, and the server's own."""
        try:
            given = await self.secrets()
        except CredentialsFailure:
            given = {}
        return (*_hidden(given), *self.hidden)

    async def plan(
        self, record: ConversationRecord, progress: Callable[[str], None], install_seconds: float
    ) -> Plan:
        """Install the agent if necessary, within a deadline, and compose its environment.

        Raises AgentFailure (ACPSpawnError), also where secrets or encrypted settings are unreadable.

        Cancellation stops an installation that no other task waits for.
        """
        try:
            return await self._composed(record, progress, install_seconds)
        except (CredentialsFailure, SettingsFailure) as error:
            raise _unusable(f"Cannot read the secrets for the agent: {error}") from error

    async def _composed(
        self, record: ConversationRecord, progress: Callable[[str], None], install_seconds: float
    ) -> Plan:
        settings, descriptor = record.agent, self.descriptor(record)
        wall = await self._wall(record)
        with_session = descriptor.secrets_with_session
        launch = await self._installed(record, descriptor, progress, install_seconds)
        own = await self._own_secrets(record)
        every = {**await self.secrets(), **own}
        given = record.allowed(every)
        variables = {} if with_session else given
        isolated = _isolated(record, wall, self.walls.made_of(wall))
        prepared = await self._prepared(isolated, descriptor, variables, own, launch.path)
        environment = prepared.environment
        if settings.acp_url is not None:
            environment = self._remote(settings, settings.acp_url, given)
        opened = await self.secret_box.open_settings(settings)
        mounting = await gather(
            self.mcp_file, opened.mcp_config, given, record.start.mcp_only, self.mcp_logins
        )
        jail = await self._workspace(record)
        limits = self.limits_of(settings)
        own_directories = self._own_directories(record, prepared)
        await self._check_disk(record, limits, own_directories)
        network = self.walls.reachable.network
        if tuple(settings.acp_command) == RELAY_COMMAND:
            network = Network.FULL  # it runs elsewhere: this is Ostler's own relay
        enclosure = await self._enclosure(
            wall, record, descriptor, launch.argv, environment, network, mounting
        )
        kind = self.kinds(record)
        furnished = await kind.furnish(self, opened, given, own)
        tokens = prepared.tokens.union(furnished.confidential)
        mask = await self._masker(every, tokens, opened, mounting)
        moved: Mapping[str, str] = {}
        parameters = furnished.parameters
        if with_session and descriptor.warm == "session" and prepared.home is not None:
            moved = prepared.home.environment
            parameters = None if parameters is None else {**parameters, "environment": dict(moved)}
        neutral = {name: self.server_environment[name] for name in moved if name in self.server_environment}
        plan = Plan(
            descriptor=descriptor,
            known_as=partial(self.behaving, descriptor, record),
            argv=launch.argv,
            environment=environment,
            secrets=given,
            fetched=dict(record.lookups),
            cwd=Path(record.start.working_dir),
            jail=jail,
            mounting=mounting,
            mask=mask,
            version=launch.version,
            login=Login(descriptor=descriptor, choice=prepared.choice, environment=prepared.environment),
            max_frame=self.max_frame,
            private=prepared.private,
            checked_out=frozenset(lease.name for lease in prepared.leases),
            kind=kind,
            own=parameters,
            has=furnished.secrets,
            session_environment=moved,
            neutral=neutral,
            limits=limits,
            own_directories=own_directories,
            ended=partial(self._credentials.release, prepared.leases, prepared.home),
            enclosure=enclosure,
            data_disk=self._data_disk(moves=prepared.private or prepared.home is not None),
        )
        if network is not Network.DOOR:
            return plan
        from supervisor.conversations.agent.launch.door import behind_door

        confidential = [name for name, value in given.items() if not _is_plain(name, value)]
        return behind_door(plan, confidential, self.walls.reachable, self.data)

    def limits_of(self, settings: AgentSettings) -> AgentLimits:
        """The limits of an agent: the operator's, lowered to what its settings say."""
        wanted = settings.acp_limits
        return self.limits if wanted is None else self.limits.lowered(wanted.given())

    def _own_directories(self, record: ConversationRecord, prepared: Prepared) -> tuple[Path, ...]:
        """The directory of the conversation's agent, and that of its temporary files if it is elsewhere."""
        directory = self.data / record.id
        temporary = None if prepared.home is None else Path(prepared.home.environment["TMPDIR"])
        if temporary is None or temporary.is_relative_to(directory):
            return (directory,)
        return (directory, temporary)

    async def _check_disk(
        self, record: ConversationRecord, limits: AgentLimits, directories: Sequence[Path]
    ) -> None:
        """Raise AgentFailure if the agent's home is above its limit already: the agent would be ended as soon
        as that is seen, and again after each restart."""
        if limits.disk is None:
            return
        walk = partial(disk_use, directories, limits.disk)
        try:
            found = await in_time(walk, "to measure the agent's home", limiter=OWN_PATHS.of(record.id))
        except OSError as error:
            raise _unusable(f"The agent's home cannot be measured: {error}") from error
        if found.bytes > limits.disk:
            hit = hit_of(limits, Limit.DISK, found.bytes, Mechanism.POLLING, ended=False)
            raise _unusable(f"{hit.text} It is in {directories[0]}.")

    async def _installed(
        self,
        record: ConversationRecord,
        descriptor: Descriptor,
        progress: Callable[[str], None],
        seconds: float,
    ) -> Launch:
        """Install the agent if necessary. Raises AgentFailure."""
        if tuple(record.agent.acp_command) == RELAY_COMMAND:
            from supervisor.agents.install.packages import Launch

            return Launch(argv=relay.ARGV)
        # A late import, since it loads the installers, which a server without agents does not need.
        from supervisor.agents.install.install import resolve_launch

        try:
            return await resolve_launch(
                descriptor,
                () if record.start.preset_command else record.agent.acp_command,
                record.agent.acp_args,
                self.prefix,
                progress=progress,
                seconds=seconds,
                server_env=self.server_environment,
            )
        except InstallError as error:
            raise _unusable(str(error)) from error

    async def _wall(self, record: ConversationRecord) -> Wall:
        """The wall of a conversation's agent. Raises AgentFailure."""
        asked = record.agent.acp_walls
        if asked is None:
            return self.walls.wall
        try:
            # In a thread: the first time it is tried.
            find = partial(self.walls.of, Wall(asked))
            return await in_time(find, "to try a wall", limiter=OWN_PATHS.of(record.id))
        except (WallUnavailable, OSError) as error:
            raise _unusable(str(error)) from error

    async def _enclosure(
        self,
        wall: Wall,
        record: ConversationRecord,
        descriptor: Descriptor,
        argv: Sequence[str],
        environment: Mapping[str, str],
        network: Network,
        mounting: Mounting,
    ) -> Enclosure | None:
        """The wall around the agent, as it finds its paths now. Raises AgentFailure."""
        if wall is Wall.OFF:
            return None
        from supervisor.agents.walls.outside import needs_of

        workspace, own = Path(record.start.working_dir), self.data / record.id
        settings, servers = record.agent, mounting.commands
        further = Paths(
            reads=tuple(map(Path, settings.acp_walls_read)), writes=tuple(map(Path, settings.acp_walls_write))
        )

        def build() -> Enclosure | None:
            needs = needs_of(descriptor.key, argv, environment, workspace, own, self.prefix, servers)
            return self.walls.enclosure(wall, needs, network=network is Network.FULL, further=further)

        try:
            return await in_time(build, "to find what the agent needs", limiter=OWN_PATHS.of(record.id))
        except WallUnavailable as error:
            raise _unusable(str(error)) from error
        except OSError as error:
            raise _unusable(f"The wall around the agent cannot be made: {error.strerror or error}") from error

    def _remote(self, settings: AgentSettings, url: str, secrets: Mapping[str, str]) -> dict[str, str]:
        """The environment of a remote agent's relay: its address and headers, and none of the secrets by
        themselves. Raises AgentFailure."""
        headers = Server("acp_headers", FROM_CONVERSATION, {"headers": settings.acp_headers})
        entry, missing = resolve(headers, secrets)
        if missing:
            raise _unusable(f"acp_headers: {without_secrets(missing)}")
        base = base_environment(self.server_environment, isolated=True)
        return {**base, **relay.variables(url, entry["headers"], self.max_frame)}

    async def _own_secrets(self, record: ConversationRecord) -> dict[str, str]:
        """The conversation's own secrets, also those that are elsewhere. Raises AgentFailure."""
        own = await self.secret_box.open(record.secrets)
        try:
            return own | await self.lookups.fetch(await self.secret_box.open_lookups(record.lookups))
        except LookupFailed as error:
            raise _unusable(str(error)) from error

    async def _prepared(
        self,
        record: ConversationRecord,
        descriptor: Descriptor,
        given: Mapping[str, str],
        own: Collection[str],
        path: Sequence[str],
    ) -> Prepared:
        """Choose the credential, write the files, compose the environment. Raises AgentFailure."""
        origins = {**await self._credentials.present_origins(), **dict.fromkeys(own, CONVERSATION)}
        try:
            return await self._credentials.prepare(record, descriptor, given, origins, path)
        except OSError as error:
            held = (
                "another process holds a lease on a file in it"
                if isinstance(error, BlockingIOError)
                else None
            )
            reason = f"Cannot prepare the agent's data directory: {held or error.strerror or error}"
            raise _unusable(reason) from error

    async def _workspace(self, record: ConversationRecord) -> Jail:
        """Create the workspace if it is missing, and resolve it. Raises AgentFailure.

        On a server that does not have its disk it would only be empty.
        """
        cwd = Path(record.start.working_dir)
        disk = record.start.disk
        if disk is not None and (self.disks is None or not self.disks.has(disk)):
            raise _elsewhere(cwd, disk)
        try:
            made = partial(_make_workspace, cwd, self.data / record.id)
            return await in_time(made, "to find the workspace", limiter=OWN_PATHS.of(record.id))
        except OSError as error:
            raise _unusable(f"The workspace {cwd} cannot be used: {error.strerror or error}") from error

    async def _masker(
        self, every: Mapping[str, str], tokens: Iterable[str], settings: AgentSettings, mounting: Mounting
    ) -> Masker:
        """A masker of all secrets, even those that the agent does not get: a process of the same user may
        find them."""
        # With the MCP servers as the agent gets them, that is, with secrets filled in.
        servers = {**settings.mcp_config, **mounting.entries}
        shown = {**agent_settings_to_dict(settings), "mcp_config": servers}
        own_values = [*self.hidden, *(path for path, _ in mounting.proxied.values())]

        def made() -> Masker:
            return Masker([*_hidden(every), *tokens, *secrets_of(shown)], always=own_values)

        # In a thread: it takes some milliseconds for every ten secrets.
        return await trio.to_thread.run_sync(made)

    async def mounting(self, record: ConversationRecord) -> Mounting:
        """The MCP servers that an agent of this conversation would get if it started now.

        Raises what `secrets` raises.
        """
        # Listing the servers fetches no secrets: a placeholder replaces each value.
        own = {**await self.secret_box.open(record.secrets), **dict.fromkeys(record.lookups, REDACTED)}
        given = record.allowed({**await self.secrets(), **own})
        opened = await self.secret_box.open_settings(record.agent)
        return await gather(
            self.mcp_file, opened.mcp_config, given, record.start.mcp_only, self.mcp_logins, peek=True
        )

    async def global_secrets(self) -> Mapping[str, str] | None:
        """The present global secrets; None while they are unreadable."""
        try:
            return await self.secrets()
        except CredentialsFailure:
            return None

    async def changed_secrets(
        self, record: ConversationRecord, plan: Plan, current: Mapping[str, str] | None
    ) -> tuple[str, ...]:
        """The names of the agent's secrets that changed since it started with this plan.

        `current`: the present global secrets; None (unreadable) gives no names. A login that an agent rotated
        does not count: the agent has the file.
        """
        if current is None:
            return ()
        try:
            own = await self.secret_box.open(record.secrets)
        except CredentialsFailure:
            return ()
        now = record.allowed(plan.kind.among(own, current))
        for name in record.lookups:
            # The next start fetches its present value; here only another source counts as a change.
            same = record.lookups[name] == plan.fetched.get(name)
            now[name] = plan.secrets.get(name, "") if same else ""
        changed = {name for name in {*now, *plan.has} if now.get(name) != plan.has.get(name)}
        for name in changed & plan.checked_out:
            if await self._credentials.logins.same(name, now.get(name, ""), plan.secrets[name]):
                changed.remove(name)
        if not changed:
            return ()
        files = changed & declared_files(record.agent).keys()
        return tuple(sorted(files | concerning(plan.descriptor, changed, self.catalog)))

    async def credentials(self, key: str) -> Choice:
        """The credentials that an agent would use now, in a conversation without its own settings or secrets.

        Reads files in a thread. Raises KeyError for an unknown agent, and what `secrets` raises.
        """
        descriptor = self.catalog[key]
        origins = await self._credentials.present_origins()
        choice, _ = await self._credentials.choose(descriptor, await self.secrets(), origins, None)
        return choice


def _isolated(record: ConversationRecord, wall: Wall, made_of: Made | None) -> ConversationRecord:
    """The record for the agent's files: behind a strict wall it does not see the user's home. Landlock cannot
    put an empty one in its place."""
    if wall is not Wall.STRICT:
        return record
    home = OWN if made_of is Made.LANDLOCK else record.agent.acp_home
    return attrs.evolve(record, agent=attrs.evolve(record.agent, acp_isolate_data_dir=True, acp_home=home))


def _unusable(reason: str) -> AgentFailure:
    return AgentFailure("ACPSpawnError", reason, kind="config", user_action="settings")


def _elsewhere(workspace: Path, disk: str) -> AgentFailure:
    from supervisor.machines.disks import shown

    return AgentFailure(
        "WorkspaceMissing",
        f"The workspace {workspace} is on {shown(disk)}, which is not here. The message waits: start that "
        "server, or one with that volume (OSTLER_VOLUMES), then run the conversation.",
        kind="config",
        user_action="retry",
        retryable=True,
    )


def _make_workspace(path: Path, own: Path) -> Jail:
    make_working_directory(path)
    # Clients see this directory as `persistence_dir`; it is deleted with the conversation.
    own.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Jail(path)


def _hidden(secrets: Mapping[str, str]) -> list[str]:
    return [value for name, value in secrets.items() if not _is_plain(name, value)]


def _is_plain(name: str, value: str) -> bool:
    """Whether a secret is not confidential: an address or a choice, which clients must see unmasked in the
    agent's text."""
    return name.endswith(PLAIN_NAMES) and "@" not in value and "?" not in value
