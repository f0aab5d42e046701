"""Updates made from an agent's events, where its own updates are not kept. Pure.

That is so for conversations of earlier versions, with `OSTLER_KEEP_UPDATES=off`, and for agents that report
their work otherwise. What events lack, such as locations and the order of thoughts and text, stays lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

Update = dict[str, Any]

MESSAGE: Final = "agent_message_chunk"
THOUGHT: Final = "agent_thought_chunk"


def chunk(kind: str, block: Mapping[str, Any]) -> Update:
    """A piece of a message."""
    return {"sessionUpdate": kind, "content": dict(block)}


def ended(call_id: str, status: str, texts: Iterable[str] = ()) -> Update:
    """The end of a tool call."""
    content = [{"type": "content", "content": {"type": "text", "text": each}} for each in texts if each]
    update = {"sessionUpdate": "tool_call_update", "toolCallId": call_id, "status": status}
    return {**update, "content": content} if content else update


def updates(event: Mapping[str, Any]) -> Iterator[Update]:
    """What an event, as JSON, says of the agent's work. Nothing for events of other kinds."""
    make = _BY_KIND.get(event.get("kind", ""))
    return iter(()) if make is None else make(event)


def _text(kind: str, text: Any) -> Iterator[Update]:
    if text and isinstance(text, str):
        yield chunk(kind, {"type": "text", "text": text})


def _message(event: Mapping[str, Any]) -> Iterator[Update]:
    message = event["llm_message"]
    yield from _text(THOUGHT, message.get("reasoning_content"))
    for part in message["content"]:
        yield from _text(MESSAGE, part.get("text"))
        for url in part.get("image_urls") or ():
            yield chunk(MESSAGE, _picture(url))


def _picture(url: str) -> Mapping[str, Any]:
    head, _, data = url.partition(",")
    if not head.startswith("data:"):
        return {"type": "resource_link", "uri": url, "name": url}
    return {"type": "image", "mimeType": head.removeprefix("data:").partition(";")[0], "data": data}


def _action(event: Mapping[str, Any]) -> Iterator[Update]:
    yield from _text(THOUGHT, event.get("reasoning_content"))
    for thought in event["thought"]:
        yield from _text(MESSAGE, thought.get("text"))
    action = event.get("action") or {}
    if action.get("kind") == "FinishAction":
        yield from _text(MESSAGE, action.get("message"))
    elif action.get("kind") == "ThinkAction":
        yield from _text(THOUGHT, action.get("thought"))
    else:
        given = action.get("data") or {name: value for name, value in action.items() if name != "kind"}
        yield {
            "sessionUpdate": "tool_call",
            "toolCallId": event["tool_call_id"],
            "title": event.get("summary") or event["tool_name"],
            "status": "in_progress",
            "rawInput": given,
        }


def _observation(event: Mapping[str, Any]) -> Iterator[Update]:
    observation = event["observation"]
    if observation.get("kind") in ("FinishObservation", "ThinkObservation"):
        return
    texts = [part["text"] for part in observation.get("content") or () if part.get("text")]
    yield ended(event["tool_call_id"], "failed" if observation.get("is_error") else "completed", texts)


def _error(event: Mapping[str, Any]) -> Iterator[Update]:
    yield ended(event["tool_call_id"], "failed", [event.get("error") or event.get("rejection_reason") or ""])


def _call(event: Mapping[str, Any]) -> Iterator[Update]:
    over = event.get("status") in ("completed", "failed")
    more = (
        ("status", event.get("status")),
        ("kind", event.get("tool_kind")),
        ("rawInput", event.get("raw_input")),
        ("rawOutput", event.get("raw_output")),
        ("content", [_camel(each) for each in event.get("content") or ()] or None),
    )
    yield {
        "sessionUpdate": "tool_call_update" if over else "tool_call",
        "toolCallId": event["tool_call_id"],
        "title": event["title"],
        **{name: value for name, value in more if value is not None},
    }


_BY_KIND: Final[Mapping[str, Callable[[Mapping[str, Any]], Iterator[Update]]]] = {
    "ACPToolCallEvent": _call,
    "ActionEvent": _action,
    "AgentErrorEvent": _error,
    "MessageEvent": _message,
    "ObservationEvent": _observation,
    "UserRejectObservation": _error,
}

_NAMES: Final[Mapping[str, str]] = {
    "mime_type": "mimeType",
    "new_text": "newText",
    "old_text": "oldText",
    "terminal_id": "terminalId",
}
"""Members of a block in events, and in ACP."""


def _camel(block: Any) -> Any:
    if not isinstance(block, Mapping):
        return block
    return {_NAMES.get(name, name): _camel(value) for name, value in block.items()}


def output_of(event: Mapping[str, Any]) -> list[str]:
    """The texts of a call's result: of an end event, as JSON."""
    if event["kind"] == "ObservationEvent":
        return [part["text"] for part in event["observation"].get("content") or () if part.get("text")]
    blocks = [each.get("content") for each in event.get("content") or () if isinstance(each, Mapping)]
    return [each["text"] for each in blocks if isinstance(each, Mapping) and each.get("text")]
