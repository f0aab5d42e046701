"""Prepares an agent's credentials: chooses one, writes files, composes the environment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from supervisor.agents.catalog import Descriptor, Kind
from supervisor.agents.environment import compose_environment, needs_data_dir
from supervisor.agents.homes.credential import Choice, choose_credential, in_file_secrets
from supervisor.agents.homes.data_dir import prepare_data_dir
from supervisor.agents.homes.logins import Logins, find_logins
from supervisor.agents.homes.shared_logins import Lease, Rotated, SharedLogins
from supervisor.conversations.agent.launch.homes import OWN_PATHS, Homes, OwnHome
from supervisor.conversations.state.record import ConversationRecord
from supervisor.credentials.secret import CredentialsFailure
from supervisor.patience import in_time
from supervisor.settings.agent import DEFAULT_FILE_SECRETS, AgentSettings, FileSecret

log = structlog.get_logger(__name__)

STORE: Final = "store"
"""The source of a global secret; `AgentCredentials.origins` may be more precise."""

LOGINS_DIR: Final = "logins"
"""Subdirectory of the data directory for logins that conversations share. Conversations' directories are
named after their ids."""

FILES_DIR: Final = "files"
"""Directory of the files that a conversation's settings ask for."""

KeepSecret = Callable[[str, str, Callable[[str], bool]], Awaitable[bool]]
"""Called with a name, its new value, and a test whether a value may be replaced. Returns whether it was
replaced."""


@attrs.frozen
class Prepared:
    """The credentials and the environment of a start, whose files are written."""

    environment: Mapping[str, str] = attrs.field(repr=False)
    choice: Choice
    leases: tuple[Lease, ...]
    tokens: frozenset[str] = attrs.field(repr=False)
    private: bool
    home: OwnHome | None


@attrs.frozen(kw_only=True)
class AgentCredentials:
    """Prepares the credentials of one server's agents. The fields are those of the launcher."""

    catalog: Mapping[str, Descriptor]
    data: Path
    server_environment: Mapping[str, str] = attrs.field(repr=False)
    origins: Callable[[], Awaitable[Mapping[str, str]]] | None
    keep_secret: KeepSecret | None
    logins: SharedLogins = attrs.field(
        init=False,
        default=attrs.Factory(lambda self: SharedLogins(self.data / LOGINS_DIR, self._keep), takes_self=True),
    )

    @property
    def homes(self) -> Homes:
        """The private homes of agents."""
        real = self.server_environment.get("HOME")
        return Homes(self.data, Path(real) if real else None)

    async def present_origins(self) -> Mapping[str, str]:
        """The sources of the global secrets, as far as they have one."""
        return {} if self.origins is None else await self.origins()

    async def choose(
        self,
        descriptor: Descriptor,
        secrets: Mapping[str, str],
        origins: Mapping[str, str],
        data_dir: Path | None,
        plain: Mapping[str, str] | None = None,
        home: Mapping[str, str] | None = None,
    ) -> tuple[Choice, Logins]:
        """Choose the credential that the agent would use, and find the logins that it has. Reads files in a
        thread."""
        environment = compose_environment(
            server_env=self.server_environment,
            descriptor=descriptor,
            secrets=secrets,
            data_dir=data_dir,
            extra={},
            plain=plain,
            home=home,
            catalog=self.catalog,
        )
        logins = await find_logins(descriptor, environment)
        given = {name: origins.get(name, STORE) for name, value in secrets.items() if value}
        found = (*logins.found, *in_file_secrets(descriptor, secrets))
        return choose_credential(descriptor, given, found), logins

    async def prepare(
        self,
        record: ConversationRecord,
        descriptor: Descriptor,
        given: Mapping[str, str],
        origins: Mapping[str, str],
        path: Sequence[str],
    ) -> Prepared:
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
        own = await self.homes.open(record, descriptor)
        plain, moved = settings.acp_env, None if own is None else own.environment
        choice, logins = await self.choose(
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
        return Prepared(environment, choice, tuple(leases), tokens, data_dir is not None, own)

    async def _checkout(self, user: str, name: str, value: str | None, target: Path) -> list[Lease]:
        if value:
            return [await self.logins.checkout(name, value, user=user, target=target)]
        await self.logins.revoke(name, user=user, target=target)
        return []

    async def release(self, leases: Sequence[Lease], home: OwnHome | None) -> None:
        """Store the tokens that the agent rotated, after its end. See `Plan.ended`."""

        async def one(lease: Lease) -> None:
            try:
                await self.logins.release(lease)
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
            if (await self.present_origins()).get(rotated.name, STORE) != STORE:
                return
            if await self.keep_secret(rotated.name, rotated.value, rotated.known):
                log.info("agent rotated a login; stored the new one", secret=rotated.name)
        except (CredentialsFailure, OSError) as error:
            # The value is not lost: it stays in its file, and the next start tries to store it again.
            log.warning("cannot store a rotated login", secret=rotated.name, error=str(error))


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
