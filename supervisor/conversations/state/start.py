"""The decoded request that starts a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from supervisor.credentials.source import LookupSecret
from supervisor.events import Message, Vocabulary
from supervisor.settings.agent import AgentSettings

MAX_ITERATIONS_DEFAULT = 500
"""Turns that one run takes up; the value that clients send themselves."""


def never_confirm() -> dict[str, Any]:
    """The default confirmation policy: never ask."""
    return {"kind": "NeverConfirm"}


@attrs.frozen(kw_only=True)
class StartRequest:
    """A start request: decoded and validated field by field, not yet resolved against the settings.

    `agent`: None leaves the choice to the server's settings.

    `spelled_out`: the request named the agent itself (as `agent`, `agent_settings` or `agent_profile_id`).
    That decides the vocabulary if neither the request nor the server forces one.

    `max_iterations`: the most messages that one run takes up.

    `stuck_detection`: only echoed; Ostler does not look for loops of external agents.

    `extra`: fields that are only echoed (hook_config, client_tools, tool_module_qualnames ...).

    `secrets`: by name plain values, or where they are fetched from; the caller has resolved references to the
    own store already.

    `mcp_servers`: MCP servers besides those of the agent, by name, as settings have them.

    `by_agent`: the parent's agent starts it.

    `heedless`, `pardoned`: what is known of how the agent takes a no (see `ConversationRecord`).
    """

    working_dir: str
    conversation_id: str | None = None
    agent: AgentSettings | None = None
    spelled_out: bool = False
    event_vocabulary: Vocabulary | None = None
    initial_message: Message | None = None
    confirmation_policy: dict[str, Any] = attrs.field(factory=never_confirm)
    security_analyzer: dict[str, Any] | None = None
    max_iterations: int = MAX_ITERATIONS_DEFAULT
    stuck_detection: bool = True
    by_agent: bool = False
    heedless: bool = False
    pardoned: bool = False
    tags: dict[str, str] = attrs.field(factory=dict)
    secrets: dict[str, str | LookupSecret] = attrs.field(factory=dict, repr=False)
    title: str | None = None
    autotitle: bool = True
    parent_conversation_id: str | None = None
    launched_agent_profile: dict[str, Any] | None = None
    mcp_only: tuple[str, ...] | None = None
    mcp_servers: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    extra: dict[str, Any] = attrs.field(factory=dict)


def choose_vocabulary(request: StartRequest, forced: Vocabulary | None) -> Vocabulary:
    """The vocabulary of a new conversation: the server's if forced, else the requested one, else by the form.

    A request that leaves the agent to the settings comes from the older interface, which reads the core
    kinds. One that spells the agent out comes from today's clients, which render the extended kinds best.
    """
    if forced is not None:
        return forced
    if request.event_vocabulary is not None:
        return request.event_vocabulary
    return Vocabulary.EXTENDED if request.spelled_out else Vocabulary.CORE
