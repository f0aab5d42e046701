"""Directives of an agent that tells its events itself, as the built-in one does (docs/built-in-agent.md).

Ids of events and of calls are words of the test; what is streamed has the id of the event that it becomes.
"""

from __future__ import annotations

import json
import time

from scripted_agent.directives import directive, perform
from scripted_agent.turn import Turn

TYPE_CHECKING = False  # as typing has it, which takes its time to import
if TYPE_CHECKING:
    from typing import Any

OPTIONS = [
    {"optionId": "accept", "name": "Accept", "kind": "allow_once"},
    {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
]


def tell(turn: Turn, method: str, **fields: Any) -> None:
    turn.agent.wire.notify(f"_ostler/{method}", {"sessionId": turn.session.id, **fields})


def event(turn: Turn, kind: str, event_id: str, source: str, **fields: Any) -> None:
    moment = "2026-01-01T00:00:00.000000"
    tell(turn, "event", event={"kind": kind, "id": event_id, "timestamp": moment, "source": source, **fields})


def action(turn: Turn, event_id: str, command: str, **fields: Any) -> None:
    arguments = {"command": command}
    event(
        turn,
        "ActionEvent",
        event_id,
        "agent",
        thought=[],
        action={"kind": "TerminalAction", **arguments},
        tool_name="terminal",
        tool_call_id=f"call-{event_id}",
        tool_call={
            "id": f"call-{event_id}",
            "name": "terminal",
            "arguments": json.dumps(arguments),
            "origin": "completion",
        },
        llm_response_id="response",
        **fields,
    )


@directive("tell", "METHOD JSON the notification _ostler/METHOD with these parameters, as they are")
def _tell(turn: Turn, rest: str) -> None:
    method, _, given = rest.partition(" ")
    tell(turn, method, **json.loads(given))


@directive("system", "ID a system prompt")
def _system(turn: Turn, rest: str) -> None:
    event(
        turn, "SystemPromptEvent", rest, "agent", system_prompt={"type": "text", "text": "Be kind."}, tools=[]
    )


@directive("answer", "ID TEXT streams a message in two pieces, and tells it")
def _answer(turn: Turn, rest: str) -> None:
    event_id, _, text = rest.partition(" ")
    half = len(text) // 2
    tell(turn, "stream", type="item_started", item_id=event_id)
    for order, piece in enumerate((text[:half], text[half:])):
        tell(turn, "stream", type="delta", item_id=event_id, order=order, kind="text", content=piece)
    message = {"role": "assistant", "content": [{"type": "text", "text": text}]}
    event(turn, "MessageEvent", event_id, "agent", llm_message=message)


@directive("feedback", "ID TEXT a message in the role of the user, from the agent's own hooks")
def _feedback(turn: Turn, rest: str) -> None:
    event_id, _, text = rest.partition(" ")
    message = {"role": "user", "content": [{"type": "text", "text": text}]}
    event(turn, "MessageEvent", event_id, "environment", llm_message=message)


@directive("act", "ID COMMAND an action of the terminal")
def _act(turn: Turn, rest: str) -> None:
    event_id, _, command = rest.partition(" ")
    action(turn, event_id, command, security_risk="HIGH")


@directive("observe", "ID TEXT what came of the action ID")
def _observe(turn: Turn, rest: str) -> None:
    event_id, _, text = rest.partition(" ")
    event(
        turn,
        "ObservationEvent",
        f"{event_id}-done",
        "environment",
        tool_name="terminal",
        tool_call_id=f"call-{event_id}",
        action_id=event_id,
        observation={
            "kind": "TerminalObservation",
            "content": [{"type": "text", "text": text}],
            "is_error": False,
            "command": "",
            "exit_code": 0,
            "timeout": False,
        },
    )


@directive("mend", "ID closes the action ID as the SDK does after a crash")
def _mend(turn: Turn, rest: str) -> None:
    fields = {"tool_name": "terminal", "tool_call_id": f"call-{rest}", "error": "A restart occurred."}
    event(turn, "AgentErrorEvent", f"{rest}-mended", "agent", **fields)


@directive("failure", "ID CODE the error that ends the run")
def _failure(turn: Turn, rest: str) -> None:
    event_id, _, code = rest.partition(" ")
    event(turn, "ConversationErrorEvent", event_id, "environment", code=code, detail="It failed.")
    turn.status = "error"


@directive("confirm", "ID... asks about these actions all at once; tells a rejection, and goes on else")
def _confirm(turn: Turn, rest: str) -> None:
    asked = [
        turn.begin_ask(
            "session/request_permission",
            {
                "sessionId": turn.session.id,
                "toolCall": {
                    "toolCallId": f"call-{event_id}",
                    "title": "terminal",
                    "_meta": {"ostler": {"eventId": event_id}},
                },
                "options": OPTIONS,
            },
        )
        for event_id in rest.split()
    ]
    answers = [turn.agent.wire.finish(request_id) for request_id in asked]
    refused = [answer for answer in answers if answer["outcome"].get("optionId") != "accept"]
    if not refused:
        return
    reason = refused[0]["_meta"]["ostler"]["reason"]
    for event_id in rest.split():
        fields = {"tool_name": "terminal", "tool_call_id": f"call-{event_id}", "action_id": event_id}
        event(
            turn, "UserRejectObservation", f"{event_id}-no", "environment", rejection_reason=reason, **fields
        )
    turn.status = "idle"


@directive(
    "ask-again", "ID... asks about actions of an earlier process; tells what came of them, and an answer"
)
def _ask_again(turn: Turn, rest: str) -> None:
    _confirm(turn, rest)
    if turn.status == "idle":
        return
    for event_id in rest.split():
        _observe(turn, f"{event_id} it ran")
    _answer(turn, "resumed Done")


@directive(
    "confirm-child", "ID TITLE asks what a sub-agent of this action may do; goes on whatever the answer"
)
def _confirm_child(turn: Turn, rest: str) -> None:
    event_id, _, title = rest.partition(" ")
    asked = turn.begin_ask(
        "session/request_permission",
        {
            "sessionId": turn.session.id,
            "toolCall": {
                "toolCallId": "call-of-the-child",
                "title": title,
                "rawInput": {"command": title},
                "_meta": {"ostler": {"eventId": event_id, "subAgent": "helper", "securityRisk": "LOW"}},
            },
            "options": OPTIONS,
        },
    )
    turn.agent.wire.finish(asked)


@directive("state", "KEY JSON a state")
def _state(turn: Turn, rest: str) -> None:
    key, _, value = rest.partition(" ")
    tell(turn, "state", key=key, value=json.loads(value))


@directive("status", "WORD the status in the prompt's answer (finished)")
def _status(turn: Turn, rest: str) -> None:
    turn.status = rest


@directive("until-paused", "until it is asked to pause")
def _until_paused(turn: Turn, rest: str) -> None:
    while not turn.agent.paused.wait(0.01):
        turn.checkpoint()
    turn.agent.paused.clear()


@directive("until-message", "until it is told something, and then what that says")
def _until_message(turn: Turn, rest: str) -> None:
    turn.listens.set()
    while (said := turn.inbox.next(0.01)) is None:
        turn.checkpoint()
    ours, turn.script = turn.script, said
    perform(turn)
    turn.script = ours


@directive(
    "on-message",
    "HOW what becomes of messages from here on: refuse, crash, keep (no answer now), late (at until-message)",
)
def _on_message(turn: Turn, rest: str) -> None:
    def refuse() -> bool:
        return False

    def crash() -> bool:
        turn.agent.crash("SIGKILL")
        return False

    def keep() -> bool:
        while turn.stop is None:
            time.sleep(0.01)
        return False

    def late() -> bool:
        while not turn.listens.wait(0.01):
            if turn.stop is not None:
                return False
        return True

    turn.on_message = {"refuse": refuse, "crash": crash, "keep": keep, "late": late}[rest]
