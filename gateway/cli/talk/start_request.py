"""The start of a conversation: agent, working directory, permission policy, and the request with them."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from gateway.cli.agents.names import BUILT_IN, CUSTOM, DONE_FILE, agent_key, no_agent, where_installed
from gateway.cli.client import MUST_BE, Server
from gateway.cli.failures import BadInput, Failure
from gateway.cli.operate.settings import NO_COMMAND
from gateway.cli.talk.enclosures import Parts
from gateway.cli.text import SHORT_ID

ALWAYS: Final = {"kind": "AlwaysConfirm"}
NEVER: Final = {"kind": "NeverConfirm"}


class ConversationOptions(NamedTuple):
    """What a new conversation is to have. None: what the settings say."""

    cwd: str
    agent: str | None = None
    model: str | None = None
    mode: str | None = None
    policy: dict[str, Any] = ALWAYS

    @classmethod
    def of(cls, server: Server, arguments: Namespace) -> ConversationOptions:
        """As the arguments say. Raises BadInput without the directory, if the server is on this machine."""
        path = Path(arguments.cwd or Path.cwd()).expanduser().absolute()
        if server.local and not path.is_dir():
            raise BadInput(f"--cwd: there is no directory {path}")
        return cls(
            cwd=str(path),
            agent=arguments.agent,
            model=arguments.model,
            policy=NEVER if arguments.yes else ALWAYS,
        )


def refuse_new_options(arguments: Namespace) -> None:
    """Raise BadInput for options of new conversations if an existing one is to be continued."""
    for option in ("agent", "cwd", "model"):
        if (arguments.resume or arguments.latest) and getattr(arguments, option) is not None:
            raise BadInput(
                f"--{option} applies to new conversations only; leave it out to continue a conversation"
            )


def continued(server: Server, arguments: Namespace) -> str | None:
    """The conversation to continue: the one named, or the last of this directory. Raises Failure."""
    if arguments.resume:
        return server.conversation_id(arguments.resume)
    return server.newest(os.path.realpath(Path.cwd())) if arguments.latest else None


def introduced(info: Mapping[str, Any]) -> str:
    """A conversation's title, id, agent and directory, for people."""
    title, agent = info.get("title") or "conversation", agent_key(info.get("agent")) or "agent"
    return f"{title} ({info['id'][:SHORT_ID]}, {agent}) in {info['workspace']['working_dir']}"


def refuse_without_credential(server: Server, agent: str | None) -> None:
    """Raise Failure if an agent without a key would be installed first, which takes minutes, to say that."""
    key = agent or server.get("/api/settings")["agent_settings"].get("acp_server")
    if key in (None, CUSTOM, BUILT_IN):  # those without a package, and the one with keys in the settings
        return
    try:
        found = server.get(f"/api/agents/credentials?agent={quote(key, safe='')}")["agents"][0]
    except Failure:
        return  # there is no such agent; the start says so better
    place = where_installed(server, key)()
    if found["credential"]["kind"] != "none" or not found["would_help"] or place is None:
        return
    prefix, _, megabytes = place
    if megabytes is not None and not any((prefix / key).glob(f"*/{DONE_FILE}")):
        _refuse_without_runtime(key)
        names = sorted(found["would_help"], key=lambda name: not name.endswith("_API_KEY"))
        more = f" (or {', '.join(names[1:])})" if names[1:] else ""
        raise Failure(
            f"{key} has no credential, and installing it takes {megabytes} MB; "
            f"`ostler secrets set {names[0]}`{more} stores one, "
            f"`ostler agents install {key}` installs it without"
        )


def _refuse_without_runtime(key: str) -> None:
    """Raise Failure where the agent could not run here at all: a key would be set for nothing."""
    import trio  # late: only a first use needs it

    from supervisor.agents.catalog import load_catalog
    from supervisor.agents.errors import InstallError
    from supervisor.agents.install.install import require_runtime

    descriptor = load_catalog().get(key)
    if descriptor is not None:
        try:
            trio.run(require_runtime, descriptor, os.environ)
        except InstallError as error:
            raise Failure(f"{key} cannot be installed: {error}") from None


def create(server: Server, conversation_id: str, options: ConversationOptions, message: Parts | None) -> None:
    """Start the conversation, with the message if there is one. Raises Failure; for an unknown agent, with a
    suggestion."""
    body: dict[str, Any] = {
        "conversation_id": conversation_id,
        "workspace": {"kind": "LocalWorkspace", "working_dir": options.cwd},
        "confirmation_policy": options.policy,
        "event_vocabulary": "extended",
    }
    if message is not None:
        body["initial_message"] = {"content": message}
    wanted = {"acp_model": options.model, "acp_session_mode": options.mode}
    own = {key: value for key, value in wanted.items() if value}
    if options.agent == BUILT_IN:
        body["agent_settings"] = _built_in(server, options)
        body["secrets_encrypted"] = True
    elif options.agent is not None:
        body["agent_settings"] = {"agent_kind": "acp", "acp_server": options.agent, **own}
    elif own:
        body["agent_settings"] = {**_settings(server), **own}
        body["secrets_encrypted"] = True
    try:
        server.post("/api/conversations", body)
    except BadInput as error:
        agent = options.agent
        if agent == CUSTOM and "acp_command" in str(error):
            raise BadInput(f"--agent {CUSTOM}: {NO_COMMAND}") from None
        if agent is None or MUST_BE not in str(error):
            raise
        raise BadInput(no_agent(agent)) from None


def _settings(server: Server) -> dict[str, Any]:
    """The settings with encrypted secrets, which are sent back as they are. Raises Failure."""
    answer = server.call("GET", "/api/settings", headers={"X-Expose-Secrets": "encrypted"})
    return dict(answer["agent_settings"])


def _built_in(server: Server, options: ConversationOptions) -> dict[str, Any]:
    """The built-in agent: with the model of the settings, where those are its own."""
    settings = _settings(server)
    if settings.get("agent_kind") != BUILT_IN:
        settings = {"agent_kind": BUILT_IN}
    if options.model is not None:
        settings["llm"] = {**settings.get("llm", {}), "model": options.model}
    return settings
