"""Converts what Ostler sends with a session to the SDK's types. Raises RpcError where the SDK refuses it."""

from __future__ import annotations

import importlib
import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openhands.sdk.agent import Agent
from openhands.sdk.conversation.request import AgentLaunchAdditions
from openhands.sdk.conversation.types import StuckDetectionThresholds
from openhands.sdk.hooks import HookConfig
from openhands.sdk.launch import AgentLaunchError, LaunchRuntime, ResolvedLaunch, finalize
from openhands.sdk.llm import LLM, ImageContent, Message, TextContent
from openhands.sdk.plugin import PluginSource
from openhands.sdk.secret import SecretSource, SecretValue, StaticSecret
from openhands.sdk.security.analyzer import SecurityAnalyzerBase
from openhands.sdk.security.confirmation_policy import ConfirmationPolicyBase
from openhands.sdk.settings.model import OpenHandsAgentSettings
from openhands.sdk.subagent import AgentDefinition
from openhands.sdk.subagent.registry import agent_definition_to_factory, register_agent_if_absent
from openhands.sdk.tool.client_tool import ClientToolSpec
from pydantic import BaseModel, SecretStr, TypeAdapter, ValidationError

from .wire import INVALID_PARAMS, RpcError

log = logging.getLogger(__name__)

KNOWN = Path(__file__).with_name("known.json")
"""The file that the server reads too."""

OBSERVED = (
    "observability_metadata",
    "observability_parent_span_context",
    "observability_span_name",
    "observability_tags",
    "user_id",
)
"""What is added to a trace of the conversation, if one is recorded."""

TYPES = {
    "confirmation_policy": ConfirmationPolicyBase,
    "hook_config": HookConfig,
    "llm": LLM,
    "security_analyzer": SecurityAnalyzerBase,
    "stuck_detection_thresholds": StuckDetectionThresholds,
}
LISTS = {"client_tools": ClientToolSpec, "plugins": PluginSource}
"""The SDK's types of what is sent with a session."""

PLAYWRIGHT = ".cache/ms-playwright"
"""Where Playwright keeps browsers, below a user's home."""


def agent_of(given: Mapping[str, Any], servers: list[Any]) -> Agent:
    """Return the agent, from `agent` in the SDK's form or from `agent_settings`, with the MCP servers."""
    browser = has_browser()
    mcp = {server["name"]: _server(server) for server in servers}
    source: Any
    if isinstance(given.get("agent"), Mapping):
        agent = decode(Agent, "agent", {**given["agent"], "mcp_config": mcp})
        tools = [tool for tool in agent.tools if browser or tool.name != "browser_tool_set"]
        source = agent.model_copy(update={"tools": tools})
    else:
        said = {**(given.get("agent_settings") or {}), "mcp_config": mcp}
        source = ResolvedLaunch(settings=decode(OpenHandsAgentSettings, "agent_settings", said))
    additions = None
    if given.get("agent_launch_additions") is not None:
        # Ostler has already resolved the model that they may name.
        said = {**given["agent_launch_additions"], "llm_profile_ref": None}
        additions = decode(AgentLaunchAdditions, "agent_launch_additions", said)
    try:
        launched = finalize(
            source,
            LaunchRuntime(browser_available=browser),
            additions=additions,
            load_memory=bool(given.get("load_memory")),
        )
    except AgentLaunchError as error:
        raise RpcError(INVALID_PARAMS, str(error)) from None
    assert isinstance(launched.agent, Agent)
    return launched.agent


def import_tools() -> None:
    """Register the tools by their names: a conversation may have any of them."""
    # Each registers itself when it is imported.
    from openhands.tools import child_conversation, gemini, glob, grep, planning_file_editor  # noqa: F401
    from openhands.tools.preset.default import register_builtins_agents

    register_builtins_agents(enable_browser=has_browser())


def import_more_tools(modules: Any) -> None:
    """Import the modules (by the names of their tools) in which a client's tools register themselves."""
    for tool, module in (modules or {}).items():
        try:
            importlib.import_module(module)
        except ImportError as error:
            # A client lists all tools that it knows; an agent that uses this one is refused later.
            log.warning("The module of the tool %s cannot be imported: %s", tool, error)


def register_agents(given: Any) -> None:
    """Register a client's sub-agents by their names."""
    for each in given or ():
        definition = decode(AgentDefinition, "agent_definitions", each)
        try:
            factory = agent_definition_to_factory(definition)
        except ValueError as error:
            # A client lists all that it knows, including one whose skill is not on this machine.
            log.warning("The sub-agent %s is left out: %s", definition.name, error)
            continue
        register_agent_if_absent(name=definition.name, factory_func=factory, description=definition)


def has_browser() -> bool:
    """Whether there is a browser that the browser tools can drive."""
    known = json.loads(KNOWN.read_bytes())["browsers"]
    cache = Path.home() / PLAYWRIGHT
    return any(shutil.which(name) for name in known["programs"]) or any(
        any(cache.glob(pattern)) for pattern in known["cached"]
    )


def read(given: Mapping[str, Any], name: str) -> Any:
    """Return one of `TYPES`, or a list of them for one of `LISTS`; None where there is none."""
    value = given.get(name)
    if name in LISTS:
        return [decode(LISTS[name], name, each) for each in value] if value else None
    return None if value is None else decode(TYPES[name], name, value)


def check(given: Mapping[str, Any]) -> None:
    """Refuse bad values before anything is written."""
    for name in ("confirmation_policy", "security_analyzer", "llm"):
        read(given, name)


def secrets_of(given: Any) -> dict[str, SecretValue]:
    """Return secrets by name: texts, or sources in the SDK's form."""
    if not isinstance(given, Mapping):
        return {}
    return {
        str(name): decode(SecretSource, f"secrets.{name}", each)
        if isinstance(each, Mapping)
        else StaticSecret(value=SecretStr(str(each)))
        for name, each in given.items()
    }


def secrets_in(value: Any) -> set[str]:
    """Return the secrets in the SDK's objects, and the texts of a mapping of secrets by their names."""
    if isinstance(value, SecretStr):
        return {value.get_secret_value()}
    if isinstance(value, StaticSecret):
        return {value.get_value() or ""}
    if isinstance(value, BaseModel):
        return secrets_in([getattr(value, name, None) for name in type(value).model_fields])
    if isinstance(value, Mapping):
        return secrets_in(list(value.values()))
    if isinstance(value, list | tuple):
        return set().union(*map(secrets_in, value))
    return set()


def message_of(given: Any, prompt: list[Any]) -> Message:
    """Return the user's message as the client wrote it; without one, the text of the prompt's blocks."""
    if isinstance(given, Mapping):
        return decode(Message, "message", {**given, "role": "user"})
    content: list[TextContent | ImageContent] = []
    for block in prompt:
        if not isinstance(block, Mapping):
            continue
        if block.get("type") == "text":
            content.append(TextContent(text=str(block.get("text", ""))))
        elif block.get("type") == "image":
            content.append(
                ImageContent(image_urls=[f"data:{block.get('mimeType')};base64,{block.get('data')}"])
            )
        else:
            resource = block.get("resource") or block
            text = f"\n{resource['text']}" if isinstance(resource.get("text"), str) else ""
            content.append(TextContent(text=f"[{block.get('type')}] {resource.get('uri')}{text}"))
    return Message(role="user", content=content)


def _server(server: Mapping[str, Any]) -> dict[str, Any]:
    pairs = {
        name: {each["name"]: each["value"] for each in server.get(name) or ()} for name in ("env", "headers")
    }
    more = ((server.get("_meta") or {}).get("ostler")) or {}
    if "command" in server:
        return {"command": server["command"], "args": server.get("args") or [], "env": pairs["env"], **more}
    transport = "sse" if server.get("type") == "sse" else "http"
    return {"url": server["url"], "transport": transport, "headers": pairs["headers"], **more}


def decode(model: Any, name: str, given: Any) -> Any:
    """Return a value in one of the SDK's types; `name` is for the message. Raises RpcError."""
    try:
        return TypeAdapter(model).validate_python(given)
    except ValidationError as error:
        where = [".".join(map(str, (name, *flaw["loc"]))) + ": " + flaw["msg"] for flaw in error.errors()]
        raise RpcError(INVALID_PARAMS, "; ".join(where[:5])) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # Validators also raise these on values of unexpected types.
        raise RpcError(INVALID_PARAMS, f"{name}: {error}") from error
