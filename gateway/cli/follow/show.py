"""The frames of a session socket as lines for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from gateway.cli.text import clean, cut, one_line, without_codes

PAYLOAD_CHARS: Final = 300
"""Characters shown of a tool's input and output: enough to recognize it."""

STATES: Final = {"execution_status": "status", "agent_phase": "agent", "title": "title"}
"""State updates that are shown, with their labels; the others are for programs."""

NAME_COLUMNS: Final = 8


class Streamed:
    """The streamed text of one item, each part returned once. `said` has it by kind: `text`, `reasoning`.

    A server repeats an item from its start to a client that reconnects, and to one that fell far behind.
    """

    def __init__(self) -> None:
        self.said: dict[str, str] = {"text": "", "reasoning": ""}
        self._at = {"text": 0, "reasoning": 0}
        """Offset of the next piece, since the item began or was last repeated."""
        self._order = -1
        self._broken = False
        """A repetition differs from the text returned before: the rest is printed when the message is
        complete."""

    def begin(self) -> None:
        """The item begins, or is repeated from its start."""
        self._at = {"text": 0, "reasoning": 0}
        self._order = -1

    def take(self, kind: str, content: str, order: object) -> str:
        """Take the next piece. Returns its part that was not returned before."""
        if isinstance(order, int):
            if order <= self._order:
                return ""
            self._order = order
        said, at = self.said[kind], self._at[kind]
        again = said[at : at + len(content)]
        self._at[kind] += len(content)
        self._broken = self._broken or not content.startswith(again)
        fresh = "" if self._broken else content[len(again) :]
        if fresh:
            self.said[kind] = said + fresh
        return fresh


class Screen:
    """Prints frames in order. Streamed text is printed as it arrives, and not again when it is complete."""

    def __init__(self) -> None:
        self._streamed: dict[str, str] = {}
        """Kind of the last piece of each event to be."""
        self._texts: dict[str, Streamed] = {}
        self._open = False
        """Whether the last line has not ended."""

    def show(self, frame: Mapping[str, Any]) -> None:
        """Print a frame, if there is anything in it for people."""
        match frame:
            case {"type": "item_started", "item_id": str(item)}:
                self._texts.setdefault(item, Streamed()).begin()
            case {
                "type": "delta",
                "item_id": str(item),
                "kind": ("text" | "reasoning") as kind,
                "content": str(content),
            }:
                fresh = self._texts.setdefault(item, Streamed()).take(kind, content, frame.get("order"))
                if not fresh:
                    return
                if self._streamed.get(item) != kind:
                    self._line("thinks" if kind == "reasoning" else "says", "", end="")
                    self._streamed[item] = kind
                print(clean(fresh), end="", flush=True)
                self._open = True
            case {"type": "item_aborted", "item_id": str(item)}:
                self._texts.pop(item, None)
                if self._streamed.pop(item, None) is not None:
                    self._end_line()
            case {"type": "durable", "event": dict(event)}:
                self._texts.pop(str(event.get("id")), None)
                if event.get("id") in self._streamed:
                    del self._streamed[event["id"]]
                    self._end_line()
                else:
                    for name, text in described(event):
                        self._line(name, text, event.get("timestamp"))
            case {"type": "error", "detail": str(detail)}:
                self._line("error", without_codes(detail))

    def _line(self, name: str, text: str, timestamp: str | None = None, end: str = "\n") -> None:
        self._end_line()
        moment = datetime.fromisoformat(timestamp).astimezone() if timestamp else datetime.now().astimezone()
        print(f"{moment:%H:%M:%S} {name:>{NAME_COLUMNS}}  {clean(text)}", end=end, flush=True)

    def _end_line(self) -> None:
        if self._open:
            print()
            self._open = False


def described(event: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What an event says, as pairs of a short name and a text; nothing for those that only programs need."""
    match event:
        case {"kind": "MessageEvent", "source": source, "llm_message": message}:
            name = {"agent": "says", "environment": "note"}.get(source, source)
            text = without_codes(_text(message)) if name == "note" else _text(message)
            found = [("thinks", message.get("reasoning_content") or ""), (name, text)]
            return [(name, text) for name, text in found if text]
        case {"kind": "ActionEvent", "action": {"kind": "FinishAction", "message": message}}:
            return [("says", message)]
        case {"kind": "ActionEvent", "tool_name": tool}:
            data = (event.get("action") or {}).get("data")
            return [("tool", _payload(f"{event.get('summary') or tool} {json.dumps(data) if data else ''}"))]
        case {"kind": "ACPToolCallEvent", "title": title, "status": status}:
            return [("tool", f"{one_line(title)}: {status}")]
        case {"kind": "ConversationStateUpdateEvent", "key": str(key), "value": value}:
            return [(STATES[key], str(value))] if key in STATES else []
        case {"kind": "ConversationErrorEvent", "code": code, "detail": detail}:
            return [("error", without_codes(str(detail)) or str(code))]
        case {"kind": "ObservationEvent", "observation": {"kind": "FinishObservation"}}:
            return []  # says what the agent's answer said
        case {"kind": "ObservationEvent", "observation": {"content": list(content)}}:
            return [("result", _payload(_text({"content": content})))]
        case {"kind": "UserRejectObservation", "rejection_reason": reason}:
            return [("refused", str(reason))]
        case {"kind": "AgentErrorEvent", "error": error}:
            return [("failed", without_codes(str(error)))]
        case {"kind": "SystemPromptEvent"}:
            return []
        case {"kind": kind, "detail": str(detail)}:
            return [("event", f"{kind}: {without_codes(detail)}")]
        case {"kind": kind}:
            return [("event", str(kind))]
    return []


def _text(message: Mapping[str, Any]) -> str:
    return "".join(part.get("text") or "" for part in message.get("content", ()))


def _payload(text: str) -> str:
    return cut(one_line(text), PAYLOAD_CHARS)
