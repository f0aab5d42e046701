"""What the checks share: a server's address, a directory, conversations that are closed at the end."""

from __future__ import annotations

import functools
import http.server
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from openhands.sdk import Conversation
from openhands.sdk.agent import ACPAgent
from openhands.sdk.conversation.response_utils import get_agent_final_response
from openhands.sdk.workspace import RemoteWorkspace

WAIT_S = 20.0
RUN_S = 60.0  # of a run; a client that misses its end waits this long
CHECKS: dict[str, Callable[[World], None]] = {}
COVERED: dict[str, str] = {}  # "Class.method" -> the check that calls it


def covers(*names: str) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """Marks a check, and says of which public methods it shows that they work."""

    def mark(check: Callable[[World], None]) -> Callable[[World], None]:
        CHECKS[check.__name__] = check
        COVERED.update(dict.fromkeys(names, check.__name__))
        return check

    return mark


class World:
    """One check's place."""

    def __init__(self, url: str, directory: Path, command: list[str]) -> None:
        self.url = url
        self.directory = directory
        self.command = command
        self._open: list[Any] = []
        directory.mkdir(parents=True)

    @functools.cached_property
    def ostler(self) -> bool:
        """Whether it is an Ostler: the few checks that show where it is better look at this."""
        return "ostler_version" in httpx.get(f"{self.url}/server_info").raise_for_status().json()

    def agent(self, *modes: str) -> ACPAgent:
        more = [argument for mode in modes for argument in ("--mode", mode)]
        return ACPAgent(acp_command=[*self.command, *more], acp_server="custom")

    def workspace(self, name: str = "workspace", **fields: Any) -> RemoteWorkspace:
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        return RemoteWorkspace(host=self.url, working_dir=str(directory), **fields)

    def conversation(self, *modes: str, **fields: Any) -> Any:
        fields.setdefault("workspace", self.workspace())
        fields.setdefault("delete_on_close", False)
        return self.keep(Conversation(agent=self.agent(*modes), visualizer=None, **fields))

    def keep(self, conversation: Any) -> Any:
        """Have it closed at the end."""
        self._open.append(conversation)
        return conversation

    def close(self) -> None:
        """A client waits for up to five seconds until its socket's thread has noticed: all at once,
        therefore."""
        closers = [threading.Thread(target=conversation.close) for conversation in self._open]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()

    @contextmanager
    def files_served(self, directory: Path) -> Iterator[str]:
        """The directory by http; gives the URL."""
        handler = functools.partial(Quiet, directory=str(directory))
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def say(conversation: Any, text: str) -> str:
    """One turn; the agent's answer."""
    conversation.send_message(text)
    conversation.run(timeout=RUN_S)
    return str(get_agent_final_response(list(conversation.state.events)))


def status(conversation: Any) -> str:
    return str(conversation.state.execution_status.value)


def kinds(conversation: Any) -> list[str]:
    return [type(event).__name__ for event in list(conversation.state.events)]


def message_text(event: Any) -> str:
    return "".join(part.text for part in event.llm_message.content)


def durable(conversation: Any) -> list[str]:
    """Ids of what is in the log: the client keeps snapshots of the state among the events."""
    return [event.id for event in conversation.state.events if getattr(event, "key", None) != "full_state"]


def told(conversation: Any) -> list[str]:
    """Kinds of the events that the server has, without updates of the state."""
    answer = conversation.workspace.client.get(f"/api/conversations/{conversation.id}/events/search")
    found = [event["kind"] for event in answer.raise_for_status().json()["items"]]
    return [kind for kind in found if kind != "ConversationStateUpdateEvent"]


def wait_until(wanted: Callable[[], Any], what: str) -> None:
    until = time.monotonic() + WAIT_S
    while not wanted():
        assert time.monotonic() < until, f"not seen: {what}"
        time.sleep(0.02)


def refused(call: Callable[[], Any], *statuses: int) -> Any:
    """The call is answered with one of these, and with a reason of its own; returns the detail."""
    try:
        call()
    except httpx.HTTPStatusError as error:
        assert error.response.status_code in statuses, f"{error}: {error.response.text}"
        detail = error.response.json()["detail"]
        assert detail not in ("", "Not Found"), f"{error}: no reason, only {detail!r}"
        return detail
    raise AssertionError("it was not refused")


def not_for_remote(call: Callable[[], Any]) -> None:
    """The client itself says that it cannot do this."""
    try:
        call()
    except NotImplementedError:
        return
    raise AssertionError("the client does it now: check what it asks of the server")
