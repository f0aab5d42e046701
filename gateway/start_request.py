"""The body of `POST /api/conversations`: decoded, its profile and its secrets looked up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import attrs
import orjson
import trio

from gateway.bodies import read_analyzer, read_message, read_policy, read_title
from gateway.reading import Invalid, Reader
from gateway.secret_sources import resolve_secrets
from gateway.services import Services
from supervisor.conversations.state.start import MAX_ITERATIONS_DEFAULT, StartRequest
from supervisor.credentials import Cipher, NotDecryptable
from supervisor.events import ErrorDetail, Vocabulary
from supervisor.settings import (
    AgentSettings,
    SettingsError,
    confirmation_policy,
    decode_acp_agent,
    decode_agent_settings,
    security_analyzer,
    unseal,
)

NAMING: Final = ("agent", "agent_settings", "agent_profile_id")
"""The properties that name an agent; without any of them the settings do."""

ECHOED: Final = ("agent_definitions", "client_tools", "hook_config", "plugins", "tool_module_qualnames")
"""What is kept only for clients to read again."""

MAX_ECHOED_BYTES: Final = 256 * 1024
"""Most of each of these, bytes of JSON: the definitions of a hundred tools. They are part of every look at
the conversation."""

MAX_PATH_CHARACTERS: Final = 4096
"""Longest path of a workspace: what the kernel takes."""


async def read_start_request(body: Any, services: Services, own_origins: Collection[str]) -> StartRequest:
    """The request, with the agent that it names, or none when it leaves the choice to the settings.

    `own_origins` are the addresses under which the client knows this server: secrets looked up there come
    from our own store. Raises Invalid, and UnknownProfile for an unknown `agent_profile_id`. Properties
    that are not known are ignored.
    """
    if isinstance(body, dict) and body.get("secrets_encrypted") is True:
        # In a thread: the first decryption loads a large library.
        body = await trio.to_thread.run_sync(_decrypted, body, services.secrets.cipher)
    reader = Reader(body, ("body",))
    named = [key for key in NAMING if reader.has(key)]
    if "agent_profile_id" in named and len(named) > 1:
        msg = "Value error, agent_profile_id and another agent cannot both be given"
        reader.wrong(("agent_profile_id",), msg, "value_error")
    reader.flag("secrets_encrypted")
    profile_id = reader.uuid("agent_profile_id")
    agent = _spelled_out(reader, services)
    settings = await services.settings.get()
    if agent is not None:
        # By name, the request's MCP servers go before those of the settings.
        servers = settings.agent_settings.get("mcp_config") or {}
        agent = attrs.evolve(agent, mcp_config={**servers, **agent.mcp_config})
    defaults = {} if named else settings.conversation_settings
    fields = _fields(reader, defaults)
    secrets: dict[str, str] = {}
    try:
        secrets = await resolve_secrets(reader.mapping("secrets") or {}, services.secrets, own_origins)
    except Invalid as error:
        reader.problems.note(*error.problems)
    reader.finish()
    if profile_id is not None:
        profile = await services.profiles.by_id(profile_id)
        agent = await services.profiles.launch_settings(profile_id)
        if profile.mcp_server_refs is not None:
            fields["mcp_only"] = profile.mcp_server_refs
        fields["launched_agent_profile"] = {
            "agent_profile_id": profile.id,
            "revision": profile.revision,
            "secret_refs": None if profile.secret_refs is None else list(profile.secret_refs),
            "llm_profile_ref": None,
        }
    return StartRequest(agent=agent, spelled_out=bool(named), secrets=secrets, **fields)


def _fields(reader: Reader, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What needs no looking up. `defaults` are the conversation settings where those count: clients that name
    an agent have read them and say what they want of them."""
    vocabulary = reader.choice("event_vocabulary", [each.value for each in Vocabulary], "")
    message = reader.mapping("initial_message")
    policy = reader.mapping("confirmation_policy")
    fields = {
        "conversation_id": reader.uuid("conversation_id"),
        "working_dir": _working_dir(reader),
        "event_vocabulary": Vocabulary(vocabulary) if vocabulary else None,
        "initial_message": message and read_message(reader.below("initial_message", message)),
        "security_analyzer": read_analyzer(reader),
        "max_iterations": reader.integer(
            "max_iterations", defaults.get("max_iterations", MAX_ITERATIONS_DEFAULT), minimum=1
        ),
        "stuck_detection": reader.flag("stuck_detection", True),
        "tags": reader.tags("tags") or {},
        "title": read_title(reader),
        "autotitle": reader.flag("autotitle", True),
        "parent_conversation_id": reader.uuid("parent_conversation_id"),
        "extra": _echoed(reader),
    }
    if policy is not None:
        fields["confirmation_policy"] = read_policy(reader.below("confirmation_policy", policy))
    elif defaults:
        fields["confirmation_policy"] = confirmation_policy(defaults)
        if not reader.has("security_analyzer"):
            fields["security_analyzer"] = security_analyzer(defaults)
    return fields


def _spelled_out(reader: Reader, services: Services) -> AgentSettings | None:
    """The agent that the request itself describes; `agent` goes before `agent_settings`."""
    rules = services.settings.rules
    try:
        if reader.has("agent"):
            return decode_acp_agent(reader.obj["agent"], rules.presets, check_server=rules.check_server)
        if reader.has("agent_settings"):
            settings = reader.obj["agent_settings"]
            return decode_agent_settings(settings, rules.presets, check_server=rules.check_server)
    except SettingsError as error:
        reader.problems.note(*error.errors)
    return None


def _decrypted(body: Mapping[str, Any], cipher: Cipher) -> dict[str, Any]:
    """The body with every secret in clear text that we had shown encrypted. Raises Invalid."""
    opened = dict(body)
    for key in ("agent", "agent_settings", "secrets"):
        found = body.get(key)
        if not isinstance(found, Mapping):
            continue
        try:
            if key == "secrets":
                # Secrets of a request have the shape of those in an agent's context.
                opened[key] = unseal({"agent_context": {key: found}}, cipher)["agent_context"][key]
            else:
                opened[key] = unseal(found, cipher)
        except NotDecryptable:
            msg = "Value error, a secret was not encrypted by this server"
            raise Invalid(ErrorDetail(("body", key), msg, "value_error")) from None
    return opened


def _echoed(reader: Reader) -> dict[str, Any]:
    """What is kept for clients to read back, as it is."""
    found = {key: reader.obj[key] for key in ECHOED if reader.has(key)}
    for key, value in found.items():
        if len(orjson.dumps(value)) > MAX_ECHOED_BYTES:
            reader.wrong((key,), f"Input should have at most {MAX_ECHOED_BYTES} bytes of JSON", "too_long")
    return found


def _working_dir(reader: Reader) -> str:
    workspace = reader.mapping("workspace", required=True)
    if workspace is None:
        return ""
    inner = reader.below("workspace", workspace)
    inner.choice("kind", ("LocalWorkspace",), "LocalWorkspace")
    working_dir = (
        inner.string("working_dir", required=True, min_length=1, max_length=MAX_PATH_CHARACTERS) or ""
    )
    if "\0" in working_dir:
        inner.wrong(("working_dir",), "Value error, a path holds no NUL character", "value_error")
    return working_dir
