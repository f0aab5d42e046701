"""A goal: an objective that the agent is prompted with again, until a judge says that it is reached.

Each round is a run of the conversation, then a verdict. The judge is the agent itself, in a side session: it
is asked for a verdict in a strict form, and sees what the conversation has said. The record has the goal as
clients read it (`key="goal"`); what an earlier server left running is interrupted, and may be resumed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

import structlog
import trio

from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.state.errors import AlreadyRunning, ConversationError, NotAccepted
from supervisor.conversations.state.status import ExecutionStatus
from supervisor.events import Message, TextContent
from supervisor.journal.errors import JournalError

log = structlog.get_logger(__name__)

RUNNING, COMPLETE, CAPPED, INTERRUPTED = "running", "complete", "capped", "interrupted"

MISSING_CHARS: Final = 4_000
"""Longest account of what is missing, in characters: it is an event, and part of the next prompt."""

VERDICT_CHARS: Final = 16 * 1024
"""Characters at the end of an answer in which a verdict is looked for."""

BRACES_TRIED: Final = 100
"""Places where an object may begin that are tried: few, since each may be long."""

JUDGE: Final = """\
You are auditing whether the GOAL below has been COMPLETED in this conversation.

Derive the concrete requirements that the goal implies. For each, look for evidence in the conversation:
contents of files, output of commands, results of tests. What is missing, uncertain or merely claimed is not
satisfied.

Answer with STRICT JSON and nothing else, in exactly this form:
{"score": <0.0 to 1.0: how probable it is that the whole goal is reached>, "complete": <true or false>, \
"missing": "<what remains, briefly; empty if nothing>"}

GOAL:
"""

FOLLOW_UP: Final = """\
The goal is NOT yet complete (audit iteration {iteration}).
Outstanding: {missing}

Inspect the real state of the workspace; do not rely on memory. For each remaining requirement, make progress
and gather evidence by running the relevant tests or commands. Finish only once every requirement is provably
satisfied.

The goal: {objective}"""

RESUME: Final = """\
Resuming a goal that was interrupted. Check the real state of the workspace again; do not rely on memory. \
Continue towards the goal. Finish only once every requirement is provably satisfied.

The goal: {objective}"""

UNREADABLE: Final = "The verdict of the judge could not be read, so the goal counts as not complete."

JUDGED: Final = frozenset({ExecutionStatus.FINISHED, ExecutionStatus.STUCK})
"""The statuses after a run that a judge looks at; any other ends the loop."""


def verdict_of(answer: str) -> dict[str, Any]:
    """The verdict in a judge's answer: its last JSON object that has one. Pure.

    An answer without one counts as not complete, and says so.
    """
    decoder = json.JSONDecoder()
    answer = answer[-VERDICT_CHARS:]
    # From the end: judges think aloud first.
    at, tried = answer.rfind("{"), 0
    while at >= 0 and tried < BRACES_TRIED:
        tried += 1
        try:
            found, _ = decoder.raw_decode(answer, at)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict) and isinstance(found.get("complete"), bool):
            return _verdict(found)
        at = answer.rfind("{", 0, at)
    return {"score": 0.0, "complete": False, "missing": UNREADABLE}


def _verdict(found: Mapping[str, Any]) -> dict[str, Any]:
    complete = bool(found["complete"])
    score = found.get("score")
    known = isinstance(score, int | float) and not isinstance(score, bool) and 0 <= score <= 1
    missing = found.get("missing")
    return {
        "score": float(score) if known and score is not None else float(complete),
        "complete": complete,
        "missing": missing[:MISSING_CHARS] if isinstance(missing, str) else "",
    }


class Runs(Protocol):
    """The part of a conversation that a goal needs."""

    async def prompt_for_goal(self, message: Message) -> None:
        """Send a message, run, and wait for the end of the run."""

    async def ask_agent(self, question: str) -> str:
        """Ask the agent a side question."""


class GoalLoop:
    """The loop of one conversation's goal. Its task lives in `nursery`; the task refers to the conversation,
    which keeps it loaded."""

    def __init__(self, recorder: Recorder, runs: Runs, nursery: trio.Nursery) -> None:
        self._recorder = recorder
        self._record = recorder.record
        self._runs = runs
        self._nursery = nursery
        self._scope: trio.CancelScope | None = None
        self._done = trio.Event()

    @property
    def running(self) -> bool:
        """Whether the loop runs."""
        return self._scope is not None

    def start(self, objective: str, max_iterations: int) -> None:
        """Begin the loop. Raises AlreadyRunning, JournalError."""
        self._begin(objective, 0, max_iterations, objective)

    def resume(self) -> None:
        """Resume the interrupted goal.

        Raises AlreadyRunning, NotAccepted if there is none, JournalError.
        """
        if self.running:
            raise AlreadyRunning("Conversation run or goal loop already running.")
        goal = self._record.goal
        if goal is None or goal.get("status") != INTERRUPTED:
            raise NotAccepted("no_resumable_goal")
        most = int(goal["max_iterations"])
        objective = str(goal["objective"])
        # One round at least is left, so that the loop has something to do.
        done = min(int(goal["iteration"]), most - 1)
        self._begin(objective, done, most, RESUME.format(objective=objective))

    def _begin(self, objective: str, iteration: int, most: int, prompt: str) -> None:
        if self.running:
            raise AlreadyRunning("Conversation run or goal loop already running.")
        self._tell(
            {
                "active": True,
                "status": RUNNING,
                "iteration": iteration,
                "max_iterations": most,
                "objective": objective,
                "verdict": None,
            }
        )
        self._scope, self._done = trio.CancelScope(), trio.Event()
        self._nursery.start_soon(self._run, prompt)

    async def stop(self) -> bool:
        """End the loop, not the current turn. Returns whether a loop ran.

        Cancellation does not undo that.
        """
        if self._scope is None:
            return False
        self._scope.cancel()
        await self._done.wait()
        return True

    def recover(self) -> None:
        """After a start of the server: mark a goal that an earlier server left running as interrupted."""
        goal = self._record.goal
        if goal is not None and goal.get("active") and not self.running:
            self._end(INTERRUPTED)

    def _tell(self, goal: dict[str, Any]) -> None:
        self._record.goal = goal
        self._recorder.write([self._recorder.state("goal", goal)])

    def _end(self, status: str, **more: Any) -> None:
        assert self._record.goal is not None
        self._tell({**self._record.goal, **more, "active": False, "status": status})

    async def _run(self, prompt: str) -> None:
        scope, done = self._scope, self._done
        assert scope is not None
        status = INTERRUPTED
        more: dict[str, Any] = {}
        try:
            with scope:
                status, more = await self._rounds(prompt)
        except ConversationError as error:
            log.info("goal interrupted", conversation_id=self._record.id, error=str(error))
            more = _failed(str(error))
        except JournalError:
            pass  # deleted, or nothing can be stored any more
        except Exception:
            # Contain the fault: an exception would end the server's nursery.
            log.exception("goal failed", conversation_id=self._record.id)
        finally:
            self._scope = None
            with suppress(JournalError):
                self._end(status, **more)
            done.set()

    async def _rounds(self, prompt: str) -> tuple[str, dict[str, Any]]:
        goal = self._record.goal
        assert goal is not None
        objective, most = goal["objective"], goal["max_iterations"]
        iteration = goal["iteration"]
        while True:
            await self._runs.prompt_for_goal(Message(role="user", content=(TextContent(text=prompt),)))
            # A pause, an interrupt or a failure ended the run: a person decides what comes next.
            if self._record.now.execution_status not in JUDGED:
                return INTERRUPTED, {}
            verdict = verdict_of(await self._runs.ask_agent(JUDGE + objective))
            iteration += 1
            if verdict["complete"]:
                return COMPLETE, {"iteration": iteration, "verdict": verdict}
            if iteration >= most:
                return CAPPED, {"iteration": iteration, "verdict": verdict}
            assert self._record.goal is not None
            self._tell({**self._record.goal, "iteration": iteration, "verdict": verdict})
            missing = verdict["missing"] or "the judge does not say what"
            prompt = FOLLOW_UP.format(iteration=iteration, missing=missing, objective=objective)


def _failed(reason: str) -> dict[str, Any]:
    return {"verdict": {"score": 0.0, "complete": False, "missing": reason[:MISSING_CHARS]}}
