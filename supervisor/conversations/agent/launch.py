"""Prepares the start of a conversation's agent: program, environment, credentials, MCP servers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs
import structlog
import trio

from supervisor.acp import MAX_FRAME_BYTES, Jail
from supervisor.agents.catalog import Descriptor, Kind, behaving
from supervisor.agents.environment import compose_environment, concerning, needs_data_dir
from supervisor.agents.errors import InstallError
from supervisor.agents.homes.credential import (
    Choice,
    auth_params,
    choose_credential,
    helpful_names,
    in_file_secrets,
)
from supervisor.agents.homes.data_dir import prepare_data_dir
from supervisor.agents.homes.logins import Logins, find_logins
from supervisor.agents.homes.shared_logins import Lease, Rotated, SharedLogins
from supervisor.conversations.agent.directory import make_directory
from supervisor.conversations.agent.homes import OWN_PATHS, Homes, OwnHome
from supervisor.conversations.mcp.logins import McpLogins
from supervisor.conversations.mcp.mounting import Mounting, gather
from supervisor.conversations.state.errors import AgentFailure
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.state.secret_box import SecretBox
from supervisor.credentials.common import PLAIN_NAMES
from supervisor.credentials.lookup import LookupFailed, Lookups
from supervisor.credentials.masking import Masker
from supervisor.credentials.secret import REDACTED, CredentialsFailure
from supervisor.mcp.file import McpFile
from supervisor.patience import in_time
from supervisor.settings.agent import DEFAULT_FILE_SECRETS, AgentSettings, FileSecret, agent_settings_to_dict
from supervisor.settings.errors import SettingsFailure
from supervisor.settings.exposure import secrets_of

if TYPE_CHECKING:
    from supervisor.acp.schema.handshake import AuthMethod

log = structlog.get_logger(__name__)

CUSTOM: Final = "custom"
"""The key of an agent that is configured only by its command."""

ENV_VAR: Final = "env_var"
TERMINAL: Final = "terminal"
"""Types of login methods (AuthMethod)."""

CONVERSATION: Final = "conversation"
STORE: Final = "store"
"""The source of a secret: the conversation, or all conversations. `Launcher.origins` may be more precise."""

LOGINS_DIR: Final = "logins"
"""Subdirectory of the data directory for logins that conversations share. Conversations' directories are
named after their ids."""

SPARE_PREFIX: Final = "spare-"
"""Prefix, in the data directory, of the directories in which spares are started."""

UNSETTLED_PREFIX: Final = "unsettled-"
"""Prefix, in the data directory, of marker files named after conversations. A marker means that the journal
decides whether the conversation's data stays: the two cannot change atomically."""

CONVERSATION_ID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The names of conversations' directories. Agents can write into the data directory; other names are
ignored."""

FILES_DIR: Final = "files"
"""Directory of the files that a conversation's settings ask for."""


@attrs.frozen(kw_only=True)
class Login:
    """How an agent can log in: its credentials, matched with the methods that it advertises."""

    descriptor: Descriptor
    choice: Choice
    environment: Mapping[str, str] = attrs.field(repr=False)

    def params(self, methods: Iterable[AuthMethod]) -> Iterator[dict[str, Any]]:
        """The parameters of each `authenticate` that may work unattended, the best first.

        These are the method of a credential that the agent has, then those of type `env_var` whose variables
        it was started with. A method that requires a terminal never fits.
        """
        methods = [method for method in methods if method.type != TERMINAL]
        chosen = auth_params(
            self.descriptor, self.choice, [method.id for method in methods], self.environment
        )
        if chosen is not None:
            yield chosen
        for method in methods:
            known = chosen is not None and chosen["methodId"] == method.id
            if method.type == ENV_VAR and method.variables and not known and not self._missing(method):
                yield {"methodId": method.id}

    def needed(self, methods: Iterable[AuthMethod]) -> dict[str, Any]:
        """What a person can do about missing credentials, as JSON.

        These are the methods that the agent offers, and the names of secrets that would help. `given` are
        those that it already has, which therefore do not help. For an agent known only by its command, only
        its methods are known (`missing`: their variables that are not set).
        """
        methods = list(methods)
        asked = [name for method in methods if method.type == ENV_VAR for name in method.variables]
        names = dict.fromkeys([*helpful_names(self.descriptor), *asked])
        given = [name for name in names if self._given(name)]
        return {
            "agent": self.descriptor.key,
            "methods": [
                {
                    "id": method.id,
                    "name": method.name,
                    "type": method.type,
                    **({"missing": self._missing(method)} if method.variables else {}),
                }
                for method in methods
            ],
            "secrets": [name for name in names if not self._given(name)],
            **({"given": given} if given else {}),
            "used": self.choice.credential.name or self.choice.credential.file,
        }

    def _given(self, name: str) -> bool:
        return name in self.choice.names or bool(self.environment.get(name))

    def _missing(self, method: AuthMethod) -> list[str]:
        return [name for name in method.variables if not self._given(name)]


async def _nothing() -> None:
    await trio.lowlevel.checkpoint()


@attrs.frozen
class Furnished:
    """What the agent's kind adds to a session: secrets, extension parameters, and values in these that must
    be masked besides the secrets."""

    secrets: Mapping[str, str] = attrs.field(repr=False)
    parameters: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    confidential: Collection[str] = attrs.field(default=(), repr=False)


@attrs.frozen
class Furnishing:
    """The part of `kind.AgentKind` that a start needs."""

    record: ConversationRecord
    asks_by_policy: ClassVar[bool] = False
    """Whether it follows the conversation's confirmation policy in every mode."""
    takes_servers_whole: ClassVar[bool] = False
    """Whether it gets the full configuration of its MCP servers, besides ACP's form of them."""

    def among(self, own: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
        """The secrets that it may have: of the conversation's (`own`) and of those for all agents
        (`others`)."""
        return {**others, **own}

    async def furnish(
        self, launcher: Launcher, settings: AgentSettings, given: Mapping[str, str], own: Collection[str]
    ) -> Furnished:
        """Compose what a start gives it. `settings`: decrypted. `given`: the secrets that it may have, `own`
        the names of the conversation's. Raises CredentialsFailure, SettingsFailure."""
        return Furnished(given)


@attrs.frozen(kw_only=True)
class Plan:
    """Everything a start needs."""

    descriptor: Descriptor
    argv: tuple[str, ...]
    environment: Mapping[str, str] = attrs.field(repr=False)
    secrets: Mapping[str, str] = attrs.field(repr=False)
    """All secrets that the agent may have, by name, whether it gets them or not."""
    fetched: Mapping[str, Any] = attrs.field(repr=False)
    """The sources of those that were fetched (`ConversationRecord.lookups`)."""
    cwd: Path
    jail: Jail
    """The workspace, resolved before the agent can replace it."""
    mounting: Mounting
    mask: Masker = attrs.field(repr=False)
    version: str | None
    login: Login
    max_frame: int = MAX_FRAME_BYTES
    """Longest message of the agent, in bytes."""
    private: bool = False
    """Whether it has a private data directory, which other conversations' agents do not use."""
    lent: frozenset[str] = frozenset()
    """Names of the secrets that it uses as files shared with other agents."""
    kind: Furnishing
    own: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    """The extension parameters of its session."""
    has: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """The secrets that it gets."""
    known_as: Callable[[str | None], Descriptor] | None = attrs.field(default=None, repr=False)
    """The descriptor of an agent that introduces itself by this name (`Launcher.behaving`)."""
    told: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """The environment variables that the built-in agent gets with its session instead: a spare process
    cannot have the variables of a conversation's home."""
    neutral: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """The values of the same variables in a process without a conversation."""
    ended: Callable[[], Awaitable[None]] = _nothing
    """Await it when the agent's processes are gone: it stores the tokens that the agent rotated.

    Raises nothing. Cancellation waits for writes in progress, and may leave the rest to the next start.
    """

    @property
    def start_environment(self) -> Mapping[str, str]:
        """The environment that its process is started with."""
        if not self.told:
            return self.environment
        kept = {name: value for name, value in self.environment.items() if name not in self.told}
        return {**kept, **self.neutral}


KeepSecret = Callable[[str, str, Callable[[str], bool]], Awaitable[bool]]
"""Called with a name, its new value, and a test whether a value may be replaced. Returns whether it was
replaced."""


@attrs.frozen(kw_only=True)
class Launcher:
    """Plans starts for one server, and manages agents' files: homes, data, copies for forks, and the logins
    that conversations share. Planning installs the agent and fetches secrets, but starts no process.

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
    forks: set[str] = attrs.field(factory=set)
    """Ids of conversations to which a copy of an agent's memory is being moved."""
    _logins: SharedLogins = attrs.field(
        init=False,
        default=attrs.Factory(lambda self: SharedLogins(self.data / LOGINS_DIR, self._keep), takes_self=True),
    )

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

    @property
    def _homes(self) -> Homes:
        real = self.server_environment.get("HOME")
        return Homes(self.data, Path(real) if real else None)

    async def confidential(self) -> tuple[str, ...]:
        """The values that no output may show: the global secrets, if readable, and the server's own."""
        try:
            given = await self.secrets()
        except CredentialsFailure:
            given = {}
        return (*_hidden(given), *self.hidden)

    async def forget(self, conversation_id: str) -> None:
        """Remove an agent's data for a conversation. In threads; a thread that hangs is abandoned.

        What cannot be removed (an agent can use chmod) stays, and is logged.
        """
        try:
            await self._logins.forget(conversation_id)
        except OSError as error:
            log.warning("cannot remove a login", conversation_id=conversation_id, error=str(error))
        try:
            await self._homes.remove(conversation_id)
        except OSError as error:  # PathTimeout is one
            log.warning("agent's data is not removed yet", conversation_id=conversation_id, error=str(error))
        else:
            await self.settle(conversation_id)

    async def unsettle(self, conversation_id: str) -> None:
        """Write a marker: if the server dies, the next one removes the data of this conversation, unless the
        journal has the conversation. In a thread. Cancellation waits for it, within a deadline.

        If the marker cannot be written, the data stays after a kill.
        """
        mark = self.data / f"{UNSETTLED_PREFIX}{conversation_id}"

        def note() -> None:
            self.data.mkdir(parents=True, exist_ok=True, mode=0o700)
            mark.touch(mode=0o600)

        await self._mark(conversation_id, note)

    async def settle(self, conversation_id: str) -> None:
        """Remove the marker of `unsettle`; the rest as there."""
        mark = self.data / f"{UNSETTLED_PREFIX}{conversation_id}"
        await self._mark(conversation_id, partial(mark.unlink, missing_ok=True))

    async def _mark(self, conversation_id: str, change: Callable[[], None]) -> None:
        limiter = OWN_PATHS.of(conversation_id)
        try:
            await in_time(change, "to note whose an agent's data is", limiter=limiter, shield=True)
        except OSError as error:
            log.warning(
                "cannot note whose an agent's data is", conversation_id=conversation_id, error=str(error)
            )

    async def unsettled(self) -> list[str]:
        """The ids of the conversations whose markers an earlier server left."""
        return [name for name in await self._names(UNSETTLED_PREFIX) if CONVERSATION_ID.fullmatch(name)]

    async def hand_down(self, record: ConversationRecord, conversation_id: str, *, sessions: bool) -> bool:
        """Copy the data of this conversation's agent that a fork's agent needs. The source must have no turn;
        `sessions`: also copy those in a data directory. Returns whether everything was copied.

        Cancellation waits for the copying to end, which is bounded (`copy_data`).
        """
        try:
            return await self._homes.hand_down(
                record, self.descriptor(record), conversation_id, sessions=sessions
            )
        except OSError as error:
            log.warning("cannot copy an agent's data for a fork", conversation_id=record.id, error=str(error))
            return False

    async def forget_spares(self) -> None:
        """Remove the files of an earlier server's spares. In threads; a thread that hangs is abandoned."""
        for name in await self._names(SPARE_PREFIX):
            await self.forget(f"{SPARE_PREFIX}{name}")

    async def _names(self, prefix: str) -> list[str]:
        """The names in the data directory that have this prefix, without the prefix."""

        def left() -> list[str]:
            return [entry.name.removeprefix(prefix) for entry in self.data.glob(f"{prefix}*")]

        try:
            return await in_time(left, "to find what was left", limiter=OWN_PATHS.of(prefix))
        except OSError as error:
            log.warning("cannot find what an earlier server left", what=prefix, error=str(error))
            return []

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
            reason = f"Cannot read the secrets for the agent: {error}"
            raise AgentFailure("ACPSpawnError", reason, kind="config", user_action="settings") from error

    async def _composed(
        self, record: ConversationRecord, progress: Callable[[str], None], install_seconds: float
    ) -> Plan:
        # A late import, since it loads the installers, which a server without agents does not need.
        from supervisor.agents.install.install import resolve_launch

        settings = record.agent
        descriptor = self.descriptor(record)
        try:
            launch = await resolve_launch(
                descriptor,
                () if record.start.preset_command else settings.acp_command,
                settings.acp_args,
                self.prefix,
                progress=progress,
                seconds=install_seconds,
                server_env=self.server_environment,
            )
        except InstallError as error:
            raise AgentFailure("ACPSpawnError", str(error), kind="config", user_action="settings") from error
        own = await self.secret_box.open(record.secrets)
        try:
            own |= await self.lookups.fetch(await self.secret_box.open_lookups(record.lookups))
        except LookupFailed as error:
            raise AgentFailure("ACPSpawnError", str(error), kind="config", user_action="settings") from error
        every = {**await self.secrets(), **own}
        given = record.allowed(every)
        origins = {**await self._origins(), **dict.fromkeys(own, CONVERSATION)}
        with_session = descriptor.native_events
        try:
            variables = {} if with_session else given
            prepared = await self._prepare(record, descriptor, variables, origins, launch.path)
        except OSError as error:
            held = (
                "another process holds a lease on a file in it"
                if isinstance(error, BlockingIOError)
                else None
            )
            reason = f"Cannot prepare the agent's data directory: {held or error.strerror or error}"
            raise AgentFailure("ACPSpawnError", reason, kind="config", user_action="settings") from error
        opened = await self.secret_box.open_settings(settings)
        mounting = await gather(
            self.mcp_file, opened.mcp_config, given, record.start.mcp_only, self.mcp_logins
        )
        cwd = Path(record.start.working_dir)
        try:
            made = partial(_make_workspace, cwd, self.data / record.id)
            jail = await in_time(made, "to find the workspace", limiter=OWN_PATHS.of(record.id))
        except OSError as error:
            reason = f"The workspace {cwd} cannot be used: {error.strerror or error}"
            raise AgentFailure("ACPSpawnError", reason, kind="config", user_action="settings") from error
        # In a thread: it takes some milliseconds for every ten secrets.
        # With the MCP servers as the agent gets them, that is, with secrets filled in.
        shown = {**agent_settings_to_dict(opened), "mcp_config": {**opened.mcp_config, **mounting.entries}}
        paths = [path for path, _ in mounting.proxied.values()]
        own_values = [*self.hidden, *paths]
        kind = self.kinds(record)
        furnished = await kind.furnish(self, opened, given, own)
        own_parameters, tokens = furnished.parameters, prepared.tokens.union(furnished.confidential)
        mask = await trio.to_thread.run_sync(_masker, every, tokens, shown, own_values)
        told: Mapping[str, str] = {}
        if with_session and descriptor.warm == "session" and prepared.home is not None:
            told = prepared.home.environment
            own_parameters = None if own_parameters is None else {**own_parameters, "environment": dict(told)}
        neutral = {name: self.server_environment[name] for name in told if name in self.server_environment}
        return Plan(
            descriptor=descriptor,
            known_as=partial(self.behaving, descriptor, record),
            argv=launch.argv,
            environment=prepared.environment,
            secrets=given,
            fetched=dict(record.lookups),
            cwd=cwd,
            jail=jail,
            mounting=mounting,
            mask=mask,
            version=launch.version,
            login=Login(descriptor=descriptor, choice=prepared.choice, environment=prepared.environment),
            max_frame=self.max_frame,
            private=prepared.private,
            lent=frozenset(lease.name for lease in prepared.leases),
            kind=kind,
            own=own_parameters,
            has=furnished.secrets,
            told=told,
            neutral=neutral,
            ended=partial(self._give_back, prepared.leases, prepared.home),
        )

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
        for name in changed & plan.lent:
            if await self._logins.same(name, now.get(name, ""), plan.secrets[name]):
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
        choice, _ = await self._choose(descriptor, await self.secrets(), await self._origins(), None)
        return choice

    async def _origins(self) -> Mapping[str, str]:
        return {} if self.origins is None else await self.origins()

    async def _choose(
        self,
        descriptor: Descriptor,
        secrets: Mapping[str, str],
        origins: Mapping[str, str],
        data_dir: Path | None,
        plain: Mapping[str, str] | None = None,
        home: Mapping[str, str] | None = None,
    ) -> tuple[Choice, Logins]:
        places = compose_environment(
            server_env=self.server_environment,
            descriptor=descriptor,
            secrets=secrets,
            data_dir=data_dir,
            extra={},
            plain=plain,
            home=home,
            catalog=self.catalog,
        )
        logins = await find_logins(descriptor, places)
        given = {name: origins.get(name, STORE) for name, value in secrets.items() if value}
        found = (*logins.found, *in_file_secrets(descriptor, secrets))
        return choose_credential(descriptor, given, found), logins

    async def _prepare(
        self,
        record: ConversationRecord,
        descriptor: Descriptor,
        given: Mapping[str, str],
        origins: Mapping[str, str],
        path: Sequence[str],
    ) -> _Prepared:
        """Choose the credential, write the files, compose the environment. Raises OSError."""
        settings, home = record.agent, self.server_environment.get("HOME")
        private = self.data / record.id / descriptor.key
        # The bundled agent has no private home: its data belongs to the server's state.
        isolated = descriptor.module is not None or (
            settings.acp_isolate_data_dir and bool(descriptor.data_dir_env)
        )
        for spec in descriptor.file_secrets:
            if not given.get(spec.name):
                # First: otherwise it would count as a login that the agent made itself.
                await self._checkout(record.id, spec.name, None, private / spec.path)
        own = await self._homes.open(record, descriptor)
        plain, moved = settings.acp_env, None if own is None else own.environment
        choice, logins = await self._choose(
            descriptor, given, origins, private if isolated else None, plain, moved
        )
        data_dir = private if isolated or needs_data_dir(descriptor, choice) else None
        if data_dir is not None or own is not None:
            handed = {name: value for name, value in given.items() if name not in choice.withheld_names}
            await prepare_data_dir(descriptor, private, secrets=handed, home=Path(home) if home else None)
        declared = declared_files(settings)
        files = self.data / record.id / FILES_DIR
        extra: dict[str, str] = {}
        leases: list[Lease] = []
        for spec in descriptor.file_secrets:
            used = spec.name in choice.names and spec.name not in declared
            target = private / spec.path
            leases += await self._checkout(record.id, spec.name, given[spec.name] if used else None, target)
        for name, wanted in declared.items():
            target = files / wanted.subdir / wanted.filename
            value = None if name in choice.withheld_names else given.get(name)
            leases += await self._checkout(record.id, name, value, target)
            if value:
                extra[wanted.env_var] = str(target if wanted.env_points_to == "file" else target.parent)
        if data_dir is not None and moved is not None:
            data_dir = Path(moved["HOME"])  # the same directory, with a path short enough for sockets
        environment = compose_environment(
            server_env=self.server_environment,
            descriptor=descriptor,
            secrets=given,
            data_dir=data_dir,
            extra=extra,
            plain=plain,
            home=moved,
            path=path,
            catalog=self.catalog,
            choice=choice,
            files=declared,
        )
        if data_dir is not None and descriptor.keeps_key:
            await _remove_kept_key(descriptor, choice, environment)
        _warn(settings, [lease.name for lease in leases], environment)
        tokens = logins.tokens.union(*(lease.tokens for lease in leases))
        return _Prepared(environment, choice, tuple(leases), tokens, data_dir is not None, own)

    async def _checkout(self, user: str, name: str, value: str | None, target: Path) -> list[Lease]:
        if value:
            return [await self._logins.checkout(name, value, user=user, target=target)]
        await self._logins.revoke(name, user=user, target=target)
        return []

    async def _give_back(self, leases: Sequence[Lease], home: OwnHome | None) -> None:
        async def one(lease: Lease) -> None:
            try:
                await self._logins.release(lease)
            except OSError as error:
                log.warning("cannot read a login", secret=lease.name, error=str(error))

        async def take_over(home: OwnHome) -> None:
            try:
                await home.settle()
            except OSError as error:
                log.warning("cannot look for renewed logins", error=str(error))

        # Concurrently, so that the deadlines of directories that hang do not add up.
        async with trio.open_nursery() as nursery:
            if home is not None:
                nursery.start_soon(take_over, home)
            for lease in leases:
                nursery.start_soon(one, lease)

    async def _keep(self, rotated: Rotated) -> None:
        """Store the newest value of a login, if the store has an earlier one of it."""
        if self.keep_secret is None:
            return
        try:
            if (await self._origins()).get(rotated.name, STORE) != STORE:
                return
            if await self.keep_secret(rotated.name, rotated.value, rotated.known):
                log.info("agent rotated a login; stored the new one", secret=rotated.name)
        except (CredentialsFailure, OSError) as error:
            # The value is not lost: it stays in its file, and the next start tries to store it again.
            log.warning("cannot store a rotated login", secret=rotated.name, error=str(error))


@attrs.frozen
class _Prepared:
    environment: Mapping[str, str] = attrs.field(repr=False)
    choice: Choice
    leases: tuple[Lease, ...]
    tokens: frozenset[str] = attrs.field(repr=False)
    private: bool
    home: OwnHome | None


def declared_files(settings: AgentSettings) -> dict[str, FileSecret]:
    """The file secrets that the settings name.

    The defaults do not count: they belong to agents of the catalogue, and a custom agent must not get another
    agent's login.
    """
    return {spec.secret_name: spec for spec in settings.acp_file_secrets if spec not in DEFAULT_FILE_SECRETS}


def _warn(settings: AgentSettings, names: Sequence[str], environment: Mapping[str, str]) -> None:
    for spec in settings.acp_file_secrets:
        missing = [name for name in spec.warn_if_unset if not environment.get(name)]
        if spec.secret_name in names and missing:
            log.warning("credential file requires more variables", secret=spec.secret_name, missing=missing)


async def _remove_kept_key(descriptor: Descriptor, choice: Choice, environment: Mapping[str, str]) -> None:
    """Remove the key that the agent stored in its data directory: the agent would prefer it to the given
    one."""
    if choice.credential.kind is not Kind.API_KEY or choice.credential.name is None:
        return
    kept = choose_credential(descriptor, {}, (await find_logins(descriptor, environment)).found)
    if kept.credential.kind is Kind.API_KEY and kept.credential.file is not None:
        file = Path(kept.credential.file)
        unlink = partial(file.unlink, missing_ok=True)
        await in_time(unlink, "to remove a key", limiter=OWN_PATHS.of(str(file)))


def _make_workspace(path: Path, own: Path) -> Jail:
    make_directory(path)
    # Clients see this directory as `persistence_dir`; it is deleted with the conversation.
    own.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Jail(path)


def _masker(
    secrets: Mapping[str, str], tokens: Iterable[str], settings: Mapping[str, Any], own: Iterable[str]
) -> Masker:
    """A masker of all secrets, even those that the agent does not get: a process of the same user may find
    them. `own` are the server's."""
    return Masker([*_hidden(secrets), *tokens, *secrets_of(settings)], always=own)


def _hidden(secrets: Mapping[str, str]) -> list[str]:
    return [value for name, value in secrets.items() if not _is_plain(name, value)]


def _is_plain(name: str, value: str) -> bool:
    """Whether a secret is not confidential: an address or a choice, which clients must see unmasked in the
    agent's text."""
    return name.endswith(PLAIN_NAMES) and "@" not in value and "?" not in value
