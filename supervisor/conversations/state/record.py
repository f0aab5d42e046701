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
from supervisor.conversations.state.status import CutOff, ExecutionStatus
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


@attrs.define(kw_only=True)
class ConversationRecord:
    """The durable state of one conversation.

    `preset_command`: the agent's command is the catalogue's, not one of the user's own, and follows later
    versions of the catalogue.

    `prompted_seq`: the sequence number of the last user message that was handed to the agent (-1: none). The
    messages after it are the queue.

    `turn`: the turn whose end is not recorded yet, by `number` and `message_id` (see
    `recording.turn_states`). `turns`: how many there were.

    `turn_open`: the turn of that message is running. `unfinished`: it did not end well (yet), so that an
    explicit run continues it. `retry_seq`: a message that was handed over without effect, so that an explicit
    run may hand it over once more.

    `parts`: by name, what of the start request holds secrets (see `PARTS`), encrypted. At rest its own field
    has placeholders for them; in a record that was loaded, until `SecretBox.open_parts`.

    `secrets`: encrypted values by name. `lookups`: by name, where a secret is fetched from at each start,
    encrypted (`SecretBox.seal_lookups`). `launched_agent_profile`: the profile as it was at the launch; its
    `secret_refs` bind the conversation for good. `blob_bytes`: the bytes of attachments so far. `mcp_only`:
    the MCP servers that an agent profile allows; None allows all. `hooks_running`: the
    hooks that run now, by the ids of the events that will tell how they ended.

    Of the agent's session: `session_id` (a bearer token: whole in one state, never in logs);
    `session_cwd`, its workspace; `session_opened`, when it was last opened (seconds since the epoch);
    `session_used`, whether the agent did anything in it (else there is nothing to restore);
    `failed_restores`, how often the agent crashed while restoring it; `sessions`, their number; `cut_off`,
    how a turn of it ended with a tool call open, which some agents run when they go on; `hands_over`, whether
    a fork of it can be taken up by another process.

    `memory_lost`: why the agent does not remember the conversation; its session is new then, and gets a
    transcript until it has done anything with it. `loss_told`: clients have been told that.

    `moves`: see `state.branch`. `forked_from_...`: what it is a copy of. `goal`: see `turns.goal`.
    `told`: by key, the last states that the built-in agent told (docs/built-in-agent.md).
    `told_messages`: ids of the last messages in a user's role that it wrote itself. `joined`: ids of the
    messages that it was handed since it said or did something: it may tell them again.
    `asked`: by id, the actions of the built-in agent's step that a person is asked about, each with the
    answer for the agent once there is one. Nothing of them has begun while any waits.
    `started`: those of the `children` that its agent started; deleted ones are taken out when room is needed.
    `heedless`: its agent did, or tried to do, what was rejected.
    `models_cut`: `models` are not all that the agent offers. `options_refused`: by name (model, mode) the
    values that it did not take, and that clients were told of. `options`: by id those that clients set
    besides model and mode; each session gets them.
    """

    id: str
    working_dir: str
    created_at: str
    updated_at: str
    agent: AgentSettings
    vocabulary: Vocabulary
    preset_command: bool = False
    title: str | None = None
    autotitle: bool = True
    tags: dict[str, str] = attrs.field(factory=dict)
    confirmation_policy: dict[str, Any] = attrs.field(factory=never_confirm)
    security_analyzer: dict[str, Any] | None = None
    max_iterations: int = MAX_ITERATIONS_DEFAULT
    stuck_detection: bool = True
    execution_status: ExecutionStatus = ExecutionStatus.IDLE
    last_user_message_id: str | None = None
    leaf_event_id: str | None = None
    prompted_seq: int = -1
    retry_seq: int | None = None
    turns: int = 0
    turn: dict[str, Any] | None = None
    turn_open: bool = False
    unfinished: bool = False
    session_id: str | None = None
    session_cwd: str | None = None
    session_opened: float = 0.0
    session_used: bool = False
    failed_restores: int = 0
    sessions: int = 0
    cut_off: CutOff | None = None
    hands_over: bool = False
    agent_state: dict[str, Any] = attrs.field(factory=dict)
    usage: dict[str, Any] = attrs.field(factory=dict)
    models: list[dict[str, Any]] | None = None
    current_model: str | None = None
    can_switch_model: bool = False
    secrets: dict[str, str] = attrs.field(factory=dict, repr=False)
    lookups: dict[str, dict[str, Any]] = attrs.field(factory=dict, repr=False)
    parts: dict[str, str] = attrs.field(factory=dict, repr=False)
    parent_conversation_id: str | None = None
    children: list[str] = attrs.field(factory=list)
    started: list[str] = attrs.field(factory=list)
    launched_agent_profile: dict[str, Any] | None = None
    mcp_only: list[str] | None = None
    extra: dict[str, Any] = attrs.field(factory=dict)
    blob_bytes: int = 0
    hooks_running: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    memory_lost: str | None = None
    loss_told: bool = False
    moves: list[list[int]] = attrs.field(factory=list)
    forked_from_conversation_id: str | None = None
    forked_from_event_id: str | None = None
    goal: dict[str, Any] | None = None
    models_cut: bool = False
    options_refused: dict[str, str] = attrs.field(factory=dict)
    options: dict[str, str | bool] = attrs.field(factory=dict)
    told: dict[str, Any] = attrs.field(factory=dict)
    told_messages: list[str] = attrs.field(factory=list)
    joined: list[str] = attrs.field(factory=list)
    asked: dict[str, dict[str, Any] | None] = attrs.field(factory=dict)
    heedless: bool = False
    _written: tuple[AgentSettings, dict[str, Any]] | None = attrs.field(
        default=None, init=False, repr=False, eq=False
    )

    @property
    def written_agent(self) -> dict[str, Any]:
        """The agent as JSON, made once for each agent: a turn writes the record several times. What it holds
        of secrets is encrypted. What is below its properties is shared: change nothing there."""
        if self._written is None or self._written[0] is not self.agent:
            self._written = self.agent, agent_settings_to_dict(self.agent)
        return dict(self._written[1])

    @property
    def remembers(self) -> bool:
        """Whether its agent remembers the conversation."""
        return self.session_used and self.memory_lost is None

    @property
    def allowed_secrets(self) -> frozenset[str] | None:
        """Names of the secrets that the agent may have; None: all. Taken from the profile at the launch:
        later changes of the profile apply to later conversations."""
        refs = (self.launched_agent_profile or {}).get("secret_refs")
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
        names, read = _stored_fields()
        fields = dict(zip(names, read(self), strict=True))
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
        return _reader()(fields, cls)


@cache
def _stored_fields() -> tuple[tuple[str, ...], Callable[[ConversationRecord], tuple[Any, ...]]]:
    """The fields that are stored as they are, and what reads all of them at once: each turn does so."""
    names = [each.name for each in attrs.fields(ConversationRecord) if each.init and each.name != "agent"]
    return tuple(names), attrgetter(*names)


@cache
def _reader() -> Callable[[Any, type[ConversationRecord]], ConversationRecord]:
    converter = stored.converter().copy()
    converter.register_structure_hook(AgentSettings, lambda obj, _: agent_settings_from_dict(obj))
    return converter.get_structure_hook(ConversationRecord)
