"""One prompt turn: what it sends, how it is cancelled, how it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from scripted_agent import shapes
from scripted_agent.wire import RpcError

TYPE_CHECKING = False  # as typing has it, which takes its time to import
if TYPE_CHECKING:
    from typing import Any

    from scripted_agent.agent import Agent
    from scripted_agent.sessions import Session

CRASH_AFTER_CHUNKS = 3
EARLY_SECONDS = 8.0  # in which a turn that has begun slowly hears a cancel


class TurnEndError(Exception):
    """The turn ends here; the message is its stop reason."""


class Inbox:
    """What is said during a turn, until it closes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._texts: list[str] = []
        self._closed = False

    def put(self, text: str, then: Callable[[], None]) -> bool:
        """False when it is closed."""
        with self._changed:
            if self._closed:
                return False
            then()
            self._texts.append(text)
            self._changed.notify_all()
            return True

    def next(self, seconds: float) -> str | None:
        with self._changed:
            self._changed.wait_for(lambda: self._texts, seconds)
            return self._texts.pop(0) if self._texts else None

    def next_or_close(self) -> str | None:
        with self._changed:
            self._closed = not self._texts
            return None if self._closed else self._texts.pop(0)

    def close(self) -> None:
        with self._changed:
            self._closed = True


class Turn:
    """Sends the updates of one prompt and remembers what it said."""

    def __init__(self, agent: Agent, session: Session, text: str, script: str) -> None:
        self.agent, self.session, self.script = agent, session, script
        self.modes = agent.modes
        self.said = ""
        self.stop: str | None = None
        self.on_cancel = self.modes.text("cancel", "obey")
        self.usage: dict[str, int] | None = None
        self.late: list[Callable[[], None]] = []
        self.open_call: str | None = None
        self.status = "finished"
        self.inbox = Inbox()
        self.on_message: Callable[[], bool] = lambda: True
        self.listens = threading.Event()
        self._chunks = 0
        self._cancelled = threading.Event()
        self._forced = False
        self._record = {"user": text, "agent": "", "stop": None}
        session.turns.append(self._record)
        agent.store.save(session)

    def run(self, perform: Callable[[Turn], None]) -> None:
        try:
            if self.on_cancel.startswith("early") and "slowly" in self.script:
                self._begin_slowly()
            perform(self)
            self.checkpoint()
            while (more := self.inbox.next_or_close()) is not None:
                self.script = more
                perform(self)
                self.checkpoint()
            if "usage" in self.modes:
                self.report_usage(100 * len(self.session.turns), 200_000, 0.25)
            self.stop = "end_turn"
        except TurnEndError as stopped:
            self.stop = str(stopped)
        finally:
            self.inbox.close()
            self._record.update(agent=self.said[:10_000], stop=self.stop)
            self.agent.store.save(self.session)

    def answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = {"stopReason": self.stop}
        if self.usage:
            answer["usage"] = self.usage
        if "tells" in self.modes:
            answer["_meta"] = {"ostler": {"status": self.status}}
        return answer

    def after(self) -> None:
        for action in self.late:
            action()

    def take(self, message_id: str, message: dict[str, Any]) -> bool:
        """Take a message that comes during the turn. False if there is no time for it any more."""
        text = "\n".join(part.get("text", "") for part in message["content"])
        params = {"sessionId": self.session.id, "message_id": message_id}
        return self.on_message() and self.inbox.put(
            text, lambda: self.agent.wire.notify("_ostler/received", params)
        )

    def _begin_slowly(self) -> None:
        """Say that the turn runs before it does: what is cancelled until then is forgotten."""
        self.update({"sessionUpdate": "session_info_update", "title": "running"})
        time.sleep(0.2)
        self._cancelled.clear()
        self.say("begun ")
        self._cancelled.wait(EARLY_SECONDS)

    # -- cancelling
    def cancel(self, force: bool = False) -> None:
        self._forced = force
        self._cancelled.set()

    def checkpoint(self) -> None:
        """Ends the turn when it was cancelled and means to obey."""
        if not self._cancelled.is_set():
            return
        how, _, value = self.on_cancel.partition(":")
        if self._forced or how in ("obey", "early"):
            raise TurnEndError("cancelled")
        if how == "late":
            time.sleep(float(value or 1))
            self.say("still here ")
            raise TurnEndError("cancelled")
        if how == "error":
            raise RpcError(-32603, "The operation was aborted", {"details": "AbortError"})
        if how == "end_turn":
            raise TurnEndError("end_turn")
        if how == "crash":
            self.agent.crash(value)

    def pause(self, seconds: float) -> None:
        """Sleep, but not through a cancel that is obeyed."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._cancelled.is_set():
                self.checkpoint()
                time.sleep(left)
            else:
                self._cancelled.wait(left)
        self.checkpoint()

    # -- sending
    def update(self, update: Any) -> None:
        self.agent.update(self.session.id, update)

    def say(self, text: str, message_id: str | None = None) -> None:
        if self.agent.hub is not None:
            self.agent.hub.need(self.session.id)
        self.said += text
        self.update(shapes.chunk("agent_message_chunk", text, message_id))
        self._chunks += 1
        if self._chunks == CRASH_AFTER_CHUNKS:
            self.agent.crash_at("turn")

    def think(self, text: str) -> None:
        self.update(shapes.chunk("agent_thought_chunk", text))

    def report_usage(self, used: int, size: int, cost: float) -> None:
        self.session.cost += cost
        self.usage = {"inputTokens": used - 20, "outputTokens": 20, "totalTokens": used}
        self.update(shapes.usage(used, size, round(self.session.cost, 6)))

    def new_tool_id(self) -> str:
        if "same-ids" in self.modes:
            return "call_1"
        self.session.tool_calls += 1
        return f"call_{self.session.tool_calls}"

    def start_tool(self, kind: str, title: str, raw_input: Any) -> str:
        call = self.new_tool_id()
        self.update(
            {
                "sessionUpdate": "tool_call",
                "toolCallId": call,
                "title": title,
                "kind": kind,
                "status": "pending",
                "rawInput": raw_input,
                "locations": [{"path": f"{self.session.cwd}/notes.txt", "line": 3}],
            }
        )
        return call

    def update_tool(self, call: str, status: str, output: str | None = None) -> None:
        update: dict[str, Any] = {"sessionUpdate": "tool_call_update", "toolCallId": call, "status": status}
        if output is not None:
            update["content"] = [{"type": "content", "content": shapes.text_block(output)}]
            update["rawOutput"] = {"output": output}
        self.update(update)

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        """A request to the client. It waits for the answer even when the turn is cancelled."""
        return self.agent.wire.finish(self.begin_ask(method, params))

    def begin_ask(self, method: str, params: dict[str, Any]) -> Any:
        return self.agent.wire.begin(method, {"sessionId": self.session.id, **params})

    def permission_params(
        self, call: str, title: str, kinds: list[str], kind: str = "execute"
    ) -> dict[str, Any]:
        return {
            "toolCall": {"toolCallId": call, "title": title, "kind": kind, "status": "pending"},
            "options": shapes.permission_options(kinds),
        }

    def allowed(self, answer: Any) -> bool:
        """Whether a permission answer selects an allowing option; a cancelled one ends a cancelled turn."""
        outcome = (answer or {}).get("outcome") or {}
        self.agent.log.write("permission", outcome=outcome)
        if outcome.get("outcome") == "cancelled":
            self._cancelled.wait(1)
            self.checkpoint()
            return False
        return str(outcome.get("optionId", "")).startswith("opt-allow")
