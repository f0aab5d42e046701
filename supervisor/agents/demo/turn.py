"""The demo's turn as a script: a generator that yields what it waits for.

It yields seconds to wait (resumed with None) and the parameters of permission requests (resumed with the
client's answer); `TurnCancelled` thrown into it ends it. All else happens through `update`, at once.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from supervisor.agents.demo.sessions import Session

FILE_NAME = "hello-from-ostler.txt"

CHUNK_SECONDS = 0.005
"""Seconds between two pieces of text: enough to see that it streams."""

SLOW_CHUNK_SECONDS = 0.25
"""Seconds between two pieces when the prompt asks for slowness, to have time to interrupt."""

LISTED_FILES = 20

CONTEXT_SIZE = 200_000
"""The context window that the demo claims, in tokens."""

SLOW_WORDS = frozenset({"slow", "slowly"})
WRITING_WORDS = frozenset({"write", "create", "make", "save", "file"})


class TurnCancelled(Exception):
    """The client cancelled the turn."""


Script = Generator[float | dict[str, Any], Any, dict[str, Any]]
Steps = Generator[float | dict[str, Any], Any, None]
Update = Callable[[str, dict[str, Any]], None]

PERMISSIONS = [
    {"optionId": "allow", "name": "Write it", "kind": "allow_once"},
    {"optionId": "always", "name": "Write it, and do not ask again", "kind": "allow_always"},
    {"optionId": "reject", "name": "Do not write it", "kind": "reject_once"},
]


class Turn:
    """One prompt of a session. `texts` are its blocks: the last one is the question, the others may be a
    transcript. `update(kind, fields)` sends a `session/update`."""

    def __init__(self, session: Session, texts: Sequence[str], update: Update) -> None:
        self._session = session
        self._text = "\n".join(texts)
        self._update = update
        self._words = {word.strip(".,;:!?\"'").lower() for word in texts[-1].split()}
        self._pace = SLOW_CHUNK_SECONDS if self._words & SLOW_WORDS else CHUNK_SECONDS
        self._said = ""
        self._open_calls: list[str] = []
        self._files: list[str] = []
        self._wrote: bool | None = None
        """Whether the write was done; None if the prompt asked for none."""

    def play(self) -> Script:
        """Yield the script's steps; return the prompt's result and leave the turn in `session.turns`."""
        reason = "end_turn"
        try:
            yield from self._act()
        except TurnCancelled:
            for call in self._open_calls:
                self._update("tool_call_update", {"toolCallId": call, "status": "failed"})
            reason = "cancelled"
        turns = self._session.turns
        turns.append({"user": self._text, "agent": self._said})
        used = sum(_tokens(turn["user"]) + _tokens(turn["agent"]) for turn in turns)
        cost = {"amount": 0, "currency": "USD"}
        self._update("usage_update", {"used": used, "size": CONTEXT_SIZE, "cost": cost})
        read, written = _tokens(self._text), _tokens(self._said)
        usage = {"inputTokens": read, "outputTokens": written, "totalTokens": read + written}
        return {"stopReason": reason, "usage": usage}

    def _act(self) -> Steps:
        writes = bool(self._words & WRITING_WORDS)
        steps = ["Look at the workspace", *([f"Write {FILE_NAME}"] if writes else []), "Answer"]
        yield from self._stream(
            "agent_thought_chunk", "I look at the workspace, then I answer.", CHUNK_SECONDS
        )
        self._plan(steps, 0)
        yield from self._look()
        if writes:
            self._plan(steps, 1)
            yield from self._write()
        self._plan(steps, len(steps) - 1)
        yield from self._stream("agent_message_chunk", self._answer(), self._pace)
        self._plan(steps, len(steps))

    def _stream(self, kind: str, text: str, pace: float) -> Steps:
        message = str(uuid.uuid4())
        for piece in re.findall(r"\S+\s*", text):
            self._update(kind, {"messageId": message, "content": {"type": "text", "text": piece}})
            if kind == "agent_message_chunk":
                self._said += piece
            yield pace

    def _plan(self, steps: list[str], at: int) -> None:
        entries = [
            {
                "content": step,
                "priority": "medium",
                "status": "completed" if index < at else "in_progress" if index == at else "pending",
            }
            for index, step in enumerate(steps)
        ]
        self._update("plan", {"entries": entries})

    def _look(self) -> Steps:
        cwd = self._session.cwd
        call = self._open_call("List the workspace", "read", cwd, {"path": cwd})
        yield self._pace
        try:
            self._files = sorted(os.listdir(cwd))  # noqa: PTH208 - only names are needed
        except OSError as error:
            self._close_call(call, "failed", f"{cwd}: {error.strerror}")
            return
        shown = "\n".join(self._files[:LISTED_FILES]) or "(empty)"
        if len(self._files) > LISTED_FILES:
            shown += f"\n({len(self._files) - LISTED_FILES} more)"
        self._close_call(call, "completed", shown)

    def _write(self) -> Steps:
        path = Path(self._session.cwd) / FILE_NAME
        content = f"Hello from Ostler's demo agent.\nYou asked: {self._text}\n"
        title = f"Write {FILE_NAME}"
        call = self._open_call(title, "edit", str(path), {"path": str(path), "content": content})
        diff = {"type": "diff", "path": str(path), "oldText": None, "newText": content}
        self._update("tool_call_update", {"toolCallId": call, "content": [diff]})
        self._wrote = False
        if self._session.mode == "ask" and not self._session.may_write:
            subject = {"toolCallId": call, "title": title, "kind": "edit", "status": "pending"}
            chosen = _chosen((yield {"toolCall": subject, "options": PERMISSIONS}))
            if chosen not in ("allow", "always"):
                self._close_call(call, "failed", "The user rejected the action.")
                return
            self._session.may_write = chosen == "always"
        yield self._pace
        try:
            path.write_text(content, encoding="utf-8")
        except OSError as error:
            self._close_call(call, "failed", f"{path}: {error.strerror}")
            return
        self._wrote = True
        self._close_call(call, "completed", f"Wrote {len(content)} characters.", diff)

    def _open_call(self, title: str, kind: str, path: str, raw: dict[str, str]) -> str:
        call = f"call_{uuid.uuid4().hex[:12]}"
        self._open_calls.append(call)
        fields = {"title": title, "kind": kind, "status": "in_progress", "rawInput": raw}
        self._update("tool_call", {"toolCallId": call, "locations": [{"path": path}], **fields})
        return call

    def _close_call(self, call: str, status: str, text: str, *content: dict[str, Any]) -> None:
        self._open_calls.remove(call)
        shown = [*content, {"type": "content", "content": {"type": "text", "text": text}}]
        fields = {"status": status, "content": shown, "rawOutput": text}
        self._update("tool_call_update", {"toolCallId": call, **fields})

    def _answer(self) -> str:
        done = {None: "", True: f" I wrote {FILE_NAME}.", False: f" I did not write {FILE_NAME}."}[
            self._wrote
        ]
        turns = self._session.turns
        if self._session.model == "demo-terse":
            return f"Demo. You said: {self._text}{done}"
        before = f" Before that you said: {turns[-1]['user']}" if turns else ""
        return (
            f"You said: {self._text}{before}\n\n"
            "This is Ostler's demo agent. I have no model, so I can only show how a turn goes: "
            f"I thought, made a plan, looked at {self._session.cwd} ({len(self._files)} entries) and am "
            f"streaming this answer.{done} Ask me to write a file and I will ask for your permission; ask me "
            "to be slow and you can interrupt me. Choose another agent in the settings to have work done."
        )


def _chosen(answer: object) -> object:
    """Return the selected option, None for an answer that selects nothing."""
    outcome = answer.get("outcome") if isinstance(answer, dict) else None
    if not isinstance(outcome, dict):
        return None
    if outcome.get("outcome") == "cancelled":
        raise TurnCancelled
    return outcome.get("optionId")


def _tokens(text: str) -> int:
    """Count words, for lack of a tokenizer."""
    return len(text.split())
