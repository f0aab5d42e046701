"""The start of a conversation: agent, working directory, permission policy, and the request with them."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any, Final, NamedTuple

from gateway.cli.agents.names import BUILT_IN, no_agent
from gateway.cli.client import Server
from gateway.cli.failures import BadInput
from gateway.cli.talk.enclosures import Parts

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


def create(server: Server, conversation_id: str, options: ConversationOptions, message: Parts) -> None:
    """Start the conversation with a message. Raises Failure; for an unknown agent, with a suggestion."""
    body: dict[str, Any] = {
        "conversation_id": conversation_id,
        "workspace": {"kind": "LocalWorkspace", "working_dir": options.cwd},
        "confirmation_policy": options.policy,
        "event_vocabulary": "extended",
        "initial_message": {"content": message},
    }
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
        if agent is None or "Input should be" not in str(error):
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
