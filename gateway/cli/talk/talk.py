"""One turn of a conversation, from a message to its outcome; `run` and `chat` share it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final, NamedTuple

from gateway.cli.client import Server
from gateway.cli.failures import Failure
from gateway.cli.follow.feed import Feed, Reconnecting
from gateway.cli.talk.narration import Narration
from gateway.cli.talk.question import unseen_typing
from gateway.cli.talk.track import (
    ENDED,
    REFUSED_CODE,
    WAITING,
    CallEnded,
    Failed,
    Item,
    State,
    Track,
    UserSaid,
)

TICK_SECONDS: Final = 0.5
"""Between two looks at how far something is that takes long."""

OUTSTANDING_SECONDS: Final = 2.0
"""How long a person's answer may take to show before the question is asked again."""

HISTORY: Final = 300
"""Events before a message that are searched for waiting calls."""

FINISHED: Final = 0
FAILED: Final = 1
REFUSED: Final = 4
INTERRUPTED: Final = 130

NOBODY: Final = "There is no terminal to ask in. `ostler run --yes` allows everything."
REJECTED: Final = "The user rejected the action."


class Outcome(NamedTuple):
    """The outcome of a turn. `status` is the conversation's; `code` and `detail` describe a failure."""

    conversation_id: str
    status: str
    response: str
    rejected: int = 0
    code: str | None = None
    detail: str | None = None
    seconds: float = 0.0

    @property
    def exit_status(self) -> int:
        """What a command ends with."""
        if self.status == "paused":
            return INTERRUPTED
        if self.code == REFUSED_CODE:
            return REFUSED
        if self.status != "finished":
            return FAILED
        return REFUSED if self.rejected else FINISHED

    def dump(self) -> dict[str, Any]:
        """For programs."""
        return {"type": "outcome", **self._asdict(), "exit_status": self.exit_status}


Ask = Callable[[Track, Feed], bool | None]
"""Asks a person about the waiting calls; None when no answer is needed any more."""


class Talk:
    """One conversation that is followed and spoken to.

    `ask` answers the agent's permission requests. `seen` is called with every frame. `interrupted` counts
    Ctrl-C during a turn (see `obeying_interrupts`).
    """

    def __init__(
        self,
        server: Server,
        conversation_id: str,
        narration: Narration,
        ask: Ask,
        seen: Callable[[Mapping[str, Any]], None] = lambda frame: None,
    ) -> None:
        self.server = server
        self.id = conversation_id
        self.track = Track()
        self.interrupted = 0
        self._narration = narration
        self._ask = ask
        self._seen = seen
        self._feed: Feed | None = None
        self._sent: str | None = None

    def begin(self, text: str) -> None:
        """Follow a conversation that was just created with this message; `outcome` follows its turn."""
        self._sent = text
        self._feed = Feed(self.server, self.id, -1)

    def join(self) -> list[Item]:
        """Follow an existing conversation. Returns its last messages, oldest first. Raises Failure."""
        count = self.server.get(f"/api/conversations/{self.id}/events/count")
        self._feed = Feed(self.server, self.id, max(-1, int(count) - 1 - HISTORY))
        items: list[Item] = []
        through = -1
        while True:
            frame = self._feed.next()
            assert frame is not None
            if isinstance(frame, Reconnecting):
                continue
            if frame.get("type") == "sync":
                through = frame.get("through_seq", -1)
            items += self.track.take(frame)
            if frame.get("type") == "transient" and through == -1:
                return items
            if frame.get("type") == "durable" and frame.get("seq", 0) >= through:
                return items

    def say(self, text: str) -> None:
        """Send a message, which runs the agent; `outcome` follows it. Raises Failure."""
        self._sent = text
        content = [{"type": "text", "text": text}]
        self.server.post(f"/api/conversations/{self.id}/events", {"content": content, "run": True})

    def set_policy(self, policy: Mapping[str, Any]) -> None:
        """Replace the confirmation policy. Raises Failure."""
        self.server.post(f"/api/conversations/{self.id}/confirmation_policy", {"policy": dict(policy)})

    def close(self) -> None:
        """Stop following."""
        if self._feed is not None:
            self._feed.close()

    # -- a turn -----------------------------------------------------------------------------------------

    def outcome(self) -> Outcome:
        """Follow the current turn to its end: narrate it, and answer permission requests.

        Raises Failure: Unreachable if the server stays away.
        """
        assert self._feed is not None
        began = time.monotonic()
        ours, rejected = self._sent is None, 0
        failed: Failed | None = None
        asked_at: float | None = None
        self.track.answer = ""
        if self.interrupted:
            self.interrupt()  # it was too early for the first one
        self._narration.begin()
        try:
            while True:
                frame = self._feed.next(TICK_SECONDS)
                if isinstance(frame, Reconnecting):
                    self._narration.note(f"connection lost ({frame.reason}); trying again")
                elif frame is not None:
                    self._seen(frame)
                    for item in self.track.take(frame):
                        self._narration.tell(item)
                        ours = ours or (isinstance(item, UserSaid) and item.text == self._sent)
                        failed = item if isinstance(item, Failed) else failed
                        rejected += isinstance(item, CallEnded) and item.call.status == "rejected"
                        if ours and isinstance(item, State) and _ends(item):
                            return self._ended(str(item.value), rejected, failed, time.monotonic() - began)
                if self.track.status != WAITING:
                    asked_at = None
                    self._narration.end_question()
                elif not self._feed.waiting and _due(asked_at):
                    asked_at = time.monotonic() if self._answer() else None
                self._narration.tick()
        finally:
            self._sent = None
            self._narration.end()

    def _ended(self, status: str, rejected: int, failed: Failed | None, seconds: float) -> Outcome:
        code, detail = (failed.code, failed.detail) if failed and status != "finished" else (None, None)
        return Outcome(self.id, status, self.track.answer, rejected, code, detail, round(seconds, 3))

    def _answer(self) -> bool:
        """Ask the user. Returns whether there was an answer."""
        assert self._feed is not None
        if self.interrupted:
            return True  # the question goes away with the turn
        decided = self._ask(self.track, self._feed)
        if decided is None:
            return False
        body: dict[str, Any] = {"accept": decided}
        if not decided:
            body["reason"] = REJECTED
        self.server.post(f"/api/conversations/{self.id}/events/respond_to_confirmation", body)
        return True

    def interrupt(self) -> None:
        """Interrupt the turn in a thread, while frames continue."""
        threading.Thread(target=self._interrupt, daemon=True).start()

    def _interrupt(self) -> None:
        with suppress(Failure):
            self.server.post(f"/api/conversations/{self.id}/interrupt")

    @contextmanager
    def obeying_interrupts(self) -> Iterator[None]:
        """The first Ctrl-C interrupts the turn, the second one raises KeyboardInterrupt."""

        def obey(number: int, frame: FrameType | None) -> None:
            self.interrupted += 1
            if self.interrupted > 1:
                raise KeyboardInterrupt
            self.interrupt()

        self.interrupted = 0
        before = signal.signal(signal.SIGINT, obey)
        try:
            with unseen_typing():
                yield
        finally:
            signal.signal(signal.SIGINT, before)


def _ends(item: State) -> bool:
    return item.key == "execution_status" and item.value in ENDED


def _due(asked_at: float | None) -> bool:
    return asked_at is None or time.monotonic() - asked_at > OUTSTANDING_SECONDS
