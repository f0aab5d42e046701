"""The events for an agent's text: messages, thoughts, the answer at the end of a turn. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import orjson

from supervisor.conversations.recording.bounds.attachments import Attachment
from supervisor.conversations.recording.bounds.truncation import Clipped
from supervisor.conversations.recording.effects import Recorded
from supervisor.events import (
    ActionEvent,
    FinishAction,
    FinishObservation,
    ImageContent,
    Message,
    MessageEvent,
    MessageToolCall,
    ObservationEvent,
    TextContent,
    ThinkAction,
    ThinkObservation,
)

ARGUMENT_BYTES: Final = 256 * 1024
"""The most bytes of an answer that its finish event repeats as arguments of a tool call.

They are JSON within JSON, and few clients read them.
"""

ONLY_THOUGHTS: Final = "The agent thought, and said nothing then."
"""The text of an event that holds only thoughts."""

BY_OSTLER: Final = "Answered by Ostler"
"""The summary of such an answer."""

NO_ANSWER: Final = "No answer"
"""The summary of a finish event that says that the agent gave none."""

Mint = Callable[[], str]
"""Gives a new id."""


def message_of(
    item_id: str, text: Clipped, thoughts: Clipped, response: Mint, pictures: Sequence[str] = ()
) -> Recorded:
    """A message, with the thoughts that led to it, and the addresses of its pictures. `response` gives the id
    of the model's response."""
    content = (TextContent(text=text.value),) if text.value else ()
    shown = (ImageContent(image_urls=tuple(pictures)),) if pictures else ()
    return Recorded(
        MessageEvent(
            id=item_id,
            source="agent",
            llm_message=Message(
                role="assistant",
                content=(*content, *shown),
                reasoning_content=thoughts.value or None,
            ),
            llm_response_id=response(),
        ),
        (*text.attachments, *thoughts.attachments),
    )


def thoughts_alone(item_id: str, thoughts: Clipped, response: Mint, mint: Mint) -> list[Recorded]:
    """The event for thoughts without a following message. A message would not do: without text, clients show
    it as blank."""
    action = ThinkAction(thought=ONLY_THOUGHTS)
    arguments = orjson.dumps({"thought": action.thought}).decode()
    shown = ThinkObservation(content=(TextContent(text=ONLY_THOUGHTS),))
    return _call("think", item_id, action, arguments, shown, thoughts, (), response, mint)


def finish_of(
    item_id: str, text: Clipped, thoughts: Clipped, response: Mint, mint: Mint, note: str | None
) -> list[Recorded]:
    """The answer that ends a turn. `note`: its summary, where there is one."""
    action = FinishAction(message=text.value)
    arguments = _finish_arguments(text.value)
    shown = FinishObservation(content=(TextContent(text=text.value),))
    return _call(
        "finish", item_id, action, arguments, shown, thoughts, text.attachments, response, mint, note
    )


def _call(
    name: str,
    item_id: str,
    action: ThinkAction | FinishAction,
    arguments: str,
    shown: ThinkObservation | FinishObservation,
    thoughts: Clipped,
    attachments: tuple[Attachment, ...],
    response: Mint,
    mint: Mint,
    note: str | None = None,
) -> list[Recorded]:
    """The two events of a call of this tool, which is in truth what the agent said."""
    call_id = mint()
    return [
        Recorded(
            ActionEvent(
                id=item_id,
                thought=(),
                reasoning_content=thoughts.value or None,
                action=action,
                tool_name=name,
                tool_call_id=call_id,
                tool_call=MessageToolCall(id=call_id, name=name, arguments=arguments, origin="completion"),
                llm_response_id=response(),
                summary=note,
            ),
            (*attachments, *thoughts.attachments),
        ),
        Recorded(
            ObservationEvent(
                id=mint(), tool_name=name, tool_call_id=call_id, action_id=item_id, observation=shown
            )
        ),
    ]


def _finish_arguments(message: str) -> str:
    """What a finish event carries as the arguments of its tool call."""
    raw = message.encode("utf-8", "surrogatepass")
    if len(raw) > ARGUMENT_BYTES:
        shown = raw[:ARGUMENT_BYTES].decode("utf-8", "ignore")
        message = f"{shown}\n[... the rest is in the message of this event ...]"
    return orjson.dumps({"message": message}).decode()
