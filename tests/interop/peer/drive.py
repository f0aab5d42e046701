"""Run by the peer's Python: drives a conversation on the server with the peer's own client.

    drive.py SCENARIO URL WORKSPACE COMMAND...

COMMAND starts a scripted agent. Prints one JSON line with what the client saw.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from openhands.sdk import Conversation
from openhands.sdk.agent import ACPAgent
from openhands.sdk.conversation.response_utils import get_agent_final_response
from openhands.sdk.security.confirmation_policy import AlwaysConfirm
from openhands.sdk.workspace import RemoteWorkspace

WAIT_S = 15.0
QUICK_TURNS = 20


class Seen:
    """The events a client's callback got."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def __call__(self, event: Any) -> None:
        self.events.append(event)

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    def wait(self, wanted: Callable[[Any], bool]) -> None:
        until = time.monotonic() + WAIT_S
        while not any(map(wanted, list(self.events))):
            if time.monotonic() > until:
                raise TimeoutError(f"not seen among {self.kinds()}")
            time.sleep(0.02)


def status(conversation: Any) -> str:
    return str(conversation.state.execution_status.value)


def logged(conversation: Any) -> list[Any]:
    """The client's copy of the log; it keeps the transient snapshots of the state among the events."""
    return [event for event in conversation.state.events if getattr(event, "key", None) != "full_state"]


def turns(conversation: Any, seen: Seen) -> dict[str, Any]:
    """Two turns, each answered; tool calls arrive."""
    answers = []
    for text in ("hello peer", "!text before \n!tool\n!text after"):
        conversation.send_message(text)
        conversation.run()
        answers.append(get_agent_final_response(list(conversation.state.events)))
    return {"answers": answers, "logged": [event.id for event in logged(conversation)]}


def quick(conversation: Any, seen: Seen) -> dict[str, Any]:
    """Many short turns; how long the slowest `run` took, in seconds."""
    slowest = 0.0
    for number in range(QUICK_TURNS):
        conversation.send_message(f"turn {number}")
        begin = time.monotonic()
        conversation.run()
        slowest = max(slowest, time.monotonic() - begin)
    return {"slowest": slowest}


def interrupt(conversation: Any, seen: Seen) -> dict[str, Any]:
    """A turn is interrupted while it streams; the next one is answered."""
    conversation.send_message("!slow 400 50")
    runner = threading.Thread(target=conversation.run)
    runner.start()
    seen.wait(lambda event: type(event).__name__ == "StreamingDeltaEvent")
    begin = time.monotonic()
    conversation.interrupt()
    took = time.monotonic() - begin
    runner.join(WAIT_S)
    after = status(conversation)
    conversation.send_message("still there?")
    conversation.run()
    answer = get_agent_final_response(list(conversation.state.events))
    return {"took": took, "returned": not runner.is_alive(), "after": after, "answer": answer}


def pause(conversation: Any, seen: Seen) -> dict[str, Any]:
    """A pause during a turn is seen as such."""
    conversation.send_message("!slow 20 50")
    runner = threading.Thread(target=conversation.run)
    runner.start()
    seen.wait(lambda event: type(event).__name__ == "StreamingDeltaEvent")
    conversation.pause()
    seen.wait(lambda event: type(event).__name__ == "PauseEvent")
    runner.join(WAIT_S)
    return {"returned": not runner.is_alive(), "after": status(conversation)}


def confirm(conversation: Any, seen: Seen) -> dict[str, Any]:
    """A permission is confirmed by running again, the next one rejected."""
    conversation.set_confirmation_policy(AlwaysConfirm())
    conversation.send_message("!write yes.txt content")
    conversation.run()
    waiting = status(conversation)
    conversation.run()
    accepted = status(conversation)
    conversation.send_message("!write no.txt content")
    conversation.run()
    conversation.reject_pending_actions("not today")
    seen.wait(lambda event: type(event).__name__ == "UserRejectObservation")
    return {"waiting": waiting, "accepted": accepted}


def attach(conversation: Any, seen: Seen) -> dict[str, Any]:
    """A second client of the same conversation sees the same history."""
    conversation.send_message("first client")
    conversation.run()
    again = Conversation(
        agent=conversation.agent,
        workspace=conversation.workspace,
        conversation_id=conversation.id,
        visualizer=None,
        delete_on_close=False,
    )
    try:
        first = [event.id for event in logged(conversation)]
        second = [event.id for event in logged(again)]
    finally:
        again.close()
    return {"same": first == second, "events": len(first)}


SCENARIOS = {each.__name__: each for each in (turns, quick, interrupt, pause, confirm, attach)}


def main() -> None:
    scenario, url, directory, *command = sys.argv[1:]
    seen = Seen()
    conversation = Conversation(
        agent=ACPAgent(acp_command=command, acp_server="custom"),
        workspace=RemoteWorkspace(host=url, working_dir=directory),
        callbacks=[seen],
        visualizer=None,
        delete_on_close=False,
    )
    try:
        result = SCENARIOS[scenario](conversation, seen)
        identity, final = str(conversation.id), status(conversation)
    finally:
        conversation.close()
    print(json.dumps({"id": identity, "status": final, "seen": seen.kinds(), **result}))


if __name__ == "__main__":
    main()
