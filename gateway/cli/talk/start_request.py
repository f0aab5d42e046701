"""The request that starts a conversation: agent, working directory, permission policy."""

from __future__ import annotations

import uuid
from argparse import Namespace
from pathlib import Path
from typing import Any, Final, NamedTuple

from gateway.cli.client import Server
from gateway.cli.failures import BadInput
from gateway.cli.suggest import did_you_mean

ALWAYS: Final = {"kind": "AlwaysConfirm"}
NEVER: Final = {"kind": "NeverConfirm"}

BUILT_IN: Final = "openhands"
"""The built-in agent, which has its own kind of settings."""

LOCAL: Final = frozenset({"127.0.0.1", "::1", "localhost"})

EXPOSED: Final = {"X-Expose-Secrets": "encrypted"}
"""Requests settings with encrypted secrets, which are sent back as they are: for an agent with its own
model."""


class ConversationOptions(NamedTuple):
    """What a new conversation is to have. None: what the settings say."""

    cwd: str
    agent: str | None = None
    model: str | None = None
    mode: str | None = None
    policy: dict[str, Any] = ALWAYS


def working_directory(server: Server, arguments: Namespace) -> str:
    """The directory of `--cwd`, which has to be there if the server is on this machine. Raises BadInput."""
    path = Path(arguments.cwd or Path.cwd()).expanduser().absolute()
    if server.host in LOCAL and not path.is_dir():
        raise BadInput(f"--cwd: there is no directory {path}")
    return str(path)


def new_id() -> str:
    """The id of a conversation to be."""
    return str(uuid.uuid4())


def start_request(
    server: Server, conversation_id: str, options: ConversationOptions, message: str | None
) -> dict[str, Any]:
    """The body for `POST /api/conversations`. Asks for the settings where it has to. Raises Failure."""
    body: dict[str, Any] = {
        "conversation_id": conversation_id,
        "workspace": {"kind": "LocalWorkspace", "working_dir": options.cwd},
        "confirmation_policy": options.policy,
        "event_vocabulary": "extended",
    }
    if message is not None:
        body["initial_message"] = {"content": [{"type": "text", "text": message}]}
    own = {
        key: value
        for key, value in (("acp_model", options.model), ("acp_session_mode", options.mode))
        if value
    }
    if options.agent == BUILT_IN:
        body["agent_settings"] = _built_in(server, options)
        body["secrets_encrypted"] = True
    elif options.agent is not None:
        body["agent_settings"] = {"agent_kind": "acp", "acp_server": options.agent, **own}
    elif own:
        settings = server.call("GET", "/api/settings", headers=EXPOSED)["agent_settings"]
        body["agent_settings"] = {**settings, **own}
        body["secrets_encrypted"] = True
    return body


def _built_in(server: Server, options: ConversationOptions) -> dict[str, Any]:
    """The built-in agent: with the model of the settings, where those are its own."""
    settings = server.call("GET", "/api/settings", headers=EXPOSED)["agent_settings"]
    if settings.get("agent_kind") != BUILT_IN:
        settings = {"agent_kind": BUILT_IN}
    if options.model is not None:
        settings = {**settings, "llm": {**settings.get("llm", {}), "model": options.model}}
    return dict(settings)


def create(server: Server, body: dict[str, Any], agent: str | None) -> None:
    """Start the conversation. Raises Failure; for an unknown agent, with a suggestion."""
    try:
        server.post("/api/conversations", body)
    except BadInput as error:
        if agent is None or "Input should be" not in str(error):
            raise
        raise BadInput(
            f"there is no agent {agent!r}{did_you_mean(agent, known_agents())} (see `ostler agents list`;"
            " `ostler settings set acp_command` sets any other command)"
        ) from None


def known_agents() -> list[str]:
    """The agents of the catalogue, by the names of its files: reading them would take much longer."""
    import supervisor

    return sorted(path.stem for path in Path(supervisor.__file__).parent.glob("agents/catalog/*.toml"))
