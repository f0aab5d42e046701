"""A step while the model still writes it: text, thoughts, and the arguments of its calls.

The SDK streams text and thoughts of an item that becomes the answer, or the action of the first call. Here
the arguments are streamed, too: of the first call in that item, of each other call in a separate one. Each
item has the id of the event that it becomes. One that becomes none is aborted, and so are the other calls of
an attempt that is abandoned.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any, Literal

from openhands.sdk.agent import Agent
from openhands.sdk.agent import agent as agent_module
from openhands.sdk.agent.stream_context import StreamContext, StreamDelta
from openhands.sdk.llm import LLM, _response_stream

ARGUMENTS = "arguments"
"""The kind of these deltas, besides the SDK's own `text` and `reasoning`."""

GIVEN_UP = "retry"
"""Why the items of calls are aborted when the model is asked again."""

log = logging.getLogger(__name__)

_step: ContextVar[Step | None] = ContextVar("step", default=None)
"""The running step: the SDK asks its model on the task of the step."""


@dataclass(frozen=True)
class ArgumentsDelta(StreamDelta):
    """A piece of a call's arguments: JSON, as the model writes it."""

    tool_call_id: str | None = None
    tool_name: str | None = None


class Item(StreamContext):
    """A streamed item that becomes one event."""

    call_id: str | None = None
    tool_name: str | None = None

    def argue(self, piece: str) -> None:
        """Send a piece of the arguments."""
        kind: Any = ARGUMENTS
        self._emit_delta(kind, piece, None, None)

    def _emit_content(self, kind: Any, content: str, chunk_id: str | None, choice_index: int | None) -> None:
        if kind != ARGUMENTS:
            super()._emit_content(kind, content, chunk_id, choice_index)
            return
        self._emit(
            ArgumentsDelta(
                self.item_id,
                self._attempt,
                next(self._order),
                kind,
                content,
                tool_call_id=self.call_id,
                tool_name=self.tool_name,
            )
        )


class Step(Item):
    """The item of a step's first event, and those of its other calls."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._calls: dict[Any, Item] = {}
        """By their index in the model's answer; the first is this item."""
        self._others: list[Item] = []
        self._named: dict[str, tuple[str | None, str | None]] = {}
        self._thinks = False
        self._token: Token[Step | None] | None = None

    def __enter__(self) -> Step:
        self._token = _step.set(self)
        return self

    def __exit__(self, exc_type: Any, exc: Any, tb: Any) -> Literal[False]:
        if self._token is not None:
            _step.reset(self._token)
        return super().__exit__(exc_type, exc, tb)

    def on_chunk(self, chunk: Any) -> None:
        """Stream the content of a chunk of the model's answer."""
        super().on_chunk(chunk)
        if self._on_stream is not None and not isinstance(chunk, str):
            self._safely(self._on_calls, chunk)

    def on_response(self, event: Any) -> None:
        """Handle an event of the Responses API, of which the SDK makes no chunks for calls."""
        if not self._reserved:  # otherwise the event answers a tool of this step that asks a model
            self._safely(self._on_response, event)

    def new_attempt(self) -> None:
        """Note that the model is asked, for the first time or again."""
        if self._started:
            super().new_attempt()
        self._thinks = False
        for item in self._others:
            item.close(GIVEN_UP)
        self._others.clear()
        self._calls.clear()
        self._named.clear()
        self.call_id = self.tool_name = None

    def item_of(self, call_id: str) -> Item | None:
        """The item of a call that is not the first."""
        return next((item for item in self._others if item.call_id == call_id), None)

    def close(self, reason: str) -> None:
        """Abort items that have not become events."""
        super().close(reason)
        for item in self._others:
            item.close(reason)

    def _emit_delta(self, kind: Any, text: str, chunk_id: str | None, choice_index: int | None) -> None:
        # The SDK streams a summary of thoughts as text; skip it, since it was streamed as thoughts. Chunk ids
        # are dropped: some providers give each chunk a different one.
        if not (self._thinks and kind == "text"):
            super()._emit_delta(kind, text, None, choice_index)

    def _on_calls(self, chunk: Any) -> None:
        for choice in chunk.choices or ():
            for call in getattr(choice.delta, "tool_calls", None) or ():
                function = _member(call, "function")
                place = (choice.index, _member(call, "index"))
                said = _member(function, "name"), _member(function, "arguments")
                self._on_call(place, _member(call, "id"), *said)

    def _on_call(self, place: Any, call_id: Any, name: Any, piece: Any) -> None:
        item = self._calls.get(place)
        if item is None:
            item = self._calls[place] = self if not self._calls else self._other()
        item.call_id = call_id or item.call_id
        item.tool_name = name or item.tool_name
        if isinstance(piece, str) and piece:
            item.argue(piece)

    def _other(self) -> Item:
        item = Item(str(uuid.uuid4()), self._anchor_seq, None, self._on_stream, self._mask)
        self._others.append(item)
        return item

    def _on_response(self, event: Any) -> None:
        # All events, including those that the SDK does not pass on.
        kind = str(getattr(getattr(event, "type", ""), "value", getattr(event, "type", "")))
        self._thinks = kind == "response.reasoning_summary_text.delta"
        if kind == "response.created":
            self.new_attempt()
        elif self._thinks:
            self._emit_delta("reasoning", str(_member(event, "delta") or ""), None, None)
        elif kind == "response.output_item.added":
            item = _member(event, "item")
            if _member(item, "type") == "function_call":
                self._named[str(_member(item, "id"))] = (_member(item, "call_id"), _member(item, "name"))
        elif kind == "response.function_call_arguments.delta":
            place = str(_member(event, "item_id"))
            self._on_call(place, *self._named.get(place, (None, None)), _member(event, "delta"))

    def _safely(self, hear: Callable[[Any], None], what: Any) -> None:
        if self._on_stream is None:
            return
        try:
            hear(what)
        except Exception:
            # Streaming is best effort: a turn does not fail over it.
            log.debug("a piece is not reported", exc_info=True)


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def _note_attempt(named: dict[str, Any]) -> None:
    step = _step.get()
    if step is not None and named.get("on_token") is not None:
        step.new_attempt()


def install() -> None:
    """Make the SDK's agents use `Step`, and pass it the events that it needs."""
    agent_module.StreamContext = Step  # type: ignore[misc]
    make, hear = Agent._get_action_event, _response_stream._response_event
    ask, ask_soon = LLM._transport_call, LLM._atransport_call

    def make_action(self: Any, tool_call: Any, *arguments: Any, stream: Any = None, **named: Any) -> Any:
        step = _step.get()
        if stream is None and step is not None:
            stream = step.item_of(tool_call.id)
        return make(self, tool_call, *arguments, stream=stream, **named)

    def asked(self: Any, **named: Any) -> Any:
        _note_attempt(named)
        return ask(self, **named)

    async def asked_soon(self: Any, **named: Any) -> Any:
        _note_attempt(named)
        return await ask_soon(self, **named)

    def heard(event: object) -> Any:
        step = _step.get()
        if step is not None:
            step.on_response(event)
        return hear(event)

    Agent._get_action_event = make_action  # type: ignore[method-assign]
    LLM._transport_call = asked  # type: ignore[method-assign]
    LLM._atransport_call = asked_soon  # type: ignore[method-assign]
    _response_stream._response_event = heard
