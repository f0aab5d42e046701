"""The server's settings as one value, and how a change makes another of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs

from supervisor.reading.model import Errors, Location, said
from supervisor.reading.shapes import as_json
from supervisor.settings.agent import (
    ACP,
    CUSTOM,
    DEFAULT_SERVER,
    NO_BOUNDS,
    NO_PRESETS,
    OPENHANDS,
    AgentSettings,
    LimitBounds,
    Presets,
    ServerCheck,
    agent_settings_to_dict,
    decode_agent_settings,
    read_kind,
)
from supervisor.settings.conversation import DEFAULTS as CONVERSATION_DEFAULTS
from supervisor.settings.conversation import decode_conversation_settings
from supervisor.settings.errors import SettingsEmpty, SettingsError, problem, read, refuse
from supervisor.settings.exposure import (
    Cipher,
    Expose,
    StorageCipher,
    erase_placeholders,
    expose_secrets,
    seal,
    unseal,
)
from supervisor.settings.llm import has_key
from supervisor.settings.merge import MAX_DEPTH, merge_fields, merge_patch, too_deep
from supervisor.settings.names import ProfileId, ProfileName, Setting
from supervisor.settings.openhands import decode_openhands_settings, openhands_from_stored
from supervisor.settings.profiles.meta_profile import with_renamed_model
from supervisor.settings.wire_aliases import server_on_wire, settings_on_wire
from supervisor.stored import structure

#: The agent of a new server: it needs no key and no network, so the first conversation just works.
FIRST_SERVER: Final = "demo"


@attrs.frozen
class Rules:
    """What validation of settings needs: the presets, the mcp room's check of a server entry, and the
    operator's limits of agents."""

    presets: Presets
    check_server: ServerCheck
    bounds: LimitBounds = NO_BOUNDS


@attrs.frozen
class SettingsDocument:
    """Everything that can be set, as JSON objects. May hold credentials, which repr leaves out."""

    agent_settings: Mapping[str, Any] = attrs.field(repr=False)
    conversation_settings: Mapping[str, Any] = attrs.field(repr=False)
    misc_settings: Mapping[str, Any] = attrs.field(repr=False)
    active_profile: str | None = None
    active_agent_profile_id: str | None = None
    active_meta_profile: str | None = None
    left: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    """What was set before another agent was chosen, for a change with `restore`: agent settings by their
    kind, and below `custom` the command of a custom agent. Clients do not see it."""

    def agent(self, presets: Presets) -> AgentSettings:
        """The agent that new conversations get. Raises SettingsError where it cannot be run."""
        return decode_agent_settings(self.agent_settings, presets, loc=("agent_settings",))


def first_document(presets: Presets) -> SettingsDocument:
    """The settings of a server that has not been set up."""
    server = FIRST_SERVER if FIRST_SERVER in presets else DEFAULT_SERVER
    agent = decode_agent_settings({"acp_server": server}, presets, loc=("agent_settings",))
    return SettingsDocument(agent_settings_to_dict(agent), dict(CONVERSATION_DEFAULTS), {})


def shown(
    settings: Mapping[str, Any], expose: Expose, cipher: Cipher | None, presets: Presets
) -> dict[str, Any]:
    """Agent settings as clients get them, secrets shown as `expose` says. Raises EncryptionUnavailable.

    A provider's own command is left out, as it is on the disk. An MCP server that does not say so is enabled.
    """
    found = expose_secrets(settings, expose, cipher)
    servers = found.get("mcp_config")
    if isinstance(servers, Mapping):
        found["mcp_config"] = {name: _switched(server) for name, server in servers.items()}
    # One that clients do not know is a custom one to them, and needs its command.
    server = str(found.get("acp_server", CUSTOM))
    return _without_preset(found, presets) if server_on_wire(server) == server else settings_on_wire(found)


def _switched(server: Any) -> Any:
    return {**server, "enabled": server.get("enabled", True)} if isinstance(server, Mapping) else server


def _without_preset(agent: Mapping[str, Any], presets: Presets) -> dict[str, Any]:
    """The same without a command that is its provider's."""
    if agent.get("agent_kind") != ACP or not agent.get("acp_command"):
        return dict(agent)
    is_preset = tuple(agent["acp_command"]) == presets.get(str(agent.get("acp_server")))
    return {**agent, "acp_command": []} if is_preset else dict(agent)


def public(
    document: SettingsDocument, expose: Expose, cipher: Cipher | None = None, presets: Presets = NO_PRESETS
) -> dict[str, Any]:
    """The document as clients get it, secrets shown as `expose` says. Raises EncryptionUnavailable."""
    llm = document.agent_settings.get("llm")
    return {
        **attrs.asdict(document, recurse=False, filter=lambda field, _: field.name != "left"),
        "agent_settings": shown(document.agent_settings, expose, cipher, presets),
        "llm_api_key_is_set": isinstance(llm, Mapping) and has_key(llm),
    }


DIFFS: Final = ("agent_settings_diff", "conversation_settings_diff", "misc_settings_diff")
POINTERS: Final = ("active_profile", "active_agent_profile_id", "active_meta_profile")


@attrs.frozen(kw_only=True)
class SettingsUpdateRequest(Setting):
    """A change. Null for a diff means none, null for a pointer unsets it."""

    SCHEMA: ClassVar[Mapping[str, Any]] = {
        "anyOf": [
            *({"properties": {name: {"type": "object"}}, "required": [name]} for name in DIFFS),
            *({"required": [name]} for name in POINTERS),
        ]
    }

    agent_settings_diff: Mapping[str, Any] | None = said(
        None, "Merge patch (RFC 7386) of agent_kind, acp_server, acp_model ..."
    )
    conversation_settings_diff: Mapping[str, Any] | None = None
    misc_settings_diff: Mapping[str, Any] | None = None
    active_profile: ProfileName | None = None
    active_agent_profile_id: ProfileId | None = None
    active_meta_profile: ProfileName | None = None
    restore: bool = said(
        False, "Whether another kind of agent, or the custom one, gets what it had before; else the defaults"
    )


def apply_change(document: SettingsDocument, body: object, rules: Rules) -> SettingsDocument:
    """The document after a PATCH body, judged as a whole.

    Raises SettingsError with every error in it (`loc` from `body` on) and SettingsEmpty. That
    `active_agent_profile_id` names a profile is for the caller to see to.
    """
    if too_deep(body):
        raise problem(("body",), f"Value error, nested deeper than {MAX_DEPTH} levels", "value_error")
    change = as_json(read(SettingsUpdateRequest, body, ("body",)))
    assert isinstance(body, Mapping)
    given = {
        key: change[key] for key in change if key in body and (key in POINTERS or change[key] is not None)
    }
    if not given:
        raise SettingsEmpty(f"at least one of {', '.join((*DIFFS, *POINTERS))} must be given")
    errors = Errors()
    changed: dict[str, Any] = {key: given[key] for key in POINTERS if key in given}
    if changed.get("active_agent_profile_id"):
        changed["active_agent_profile_id"] = changed["active_agent_profile_id"].lower()
    if "misc_settings_diff" in given:
        changed["misc_settings"] = merge_patch(document.misc_settings, given["misc_settings_diff"])
    if "agent_settings_diff" in given:
        try:
            before = document.agent_settings
            changed["agent_settings"] = _change_agent(
                before,
                given["agent_settings_diff"],
                rules,
                document.left if change.get("restore") else None,
            )
            changed["left"] = _left(document.left, before, changed["agent_settings"], rules.presets)
            if changed["agent_settings"]["agent_kind"] != OPENHANDS:
                # Nothing else routes.
                changed["active_meta_profile"] = None
        except SettingsError as error:
            errors.note(error.errors)
    if "conversation_settings_diff" in given:
        merged = merge_fields(document.conversation_settings, given["conversation_settings_diff"])
        try:
            changed["conversation_settings"] = decode_conversation_settings(
                merged, ("body", "conversation_settings_diff")
            )
        except SettingsError as error:
            errors.note(error.errors)
    refuse(errors)
    return attrs.evolve(document, **changed)


def _left(
    left: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any], presets: Presets
) -> dict[str, Any]:
    """What is remembered once these settings have followed those."""
    found = dict(left)
    if before.get("agent_kind") != after["agent_kind"]:
        found[str(before.get("agent_kind", ACP))] = _without_preset(before, presets)
    command = before.get("acp_command")
    if command and tuple(command) not in presets.values() and command != after.get("acp_command"):
        found[CUSTOM] = list(command)
    return found


def _change_agent(
    current: Mapping[str, Any], diff: Mapping[str, Any], rules: Rules, left: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The agent settings after a diff. `left`: what to restore, None for the defaults."""
    loc: Location = ("body", "agent_settings_diff")
    old_kind = current.get("agent_kind", ACP)
    new_kind = old_kind
    if "agent_kind" in diff:
        new_kind = ACP if diff["agent_kind"] is None else read_kind(diff, loc)
    known = current if new_kind == old_kind else (left or {}).get(new_kind, {})
    merged = merge_patch(known, diff)
    merged = erase_placeholders({**merged, "agent_kind": new_kind})
    if new_kind == OPENHANDS:
        return decode_openhands_settings(merged, loc, rules.check_server)
    if (diff.get("acp_command") or diff.get("acp_server")) and not diff.get("acp_url"):
        # Another agent was chosen.
        merged.pop("acp_url", None)
    # Of provider and command, the one that was not mentioned follows the one that was.
    if diff.get("acp_command"):
        if "acp_server" not in diff:
            merged.pop("acp_server", None)
    elif "acp_server" in diff:
        custom = merged.get("acp_server") == CUSTOM
        if left is None:
            # Its client saw `custom`, even if the catalogue has a name for it.
            stays = custom and server_on_wire(str(current.get("acp_server"))) == CUSTOM
        else:
            command = tuple(known.get("acp_command") or ())
            own = () if command in rules.presets.values() else command
            merged["acp_command"] = list(own or left.get(CUSTOM, ()))
            stays = custom
        if not stays:
            merged.pop("acp_command", None)
    settings = decode_agent_settings(
        merged, rules.presets, loc=loc, check_server=rules.check_server, bounds=rules.bounds
    )
    return agent_settings_to_dict(settings)


def with_llm(document: SettingsDocument, llm: Mapping[str, Any]) -> SettingsDocument:
    """The document whose built-in agent has this model; that of an ACP agent as it is."""
    if document.agent_settings.get("agent_kind") != OPENHANDS:
        return document
    return attrs.evolve(document, agent_settings={**document.agent_settings, "llm": llm})


def with_meta_profile(
    document: SettingsDocument, name: str | None, meta_profile: Mapping[str, Any] | None
) -> SettingsDocument:
    """The document with this meta-profile as the active one; None for an ACP agent, which routes nothing."""
    if document.agent_settings.get("agent_kind") != OPENHANDS:
        return attrs.evolve(document, active_meta_profile=None)
    routing = {
        "active_meta_profile": name,
        "enable_classify_and_switch_llm_tool": name is not None,
        "meta_profile": meta_profile,
    }
    return attrs.evolve(
        document, active_meta_profile=name, agent_settings={**document.agent_settings, **routing}
    )


def with_renamed_llm_profile(document: SettingsDocument, name: str, new_name: str | None) -> SettingsDocument:
    """The document after an LLM profile got another name, or was deleted (None). What names it follows."""
    active = new_name if document.active_profile == name else document.active_profile
    agent = dict(document.agent_settings)
    if new_name is not None:
        if isinstance(agent.get("meta_profile"), Mapping):
            agent["meta_profile"] = with_renamed_model(agent["meta_profile"], name, new_name)
        if agent.get("meta_profile_llms"):
            agent["meta_profile_llms"] = {
                new_name if key == name else key: llm for key, llm in agent["meta_profile_llms"].items()
            }
    return attrs.evolve(document, active_profile=active, agent_settings=agent)


#: Schema version of the settings file.
FORMAT_VERSION: Final = 1


def to_stored(
    document: SettingsDocument, presets: Presets, cipher: StorageCipher | None = None
) -> dict[str, Any]:
    """The document for the disk, its secrets encrypted if there is a cipher. Raises what the cipher raises.

    A preset's command is left out: a later release pins a newer one, and the user chose only the provider.
    """
    agent = _without_preset(document.agent_settings, presets)
    return {
        **attrs.asdict(document, recurse=False),
        "version": FORMAT_VERSION,
        "agent_settings": agent if cipher is None else seal(agent, cipher),
        "left": {
            key: value if cipher is None or key == CUSTOM else seal(value, cipher)
            for key, value in document.left.items()
        },
    }


def from_stored(obj: Any, presets: Presets, cipher: StorageCipher | None = None) -> SettingsDocument:
    """The document from the disk. Raises ValueError for an invalid one, and what the cipher raises."""
    document = structure(SettingsDocument, obj, FORMAT_VERSION)
    agent = dict(document.agent_settings)
    if cipher is not None:
        agent = unseal(agent, cipher)
    if agent.get("agent_kind") == ACP and not agent.get("acp_command"):
        agent["acp_command"] = list(presets.get(str(agent.get("acp_server")), ()))
    if agent.get("agent_kind") == OPENHANDS:
        agent = openhands_from_stored(agent)
    left = dict(document.left)
    if cipher is not None:
        left = {key: value if key == CUSTOM else unseal(value, cipher) for key, value in left.items()}
    return attrs.evolve(document, agent_settings=agent, left=left)
