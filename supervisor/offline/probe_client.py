"""The client for a probed agent: it records the agent's messages, and permits only one harmless command."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Final

import trio

from supervisor.acp import (
    AgentMessageChunk,
    AgentThoughtChunk,
    Oversize,
    Repeats,
    RpcError,
    Services,
    ToolCall,
    ToolCallUpdate,
    parse_permission,
    parse_update,
)
from supervisor.acp.permission_answers import allow, reject

NO_SHELL: Final = ("read", "edit", "delete", "move", "search", "fetch", "think", "switch_mode")
"""Kinds of tool calls that run no command, even if they quote it from the prompt."""

ENDED: Final = ("completed", "failed")
"""Statuses of a tool call that is over."""


class ProbeClient:
    """The connection's `Handler`. Serves the client methods that the descriptor offers; of the permissions it
    grants those whose call names `harmless`."""

    def __init__(self) -> None:
        self.services: Services | None = None
        self.harmless: str | None = None
        self.refused: list[str] = []
        self.permissions: list[str] = []
        self.calls = self.results = ""
        self.others: set[str] = set()
        self.open: dict[str, str] = {}
        """The updates of each open call, as text."""
        self.updates: list[str] = []
        self.said = ""
        self.non_protocol_lines = 0
        self.speaking = trio.Event()
        """Set at the turn's first output. An adapter may report a start before its agent runs; the agent then
        loses a cancel."""
        self.unreadable = 0

    def notification(self, method: str, params: Any) -> None:
        """An update."""
        if method != "session/update" or not isinstance(params, Mapping):
            return
        update = params.get("update")
        if not isinstance(update, Mapping):
            self.unreadable += 1
            return
        self.updates.append(str(update.get("sessionUpdate")))
        _, parsed = parse_update(params)
        if isinstance(parsed, AgentMessageChunk):
            self.said += parsed.text or ""
        elif isinstance(parsed, ToolCall | ToolCallUpdate):
            if parsed.kind in NO_SHELL:
                self.others.add(parsed.tool_call_id)
            if parsed.tool_call_id not in self.others:
                self.calls += json.dumps(parsed.raw)
            self.results += json.dumps([parsed.raw.get("content"), parsed.raw.get("rawOutput")])
            said = self.open.pop(parsed.tool_call_id, "")
            if parsed.status not in ENDED:
                self.open[parsed.tool_call_id] = said + json.dumps(parsed.raw)
        if isinstance(parsed, AgentMessageChunk | AgentThoughtChunk | ToolCall | ToolCallUpdate):
            self.speaking.set()

    def flush(self) -> None:
        """Nothing waits."""

    def request(self, method: str, params: Any) -> Awaitable[Any]:
        """A question."""
        return self._answer(method, params)

    async def _answer(self, method: str, params: Any) -> Any:
        if method == "session/request_permission":
            return self._permit(params)
        if self.services is None or not self.services.serves(method):
            self.refused.append(method)
            raise RpcError.method_not_found(method)
        answer = await self.services.handle(method, params)
        if method == "terminal/output":
            self.results += json.dumps(answer)
        return answer

    def _permit(self, params: Any) -> Any:
        request = parse_permission(params)
        kinds = ", ".join(f"{option.option_id}: {option.kind}" for option in request.options)
        self.permissions.append(kinds or "no options")
        call = request.tool_call
        other = call.kind in NO_SHELL or call.tool_call_id in self.others
        if self.harmless is not None and not other and self._is_about(self.harmless, params, call):
            return allow(request.options) or reject(request.options)
        return reject(request.options)

    def _is_about(self, command: str, params: Any, call: ToolCall | ToolCallUpdate) -> bool:
        """Whether a request names the command; or has no details, and every open call names it: some agents
        ask once for all calls of an answer, under a separate id."""
        if command in json.dumps(params):
            return True
        if (
            call.tool_call_id in self.open
            or not self.open
            or call.raw.get("rawInput")
            or call.raw.get("content")
        ):
            return False
        return not self.others.intersection(self.open) and all(command in said for said in self.open.values())

    def non_protocol_output(self, line: bytes) -> None:
        """A line that is not a message."""
        self.non_protocol_lines += 1

    def oversize(self, frame: Oversize) -> None:
        """A message that is too large."""
        self.unreadable += 1

    def prepare(self, method: str, params: Any) -> Sequence[Any]:
        """Large messages come as they are."""
        return [params]

    def repeated(self, counted: Repeats) -> None:
        """Count more of the kinds that are not reported one by one."""
        if counted.what == "noise":
            self.non_protocol_lines += counted.count
        else:
            self.unreadable += counted.count

    async def backpressure(self) -> None:
        """More can always be taken."""
