"""The server's settings as one value, and how a change makes another of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from supervisor.reading import ErrorDetail
from supervisor.settings import fields
from supervisor.settings.agent import (
    ACP,
    CUSTOM,
    DEFAULT_SERVER,
    OPENHANDS,
    SCHEMA_VERSION,
    AgentSettings,
    Presets,
    agent_settings_to_dict,
    decode_agent_settings,
    read_kind,
)
from supervisor.settings.conversation import DEFAULTS as CONVERSATION_DEFAULTS
from supervisor.settings.conversation import decode_conversation_settings
from supervisor.settings.errors import Location, SettingsEmpty, SettingsError, problem
from supervisor.settings.exposure import (
    Cipher,
    Expose,
    StorageCipher,
    erase_placeholders,
    expose_secrets,
    seal,
    unseal,
)
from supervisor.settings.fields import Check, ServerCheck
from supervisor.settings.merge import MAX_DEPTH, merge_fields, merge_patch, too_deep
from supervisor.settings.names import profile_name, uuid_string

#: The agent of a new server: it needs no key and no network, so the first conversation just works.
FIRST_SERVER: Final = "demo"

#: What a stored document of the built-in agent has at least. It can be kept, not run.
OPENHANDS_DEFAULTS: Final[Mapping[str, Any]] = {
    "schema_version": SCHEMA_VERSION,
    "agent_kind": OPENHANDS,
    "agent": "CodeActAgent",
    "llm": {},
    "tools": None,
    "mcp_config": {},
    "agent_context": {},
    "tool_concurrency_limit": 1,
}


@attrs.frozen
class Rules:
    """What is needed to judge settings: the presets, and how the mcp room checks a server entry."""

    presets: Presets
    check_server: ServerCheck


@attrs.frozen
class SettingsDocument:
    """Everything that can be set, as JSON objects. May hold credentials, which repr leaves out."""

    agent_settings: Mapping[str, Any] = attrs.field(repr=False)
    conversation_settings: Mapping[str, Any] = attrs.field(repr=False)
    misc_settings: Mapping[str, Any] = attrs.field(repr=False)
    active_profile: str | None = None
    active_agent_profile_id: str | None = None
    active_meta_profile: str | None = None

    def agent(self, presets: Presets) -> AgentSettings:
        """The agent that new conversations get. Raises SettingsError where it cannot be run."""
        return decode_agent_settings(self.agent_settings, presets, loc=("agent_settings",))


def first_document(presets: Presets) -> SettingsDocument:
    """The settings of a server that nobody has set up."""
    server = FIRST_SERVER if FIRST_SERVER in presets else DEFAULT_SERVER
    agent = decode_agent_settings({"acp_server": server}, presets, loc=("agent_settings",))
    return SettingsDocument(agent_settings_to_dict(agent), dict(CONVERSATION_DEFAULTS), {})


def public(document: SettingsDocument, expose: Expose, cipher: Cipher | None = None) -> dict[str, Any]:
    """The document as clients get it, secrets shown as ``expose`` says. Raises EncryptionUnavailable."""
    llm = document.agent_settings.get("llm")
    return {
        **attrs.asdict(document, recurse=False),
        "agent_settings": expose_secrets(document.agent_settings, expose, cipher),
        "llm_api_key_is_set": isinstance(llm, Mapping) and bool(llm.get("api_key")),
    }


DIFFS: Final = ("agent_settings_diff", "conversation_settings_diff", "misc_settings_diff")
POINTERS: Final = ("active_profile", "active_agent_profile_id", "active_meta_profile")

#: The keys of a change; null for a diff means none, null for a pointer unsets it. Others are ignored.
_BODY_CHECKS: Final[Mapping[str, Check]] = {
    **dict.fromkeys(DIFFS, fields.nullable(fields.mapping)),
    "active_profile": fields.nullable(profile_name),
    "active_agent_profile_id": fields.nullable(uuid_string),
    "active_meta_profile": fields.nullable(profile_name),
}


def apply_change(document: SettingsDocument, body: object, rules: Rules) -> SettingsDocument:
    """The document after a PATCH body, judged as a whole.

    Raises SettingsError with every error in it (``loc`` from ``body`` on) and SettingsEmpty. That
    ``active_agent_profile_id`` names a profile is for the caller to see to.
    """
    if too_deep(body):
        raise problem(("body",), f"Value error, nested deeper than {MAX_DEPTH} levels", "value_error")
    given = fields.read(body, ("body",), _BODY_CHECKS)
    given = {key: value for key, value in given.items() if key in POINTERS or value is not None}
    if not given:
        raise SettingsEmpty(f"at least one of {', '.join((*DIFFS, *POINTERS))} must be given")
    errors: list[ErrorDetail] = []
    changed: dict[str, Any] = {key: given[key] for key in POINTERS if key in given}
    if changed.get("active_agent_profile_id"):
        changed["active_agent_profile_id"] = changed["active_agent_profile_id"].lower()
    if "misc_settings_diff" in given:
        changed["misc_settings"] = merge_patch(document.misc_settings, given["misc_settings_diff"])
    if "agent_settings_diff" in given:
        try:
            changed["agent_settings"] = _change_agent(
                document.agent_settings, given["agent_settings_diff"], rules
            )
        except SettingsError as error:
            errors += error.errors
    if "conversation_settings_diff" in given:
        merged = merge_fields(document.conversation_settings, given["conversation_settings_diff"])
        try:
            changed["conversation_settings"] = decode_conversation_settings(
                merged, ("body", "conversation_settings_diff")
            )
        except SettingsError as error:
            errors += error.errors
    if errors:
        raise SettingsError(tuple(errors))
    return attrs.evolve(document, **changed)


def _change_agent(current: Mapping[str, Any], diff: Mapping[str, Any], rules: Rules) -> dict[str, Any]:
    loc: Location = ("body", "agent_settings_diff")
    old_kind = current.get("agent_kind", ACP)
    new_kind = old_kind
    if "agent_kind" in diff:
        new_kind = ACP if diff["agent_kind"] is None else read_kind(diff, loc)
    merged = merge_patch(current if new_kind == old_kind else {}, diff)
    merged = erase_placeholders({**merged, "agent_kind": new_kind})
    if new_kind == OPENHANDS:
        return _check_openhands({**OPENHANDS_DEFAULTS, **merged}, loc, rules)
    # Of provider and command, the one that was not mentioned follows the one that was.
    if diff.get("acp_command"):
        if "acp_server" not in diff:
            merged.pop("acp_server", None)
    elif "acp_server" in diff and not current.get("acp_server") == merged.get("acp_server") == CUSTOM:
        merged.pop("acp_command", None)
    settings = decode_agent_settings(merged, rules.presets, loc=loc, check_server=rules.check_server)
    return agent_settings_to_dict(settings)


def _check_openhands(merged: dict[str, Any], loc: Location, rules: Rules) -> dict[str, Any]:
    """Only what this server itself reads is checked; the rest is the client's."""
    checks: dict[str, Check] = {
        "schema_version": fields.at_least(1),
        "llm": fields.mapping,
        "agent_context": fields.mapping,
        "mcp_config": fields.entries(rules.check_server),
    }
    fields.read(merged, loc, checks)
    return merged


#: Of the layout of the stored document.
FORMAT_VERSION: Final = 1


def to_stored(
    document: SettingsDocument, presets: Presets, cipher: StorageCipher | None = None
) -> dict[str, Any]:
    """The document for the disk, its secrets encrypted where there is a cipher. Raises what that raises.

    A preset's command is left out: a later release pins a newer one, and the choice was the provider.
    """
    agent = dict(document.agent_settings)
    if agent.get("agent_kind") == ACP and tuple(agent.get("acp_command") or ()) == presets.get(
        str(agent.get("acp_server"))
    ):
        agent["acp_command"] = []
    return {
        **attrs.asdict(document, recurse=False),
        "version": FORMAT_VERSION,
        "agent_settings": agent if cipher is None else seal(agent, cipher),
    }


def from_stored(obj: Any, presets: Presets, cipher: StorageCipher | None = None) -> SettingsDocument:
    """The document from the disk. Raises SettingsError or a ValueError naming what is wrong with it, and what
    the cipher raises."""
    given = fields.read(obj, (), _STORED_CHECKS, required=_STORED_CHECKS)
    if given.pop("version") != FORMAT_VERSION:
        raise ValueError("it was written by another version of Ostler")
    agent = dict(given["agent_settings"])
    if cipher is not None:
        agent = unseal(agent, cipher)
    if agent.get("agent_kind") == ACP and not agent.get("acp_command"):
        agent["acp_command"] = list(presets.get(str(agent.get("acp_server")), ()))
    return SettingsDocument(**{**given, "agent_settings": agent})


_STORED_CHECKS: Final[Mapping[str, Check]] = {
    "version": fields.at_least(1),
    "agent_settings": fields.mapping,
    "conversation_settings": fields.mapping,
    "misc_settings": fields.mapping,
    **dict.fromkeys(POINTERS, fields.nullable(fields.string)),
}
