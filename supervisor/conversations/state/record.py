"""The record of a conversation: its state apart from its events, stored next to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, Final

import attrs
import orjson

from supervisor import stored
from supervisor.conversations.state.start import MAX_ITERATIONS_DEFAULT, never_confirm
from supervisor.conversations.state.state import State
from supervisor.conversations.state.status import ExecutionStatus
from supervisor.events import Vocabulary
from supervisor.events.payload import dumps
from supervisor.settings.agent import AgentSettings, agent_settings_from_dict, agent_settings_to_dict
from supervisor.settings.built_in import hidden_within

RECORD_VERSION: Final = 1
"""Version of the stored record's layout; a reader refuses a newer one."""


ANALYZER: Final = "security_analyzer"

PARTS: Final = (ANALYZER, "agent_definitions", "agent_launch_additions", "plugins")
"""Members of a start request that may hold secrets in a form that only the built-in agent's SDK knows,
besides the agent itself and `secrets`."""


class RecordTooNew(Exception):
    """A newer Ostler wrote the stored record."""


@attrs.frozen(kw_only=True)
class Start:
    """What a conversation got when it was started or forked, for good.

    `preset_command`: the agent's command is the catalogue's, not one of the user's own, and follows later
    versions of the catalogue.
    `launched_agent_profile`: the profile as it was at the launch; its `secret_refs` bind the conversation.
    `mcp_only`: the MCP servers that an agent profile allows; None allows all.
    `forked_from_...`: the conversation that it is a copy of, and the last event of the copy.
    `disk`: where the workspace is, among several servers (`machines.disks`).
    """

    created_at: str
    working_dir: str
    vocabulary: Vocabulary
    preset_command: bool = False
    max_iterations: int = MAX_ITERATIONS_DEFAULT
    stuck_detection: bool = True
    parent_conversation_id: str | None = None
    launched_agent_profile: dict[str, Any] | None = None
    mcp_only: list[str] | None = None
    forked_from_conversation_id: str | None = None
    forked_from_event_id: str | None = None
    disk: str | None = None


@attrs.define(kw_only=True)
class Reported:
    """What the agent last reported.

    `agent_state`: the part that clients see under this name.
    `models_cut`: `models` are not all that the agent offers.
    `hands_over`: another process can take up a fork of its session.
    `options_refused`: by name (model, mode), the values that it refused and that clients know of.
    `native_states`: by key, the last states of the built-in agent (docs/built-in-agent.md).
    `native_messages`: ids of the last messages in a user's role that the built-in agent wrote itself.
    """

    agent_state: dict[str, Any] = attrs.field(factory=dict)
    usage: dict[str, Any] = attrs.field(factory=dict)
    models: list[dict[str, Any]] | None = None
    models_cut: bool = False
    current_model: str | None = None
    can_switch_model: bool = False
    hands_over: bool = False
    options_refused: dict[str, str] = attrs.field(factory=dict)
    native_states: dict[str, Any] = attrs.field(factory=dict)
    native_messages: list[str] = attrs.field(factory=list)


@attrs.define(kw_only=True)
class ConversationRecord:
    """The durable state of one conversation: what its start fixed, what it is now, what the agent reported,
    and what clients can change.

    `parts`: by name, what of the start request holds secrets (see `PARTS`), encrypted. At rest its own field
    has placeholders for them; in a record that was loaded, until `SecretBox.open_parts`.

    `secrets`: encrypted values by name. `lookups`: by name, where a secret is fetched from at each start,
    encrypted (`SecretBox.seal_lookups`). `blob_bytes`: the bytes of attachments so far. `hooks_running`: the
    hooks that run now, by the ids of the events that will report how they ended.

    `moves`: see `state.branch`. `goal`: see `turns.goal`. `started`: those of the `children` that its agent
    started; deleted ones are taken out when room is needed. `heedless`: its agent did, or tried to do, what
    was rejected; `pardoned`: it has heeded a no since, once. `options`: by id those that clients set besides
    model and mode; each session gets them.
    """

    id: str
    updated_at: str
    agent: AgentSettings
    start: Start
    now: State = attrs.field(factory=State)
    reported: Reported = attrs.field(factory=Reported)
    title: str | None = None
    autotitle: bool = True
    tags: dict[str, str] = attrs.field(factory=dict)
    confirmation_policy: dict[str, Any] = attrs.field(factory=never_confirm)
    security_analyzer: dict[str, Any] | None = None
    leaf_event_id: str | None = None
    moves: list[list[int]] = attrs.field(factory=list)
    secrets: dict[str, str] = attrs.field(factory=dict, repr=False)
    lookups: dict[str, dict[str, Any]] = attrs.field(factory=dict, repr=False)
    parts: dict[str, str] = attrs.field(factory=dict, repr=False)
    children: list[str] = attrs.field(factory=list)
    started: list[str] = attrs.field(factory=list)
    extra: dict[str, Any] = attrs.field(factory=dict)
    blob_bytes: int = 0
    hooks_running: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    goal: dict[str, Any] | None = None
    options: dict[str, str | bool] = attrs.field(factory=dict)
    heedless: bool = False
    pardoned: bool = False
    _written: tuple[AgentSettings, dict[str, Any]] | None = attrs.field(
        default=None, init=False, repr=False, eq=False
    )

    @property
    def execution_status(self) -> ExecutionStatus:
        """The present status, by its name for programs (docs/programs.md)."""
        return self.now.execution_status

    @property
    def written_agent(self) -> dict[str, Any]:
        """The agent as JSON, made once for each agent: a turn writes the record several times. What it holds
        of secrets is encrypted. What is below its properties is shared: change nothing there."""
        if self._written is None or self._written[0] is not self.agent:
            self._written = self.agent, agent_settings_to_dict(self.agent)
        return dict(self._written[1])

    @property
    def allowed_secrets(self) -> frozenset[str] | None:
        """Names of the secrets that the agent may have; None: all. Taken from the profile at the launch:
        later changes of the profile apply to later conversations."""
        refs = (self.start.launched_agent_profile or {}).get("secret_refs")
        return None if refs is None else frozenset(refs)

    def allowed(self, secrets: Mapping[str, Any]) -> dict[str, Any]:
        """Of secrets by name those that the agent may have."""
        allowed = self.allowed_secrets
        return {name: value for name, value in secrets.items() if allowed is None or name in allowed}

    def part(self, name: str) -> Any:
        """The analyzer, or what `extra` has under this name."""
        return self.security_analyzer if name == ANALYZER else self.extra.get(name)

    def shown_part(self, name: str) -> Any:
        """The same without its secrets."""
        return hidden_within(self.part(name))

    def keep_part(self, name: str, value: Any, sealed: str | None) -> None:
        """Set it. `sealed`: the same encrypted, if it holds secrets."""
        if name == ANALYZER:
            self.security_analyzer = value
        else:
            self.extra[name] = value
        self.parts.pop(name, None)
        if sealed is not None:
            self.parts[name] = sealed

    def dump(self) -> bytes:
        """The record as stored."""
        fields = dict(zip(_NAMES, _READ(self), strict=True))
        if self.parts:
            fields |= {name: self.shown_part(name) for name in self.parts if name in fields}
            own = {name: self.shown_part(name) for name in self.parts if name in self.extra}
            fields["extra"] = {**self.extra, **own}
        # Some of it comes from agents, which must not be able to make the record unstorable.
        return dumps({"version": RECORD_VERSION, "agent": self.written_agent, **fields})

    @classmethod
    def load(cls, written: bytes) -> ConversationRecord:
        """Read a stored record. Raises RecordTooNew. Fields that an older record lacks get their defaults."""
        fields = orjson.loads(written)
        version = fields.pop("version")
        if version > RECORD_VERSION:
            raise RecordTooNew(
                f"the conversation's record has version {version}, this Ostler knows versions up to "
                f"{RECORD_VERSION}; use the newer Ostler"
            )
        groups = {
            part: {name: fields.pop(kept) for name in names if (kept := _STORED.get(name, name)) in fields}
            for part, names in _GROUPS.items()
        }
        return _reader()({**fields, **groups}, cls)


def _names(kind: type) -> tuple[str, ...]:
    return tuple(attribute.name for attribute in attrs.fields(kind) if attribute.init)


_GROUPS: Final = {"start": _names(Start), "now": _names(State), "reported": _names(Reported)}
"""The stored record has the properties of these without a level of their own."""

_OWN: Final = tuple(name for name in _names(ConversationRecord) if name not in (*_GROUPS, "agent"))

_STORED: Final = {"native_states": "told", "native_messages": "told_messages", "loss_reported": "loss_told"}
"""What the stored record calls properties that have another name here."""

_NAMES: Final = (*_OWN, *(_STORED.get(name, name) for names in _GROUPS.values() for name in names))

_READ: Final = attrgetter(*_OWN, *(f"{part}.{name}" for part, names in _GROUPS.items() for name in names))
"""Reads all of them at once: each turn does so several times."""


@cache
def _reader() -> Callable[[Any, type[ConversationRecord]], ConversationRecord]:
    converter = stored.converter().copy()
    converter.register_structure_hook(AgentSettings, lambda obj, _: agent_settings_from_dict(obj))
    return converter.get_structure_hook(ConversationRecord)
