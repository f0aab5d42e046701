"""One turn of a conversation, from a message to its outcome; `run` and `chat` share it."""

from __future__ import annotations

import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from math import inf
from types import FrameType
from typing import Any, Final, Literal, NamedTuple, Protocol
from urllib.parse import quote

import trio

from gateway.cli.agents.names import agent_key, where_installed
from gateway.cli.client import Server
from gateway.cli.failures import Failure
from gateway.cli.follow.stream import LOST, Position, following
from gateway.cli.operate.console import console_url
from gateway.cli.operate.notify import Caller
from gateway.cli.present import warn
from gateway.cli.talk.enclosures import Parts, words_of
from gateway.cli.talk.narration import Narration
from gateway.cli.talk.question import unseen_typing
from gateway.cli.talk.start_request import ConversationOptions, create, refuse_without_credential
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
from gateway.cli.tasks import handling, run_tasks
from gateway.cli.text import cut, one_line

TICK_SECONDS: Final = 0.5
"""Seconds between two updates of the progress of long work."""

SETTLING_SECONDS: Final = 0.02
"""Seconds from the waiting state to the question: further calls of the same request arrive at the same
time."""

OUTSTANDING_SECONDS: Final = 2.0
"""Seconds for a user's answer to take effect, before the question is asked again."""

SILENCE_SECONDS: Final = 20.0
"""Seconds without a sign of the agent until a person reads what is known. Models begin to answer within
ten; the server tells after a minute."""

LOG_COLUMNS: Final = 480
"""The most of a line of the agent's log: with less, the error at the end of OpenCode's was cut off."""

TITLE_COLUMNS: Final = 60

LOOK_SECONDS: Final = 5.0
"""Seconds for what is known."""

AUTH_CODE: Final = "ACPAuthRequired"
"""The agent has no credential, or a refused one."""

HISTORY: Final = 300
"""Events before a message that are searched for waiting calls."""

STATES: Final = 500
"""Events of states that are searched for what the agent offers: those of some fifty turns."""

SIGNS: Final = frozenset({"agent_phase", "agent_retry", "execution_status"})
"""States that show a person that something happens; others do not, such as each failed call of a model."""

OFFERS: Final = frozenset({"available_commands", "config_options", "modes", "current_mode"})
"""States that an agent tells when it starts, and may never tell again."""

FINISHED: Final = 0
FAILED: Final = 1
REFUSED: Final = 4
INTERRUPTED: Final = 130

UNATTENDED: Final = "permission refused: there is no terminal to ask in; `ostler run --yes` allows everything"
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


class Ask(Protocol):
    """Asks the user about the waiting calls. It is cancelled when another frame arrives, and called again."""

    @property
    def asks(self) -> bool:
        """Whether a person is waited for."""

    async def __call__(self, track: Track) -> bool:
        """True to allow, False to refuse."""


Frames = trio.abc.ReceiveChannel[tuple[str, dict[str, Any]]]


class AskInTerminal:
    """Shows the waiting calls and asks about them. `always` holds for later ones, too."""

    def __init__(self, narration: Narration) -> None:
        self._narration = narration
        self.always = False

    @property
    def asks(self) -> bool:
        """Not after an answer for all of the run."""
        return not self.always

    async def __call__(self, track: Track) -> bool:
        """True to allow, False to refuse."""
        if self.always:
            return True
        answer = await self._narration.ask(track.asking).answer()
        self._narration.answered()
        self.always = answer == "always"
        return answer != "no"


class RefuseAll:
    """Refuses, and says on standard error what to do."""

    asks = False

    def __init__(self, narration: Narration) -> None:
        self._narration = narration
        self._warned = False

    async def __call__(self, track: Track) -> bool:
        """False."""
        for call in track.asking:
            self._narration.note(f"? {call.title}")
        if not self._warned:
            self._warned = True
            warn(UNATTENDED)
        return False


def last_head(lines: Sequence[str]) -> str:
    """The last line that is not indented, since the lines of a traceback say less than its head."""
    heads = (line for line in reversed(lines) if line.strip() and not line[0].isspace())
    return next(heads, lines[-1])


def is_sign(item: Item) -> bool:
    """Whether a person sees by it that the turn advances."""
    return item.key in SIGNS if isinstance(item, State) else not (isinstance(item, UserSaid) and item.note)


class Talk:
    """One conversation that is followed and prompted.

    Without `conversation_id` it is a new one. `ask` answers the agent's permission requests. `seen` is called
    with every frame. `interrupted` counts Ctrl-C during a turn (see `obeying_interrupts`).
    """

    def __init__(
        self,
        server: Server,
        conversation_id: str | None,
        narration: Narration,
        ask: Ask,
        seen: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.server = server
        self.id = conversation_id or str(uuid.uuid4())
        self.track = Track()
        self.interrupted = 0
        self.again = "send the message again"
        """How a person does that."""
        self.title = ""
        """What the conversation is called in notifications."""
        self.caller = Caller()
        self.narration = narration
        self._ask = ask
        self._seen = seen
        self._position = Position(-1)
        self._sent: str | None = None
        self._lost = False
        """Whether the connection is lost, so that no interrupt reaches the turn."""
        self._called = False
        """Whether a person was called for the question that waits."""
        self._early: list[dict[str, Any]] = []
        """Frames that arrived while the user was asked."""

    def begin(self, options: ConversationOptions, message: Parts) -> None:
        """Create the conversation with this message; `outcome` follows its turn. Raises Failure."""
        self._create(options, message)
        self._note_sent(message)

    def open(self, options: ConversationOptions) -> None:
        """Create the conversation without a message, and start its agent. Raises Failure."""
        self._create(options, None)
        self.server.post(f"/api/agents/{self.id}/restart")
        self.follow_up()

    def _create(self, options: ConversationOptions, message: Parts | None) -> None:
        refuse_without_credential(self.server, options.agent)
        self.narration.installs = where_installed(self.server, options.agent)
        create(self.server, self.id, options, message)
        self.link()

    def link(self) -> None:
        """Write where a browser shows the conversation, for a person at a terminal."""
        url = console_url(self.server, self.id) if self.narration.console.file.isatty() else None
        if url is not None:
            self.narration.note(f"in a browser: {url}")

    def join(self) -> list[Item]:
        """Catch up with an existing conversation. Returns its last messages, oldest first. Raises Failure."""
        count = self.server.get(f"/api/conversations/{self.id}/events/count")
        self._position = Position(max(-1, int(count) - 1 - HISTORY))
        return run_tasks(self._join)

    def recall(self) -> None:
        """Learn what the agent offers from before the events that `join` looks at. Raises Failure."""
        path = f"/api/conversations/{self.id}/events/search"
        states = self.server.pages(path, "kind=ConversationStateUpdateEvent&sort_order=TIMESTAMP_DESC")
        found: dict[str, Any] = {}
        for event in islice(states, STATES):
            if event["key"] in OFFERS:
                found.setdefault(event["key"], event.get("value"))
        for key in reversed(found):
            self.track.recall(key, found[key])

    def follow_up(self) -> None:
        """Tell what has happened since, such as what a turn has used. Raises Failure."""
        for item in run_tasks(self._join):
            self.narration.tell(item)

    async def _join(self) -> list[Item]:
        items: list[Item] = []
        async with following(self.server, self.id, self._position.after_seq) as frames:
            async for _, frame in frames:
                items += self._take(frame)
                if self._position.caught_up(frame):
                    break
        return items

    def _take(self, frame: dict[str, Any]) -> list[Item]:
        self._position.note(frame)
        return self.track.take(frame)

    def say(self, message: Parts) -> None:
        """Send a message, which runs the agent; `outcome` follows it. Raises Failure."""
        self._note_sent(message)
        self.server.post(f"/api/conversations/{self.id}/events", {"content": message, "run": True})

    def _note_sent(self, message: Parts) -> None:
        self._sent = words_of(message)
        self.title = self.title or cut(one_line(self._sent), TITLE_COLUMNS)
        self.caller.typed()

    def switch(self, what: Literal["mode", "model"], value: str) -> None:
        """Change the agent's mode or model in this conversation. Raises Failure: what there is instead."""
        self.server.post(f"/api/conversations/{self.id}/switch_acp_{what}", {what: value})
        self.follow_up()

    def set_policy(self, policy: Mapping[str, Any]) -> None:
        """Replace the confirmation policy. Raises Failure."""
        self.server.post(f"/api/conversations/{self.id}/confirmation_policy", {"policy": dict(policy)})

    # -- a turn -----------------------------------------------------------------------------------------

    def outcome(self) -> Outcome:
        """Follow the current turn to its end: narrate it, and answer permission requests.

        Raises Failure: Unreachable if the server stays away.
        """
        self.track.answer = ""
        if self.interrupted:
            self.interrupt()  # it was too early for the first one
        self.narration.begin()
        try:
            outcome = run_tasks(self._turn)
        except KeyboardInterrupt:
            if self._lost:
                self.narration.note("left, since the server does not answer; it keeps the conversation")
            raise
        finally:
            self._sent, self._lost = None, False
            self.narration.end()
        self.caller.call(self.id, outcome.status, self.title)
        if outcome.code == AUTH_CODE:
            with suppress(Failure):
                self.follow_up()
            self.narration.line(self._how_to_log_in())
        return outcome

    async def _turn(self) -> Outcome:
        began = trio.current_time()
        ours, rejected = self._sent is None, 0
        failed: Failed | None = None
        asking_at, silent_at, failing = inf, began + SILENCE_SECONDS, False
        self._early.clear()
        async with following(self.server, self.id, self._position.after_seq) as frames:
            while True:
                frame = await self._next(frames, min(asking_at, trio.current_time() + TICK_SECONDS))
                if frame is not None and frame["type"] == LOST:
                    self._lost = True
                    self.narration.lose()
                    self.narration.note(frame["said"])
                elif frame is not None:
                    self._lost = False
                    self.narration.regain()
                    if self._seen is not None:
                        self._seen(frame)
                    for item in self._take(frame):
                        if is_sign(item):
                            silent_at, failing = trio.current_time() + SILENCE_SECONDS, False
                        failing = failing or (isinstance(item, State) and item.key == "model_call_failed")
                        self.narration.tell(item)
                        match item:
                            case UserSaid(text):
                                ours = ours or text == self._sent
                            case Failed():
                                failed = item
                            case CallEnded(call):
                                rejected += call.status == "rejected"
                            case State("execution_status", value) if ours and value in ENDED:
                                code, detail = failed if failed and value != "finished" else (None, None)
                                seconds = round(trio.current_time() - began, 3)
                                answer = self.track.answer
                                return Outcome(self.id, value, answer, rejected, code, detail, seconds)
                now = trio.current_time()
                if not self.narration.thinks:
                    silent_at = now + SILENCE_SECONDS
                elif now >= silent_at:
                    silent_at = inf  # once, until the agent gives a sign
                    await self._tell_silence(failing)
                if self.track.status != WAITING:
                    asking_at, self._called = inf, False
                    self.narration.end_question()
                elif self._position.behind or asking_at == inf:
                    asking_at = now + SETTLING_SECONDS
                elif now >= asking_at:
                    answered = await self._answer(frames)
                    asking_at = trio.current_time() + (OUTSTANDING_SECONDS if answered else SETTLING_SECONDS)
                self.narration.tick()

    def _how_to_log_in(self) -> str:
        known = {} if self.track.needed else self._credentials()
        refused = (known.get("credential") or {}).get("name")
        if refused:
            return (
                f"the model service refused {refused}; store a valid one with "
                f"`ostler secrets set {refused}`, then {self.again}"
            )
        first, *others = self.track.needed or known.get("would_help") or ("",)
        if not first:
            return (
                "store its key with `ostler secrets set`, under the name of the variable that it reads "
                f"(its documentation has that), then {self.again}"
            )
        more = f" (or one of {', '.join(others)})" if others else ""
        return f"type `ostler secrets set {first}`{more}, then {self.again}"

    def _credentials(self) -> Mapping[str, Any]:
        """The credential that the agent uses and those that it would, if it is one of the catalogue."""
        with suppress(Failure):
            agent = agent_key(self.server.get(f"/api/conversations/{self.id}")["agent"])
            found = self.server.get(f"/api/agents/credentials?agent={quote(agent or '', safe='')}")["agents"]
            return dict(found[0])
        return {}

    async def _tell_silence(self, failing: bool) -> None:
        """Say that nothing comes, and the last line of the agent's log. `failing`: the last that it said was
        about a failed call, and is on the screen already."""
        known = "" if failing else f"; its log {await self._end_of_log()}"
        self.narration.note(
            f"nothing from the agent for {SILENCE_SECONDS:g} s (Ctrl-C interrupts its turn){known}"
        )

    async def _end_of_log(self) -> str:
        lines: list[str] = []
        path = f"/api/agents/{self.id}/stderr"
        with trio.move_on_after(LOOK_SECONDS), suppress(Failure):
            answer = await trio.to_thread.run_sync(self.server.get, path, abandon_on_cancel=True)
            lines = answer["lines"]
        return f"ends with: {cut(one_line(last_head(lines)), LOG_COLUMNS)}" if lines else "is empty"

    async def _next(self, frames: Frames, deadline: float) -> dict[str, Any] | None:
        """The next frame; None when none comes in time."""
        if self._early:
            return self._early.pop()
        with trio.move_on_at(deadline):
            return await _came(frames)
        return None

    async def _answer(self, frames: Frames) -> bool:
        """Ask the user until a frame comes. Returns whether there was an answer."""
        if self.interrupted:
            return True  # the question goes away with the turn
        if self._ask.asks and not self._called:
            self._called = True
            await trio.to_thread.run_sync(self.caller.call, self.id, WAITING, self.title)
        decided: list[bool] = []
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                decided.append(await self._ask(self.track))
                nursery.cancel_scope.cancel()

            nursery.start_soon(ask)
            self._early.append(await _came(frames))
            nursery.cancel_scope.cancel()
        if not decided:
            return False
        self.caller.typed()
        body = {"accept": True} if decided[0] else {"accept": False, "reason": REJECTED}
        path = f"/api/conversations/{self.id}/events/respond_to_confirmation"
        await trio.to_thread.run_sync(self.server.post, path, body, abandon_on_cancel=True)
        return True

    def interrupt(self) -> None:
        """Interrupt the turn in a thread, while frames continue."""

        def post() -> None:
            with suppress(Failure):
                self.server.post(f"/api/conversations/{self.id}/interrupt")

        threading.Thread(target=post, daemon=True).start()

    @contextmanager
    def obeying_interrupts(self) -> Iterator[None]:
        """The first Ctrl-C interrupts the turn, the second one raises KeyboardInterrupt.

        So does the first one while there is no connection.
        """

        def obey(number: int, frame: FrameType | None) -> None:
            self.interrupted += 1
            self.caller.typed()
            if self.interrupted > 1 or self._lost:
                raise KeyboardInterrupt
            self.interrupt()

        self.interrupted = 0
        with handling((signal.SIGINT,), obey), unseen_typing():
            yield


async def _came(frames: Frames) -> dict[str, Any]:
    async for _, frame in frames:
        return frame
    await trio.sleep_forever()  # `following` raises the reason for the end
    raise AssertionError
