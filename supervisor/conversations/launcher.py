"""What it takes to start the agent of a conversation: program, environment, credentials, MCP servers."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from supervisor.agents import (
    Descriptor,
    InstallError,
    compose_environment,
    detect,
    needs_data_dir,
    prepare_data_dir,
    resolve_launch,
    usable_auth_method,
)
from supervisor.credentials.masking import Masker
from supervisor.settings import agent_settings_to_dict, secrets_of

from .errors import AgentFailure
from .record import ConversationRecord
from .vault import Vault

CUSTOM: Final = "custom"
"""The key of an agent that is only known by its command."""


Login = Callable[[Sequence[Mapping[str, Any]]], Awaitable[dict[str, Any] | None]]
"""Chooses among the authentication methods that an agent advertises: the parameters of `authenticate`, or
None where no credential fits."""


@attrs.frozen(kw_only=True)
class Plan:
    """Everything a start needs."""

    descriptor: Descriptor
    argv: tuple[str, ...]
    environment: Mapping[str, str] = attrs.field(repr=False)
    cwd: Path
    mcp_config: Mapping[str, Any] = attrs.field(repr=False)
    mask: Masker = attrs.field(repr=False)
    version: str | None
    login: Login


@attrs.frozen(kw_only=True)
class Launcher:
    """Plans starts for one server. Owns nothing; `secrets` answers with the global secrets by name."""

    catalog: Mapping[str, Descriptor]
    prefix: Path
    data: Path
    server_environment: Mapping[str, str] = attrs.field(repr=False)
    secrets: Callable[[], Awaitable[Mapping[str, str]]]
    vault: Vault

    def descriptor(self, record: ConversationRecord) -> Descriptor:
        """The descriptor of a conversation's agent: by its key, else by its command, else custom."""
        settings = record.agent
        key = settings.acp_server
        if key == CUSTOM or key not in self.catalog:
            key = detect(settings.acp_command, self.catalog) or CUSTOM
        return self.catalog[key]

    async def forget(self, conversation_id: str) -> None:
        """Remove what agents kept for a conversation. In a thread, which cancelling waits for."""
        remove = partial(shutil.rmtree, self.data / conversation_id, ignore_errors=True)
        await trio.to_thread.run_sync(remove)

    async def plan(
        self, record: ConversationRecord, progress: Callable[[str], None], install_seconds: float
    ) -> Plan:
        """Install if need be, within so many seconds, and compose the environment.

        Raises AgentFailure (ACPSpawnError). Cancelling it stops an installation that nobody else waits for.
        """
        settings = record.agent
        descriptor = self.descriptor(record)
        try:
            launch = await resolve_launch(
                descriptor,
                () if record.preset_command else settings.acp_command,
                settings.acp_args,
                self.prefix,
                progress=progress,
                seconds=install_seconds,
                server_env=self.server_environment,
            )
        except InstallError as error:
            raise AgentFailure("ACPSpawnError", str(error), kind="config", user_action="settings") from error
        given = {**await self.secrets(), **await self.vault.open(record.secrets)}
        data_dir: Path | None = None
        wanted = settings.acp_isolate_data_dir and bool(descriptor.data_dir_env)
        # What is bundled has no home of its own: what it keeps belongs to the server's state.
        if wanted or descriptor.module is not None or needs_data_dir(descriptor, given):
            data_dir = self.data / record.id / descriptor.key
            home = self.server_environment.get("HOME")
            await prepare_data_dir(descriptor, data_dir, secrets=given, home=Path(home) if home else None)
        environment = compose_environment(
            server_env=self.server_environment,
            descriptor=descriptor,
            secrets=given,
            data_dir=data_dir,
            extra={},
            path=launch.path,
        )
        opened = await self.vault.open_settings(settings)
        cwd = Path(record.working_dir)
        await trio.to_thread.run_sync(_make_workspace, cwd)
        # In a thread: some milliseconds for every ten secrets.
        mask = await trio.to_thread.run_sync(_masker, given, agent_settings_to_dict(opened))
        return Plan(
            descriptor=descriptor,
            argv=launch.argv,
            environment=environment,
            cwd=cwd,
            mcp_config=opened.mcp_config,
            mask=mask,
            version=launch.version,
            login=partial(choose_login, descriptor, environment),
        )


def _make_workspace(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)


def _masker(secrets: Mapping[str, str], settings: Mapping[str, Any]) -> Masker:
    """Knows what the agent is given, and what it is not: as a process of the user it may find that, too."""
    hidden = [value for name, value in secrets.items() if not _is_plain_url(name, value)]
    return Masker([*hidden, *secrets_of(settings)])


def _is_plain_url(name: str, value: str) -> bool:
    """Whether it is kept among the secrets only so that it reaches the agent: an address is no secret."""
    return name.endswith("_BASE_URL") and "@" not in value and "?" not in value


async def choose_login(
    descriptor: Descriptor, environment: Mapping[str, str], methods: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """The parameters of `authenticate`: the first of the descriptor's methods that the agent advertises and
    for which a credential is there. None where there is none; a method that wants a terminal never fits."""
    offered = {str(method.get("id")) for method in methods if method.get("type") != "terminal"}
    chosen = await usable_auth_method(descriptor, offered, environment)
    if chosen is None:
        return None
    params: dict[str, Any] = {"methodId": chosen}
    url = environment.get(descriptor.base_url_env or "")
    if url and descriptor.base_url_alias is not None:
        # An agent whose own name for it differs takes the URL as a parameter, too.
        params["_meta"] = {"gateway": {"baseUrl": url}}
    return params
