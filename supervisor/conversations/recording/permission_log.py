"""Permission requests and their answers, in the journal and in the state of a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, Literal

import attrs

from supervisor.acp.schema import NAME_CHARS, PermissionOption, cut
from supervisor.conversations.recording.bounds.truncation import dump, shortened
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.state.record import ConversationRecord
from supervisor.events import ConversationStateUpdateEvent, SecurityRisk, new_event_id
from supervisor.journal.errors import JournalError

KEY: Final = "permission_request"
"""The key of the state events: one when a request waits, one when it is answered."""

STATE: Final = "permissions"
"""The member of `agent_state` that has the requests that wait, and the last ones that were answered."""

ANSWERED_MAX: Final = 10
"""Answered requests in the state; the journal has all."""

STATE_BYTES: Final = 64 * 1024
"""Bytes of JSON that the requests may take in the state, which is sent as a whole after each run. Beyond it
the options of the newest ones are left out there; the journal has them."""

INPUT_BYTES: Final = 8 * 1024
"""Bytes of JSON, about, of what a request is about; a person reads no more before an answer."""

INPUT_MEMBERS: Final = 32
"""Its members that are shown, if it has more bytes than that."""

By = Literal["policy", "person", "hook", "cancel"]
"""Who answered. `cancel`: the turn ended or was cancelled, or the agent took its request back."""


_LEFT_OUT: Final = ("input", "tool_call_ids")
"""Members that an entry lacks where they are empty."""


@attrs.define(eq=False)
class PermissionEntry:
    """One request as clients see it, masked. `options` are those of the agent, in its order. `input`: what it
    is about, where that is in no event (`shown_input`)."""

    id: str
    tool_call_id: str
    action_id: str | None
    title: str
    tool_kind: str | None
    security_risk: SecurityRisk
    options: Sequence[Mapping[str, str]]
    input: Any = attrs.field(default=None, repr=False)
    status: Literal["waiting", "allowed", "rejected", "cancelled"] = "waiting"
    by: By | None = None
    option_id: str | None = None
    reason: str | None = None
    tool_call_ids: Sequence[str] = ()

    def value(self) -> dict[str, Any]:
        """The entry as JSON."""
        value = attrs.asdict(self, recurse=False)
        return {name: each for name, each in value.items() if each or name not in _LEFT_OUT}

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> PermissionEntry:
        """The entry of a stored record."""
        fields = {name: each for name, each in value.items() if name in cls.__annotations__}
        return cls(**{**fields, "security_risk": SecurityRisk(value["security_risk"])})


def shown_options(options: Iterable[PermissionOption], recorder: Recorder) -> list[dict[str, str]]:
    """The options of a request, masked."""
    shown: list[dict[str, str]] = recorder.mask.value(
        [{"id": option.option_id, "name": option.name, "kind": option.kind} for option in options]
    )
    return shown


def shown_input(value: Any) -> Any:
    """What a request is about, in at most about `INPUT_BYTES`. Each long text loses its middle, so that none
    hides the others."""
    if not value or len(dump(value)) <= INPUT_BYTES:
        return value or None
    members = value if isinstance(value, Mapping) else {"value": value}
    share = INPUT_BYTES // min(len(members), INPUT_MEMBERS)
    return {
        cut(str(name), NAME_CHARS): _clipped(each, share)
        for name, each in islice(members.items(), INPUT_MEMBERS)
    }


def _clipped(value: Any, limit: int) -> Any:
    body = value.encode("utf-8", "replace") if isinstance(value, str) else dump(value)
    if len(body) <= limit:
        return value
    return shortened(body, limit, "the agent has the whole")


class PermissionLog:
    """Records the permission requests of one conversation. Methods raise JournalError."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._record = recorder.record

    def waits(self, entry: PermissionEntry) -> None:
        """Record a request that waits for a person, in the state, too, so that it survives a reload."""
        self._put([entry])
        self._recorder.write([self._event(entry)])

    def answered(self, entries: Sequence[PermissionEntry]) -> None:
        """Record the answers of waiting requests."""
        if entries:
            self._put(entries)
            self._recorder.write([self._event(entry) for entry in entries])

    def answered_at_once(self, entry: PermissionEntry) -> None:
        """Record a request that was answered without waiting. The record is stored with its next change."""
        self._put([entry])
        self._recorder.relay([self._event(entry)])
        self._recorder.unsaved = True

    def given_up(self, entry: PermissionEntry) -> None:
        """As `answered`, but suppresses JournalError."""
        with suppress(JournalError):
            self.answered([entry])

    def _event(self, entry: PermissionEntry) -> ConversationStateUpdateEvent:
        return self._recorder.state(KEY, entry.value())

    def _put(self, entries: Sequence[PermissionEntry]) -> None:
        changed = {entry.id: entry.value() for entry in entries}
        before = [changed.pop(each["id"], each) for each in self._record.reported.agent_state.get(STATE, ())]
        self._record.reported.agent_state[STATE] = _within_bounds([*before, *changed.values()])


def _within_bounds(entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    answered = [each for each in entries if each["status"] != "waiting"]
    left_out = {each["id"] for each in answered[:-ANSWERED_MAX]}
    kept: list[Mapping[str, Any]] = []
    left = STATE_BYTES
    for each in entries:
        if each["id"] in left_out:
            continue
        if each["status"] != "waiting":
            each = {name: value for name, value in each.items() if name != "input"}
        left -= len(dump(each))
        if left < 0:
            each = {name: value for name, value in each.items() if name != "input"}
            each |= {"options": [], "options_cut": len(each["options"])}
        kept.append(each)
    return kept


def cut_off(record: ConversationRecord) -> list[ConversationStateUpdateEvent]:
    """Note in the record that the requests that waited when an earlier server died were given up. Returns the
    events for that."""
    events = []
    entries = []
    for each in record.reported.agent_state.get(STATE, ()):
        if each["status"] == "waiting":
            each = {**each, "status": "cancelled", "by": "cancel", "reason": "The server stopped."}
            events.append(ConversationStateUpdateEvent(id=new_event_id(), key=KEY, value=each))
        entries.append(each)
    if events:
        record.reported.agent_state[STATE] = _within_bounds(entries)
    return events


def allowed_calls(record: ConversationRecord) -> frozenset[str]:
    """The ids of the calls that were allowed, as far as the record has them."""
    return _calls(record, "allowed")


def waiting_calls(record: ConversationRecord) -> frozenset[str]:
    """The ids of the calls that a person is asked about, as far as the record has them."""
    return _calls(record, "waiting")


def _calls(record: ConversationRecord, status: str) -> frozenset[str]:
    found = [each for each in record.reported.agent_state.get(STATE, ()) if each["status"] == status]
    return frozenset(
        str(call) for each in found for call in each.get("tool_call_ids") or (each["tool_call_id"],)
    )
