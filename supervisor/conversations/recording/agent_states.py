"""The states that an agent reports: plans, commands, options, and unknown updates. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

import attrs
import orjson

from supervisor.acp import schema
from supervisor.acp.schema import bounded
from supervisor.conversations.recording.bounds.attachments import Originals
from supervisor.conversations.recording.bounds.truncation import PAYLOAD_BYTES, Clipped, clip_payload, dump
from supervisor.conversations.recording.effects import STATE, UNDATED, Effect, Recorded, Title, Usage

STATES_BYTES: Final = 16 * 1024 * 1024
"""The most bytes of states in one turn: plans, commands, options, and unknown updates.

What exceeds it is dropped and counted, and reported at the end of the turn.
"""

META: Final = "acp_meta"
"""The state key for an update's `_meta`, for kinds whose state does not include it."""

META_BYTES: Final = 16 * 1024
"""About the most bytes of that."""


@attrs.define(eq=False)
class AgentStates:
    """Removes repeated states (by a digest of each), and bounds a turn's states."""

    _mint: Callable[[], str]
    _originals: Originals
    _digests: dict[str, bytes] = attrs.field(factory=dict)
    _recorded: int = 0
    _dropped: int = 0

    def take(self, update: schema.Update) -> list[Effect]:
        """Translate an update that is neither a message nor a tool call."""
        effects: list[Effect] = []
        match update:
            case schema.UsageUpdate():
                effects.append(Usage(update.used, update.size, update.cost, update.currency))
            case schema.SessionInfo():
                if update.title:
                    effects.append(Title(update.title))
                if update.updated_at is not None:
                    effects += self.note(
                        "session_info", {"title": update.title, "updatedAt": update.updated_at}
                    )
            case schema.Plan():
                effects += self.note("plan", update.raw.get("entries"))
            case schema.AvailableCommands():
                effects += self.note("available_commands", update.raw.get("availableCommands"))
            case schema.CurrentMode():
                effects += self.note("current_mode", update.mode_id)
            case schema.ConfigOptionsUpdate():
                effects += self.note("config_options", update.raw.get("configOptions"))
            case _:
                # Kinds that this version does not know are kept as they came.
                return [*self.note("acp_update", update.raw, always=True)]
        meta = update.raw.get("_meta")
        if meta:
            kind = update.raw.get("sessionUpdate")
            value = {"update": kind, "_meta": bounded(meta, META_BYTES)}
            effects += self.note(f"{META}:{kind}", value, name=META)
        return effects

    def note(self, key: str, value: Any, *, always: bool = False, name: str | None = None) -> list[Recorded]:
        """The event of a state, unless it is unchanged (and not `always`), or the turn's limit is reached.
        `name`: the event's key, if it differs from the `key` for the comparison."""
        if self._recorded > STATES_BYTES:
            self._dropped += 1
            return []
        encoded = dump(value)
        if not always:
            sorted_ = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS)
            digest = hashlib.blake2b(sorted_, digest_size=16).digest()
            if self._digests.get(key) == digest:
                return []
            self._digests[key] = digest
        self._recorded += min(len(encoded), PAYLOAD_BYTES)
        event_id = self._mint()
        clipped = Clipped(orjson.Fragment(encoded))
        if len(encoded) > PAYLOAD_BYTES:
            clipped = clip_payload(value, f"{event_id}-value", PAYLOAD_BYTES, self._originals)
        body = {
            "id": event_id,
            "timestamp": UNDATED,
            "source": "environment",
            "key": name or key,
            "value": clipped.value,
            "kind": STATE,
        }
        return [Recorded(None, clipped.attachments, body)]

    def end_turn(self) -> list[Recorded]:
        """Reset the limit. Returns an event that reports what was dropped, if anything was."""
        self._recorded = 0
        if not self._dropped:
            return []
        dropped, self._dropped = self._dropped, 0
        words = f"{dropped} updates were dropped: they exceed {STATES_BYTES} bytes in one turn"
        return self.note("updates_dropped", words, always=True)
