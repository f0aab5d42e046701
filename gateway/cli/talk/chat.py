"""`ostler chat`: an interactive conversation with an agent."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

from gateway.cli.agents.installs import where_installed
from gateway.cli.agents.names import agent_key
from gateway.cli.client import Server
from gateway.cli.failures import BadInput, Failure, Missing, Unreachable
from gateway.cli.locations import state_directory
from gateway.cli.talk.asking import AskInTerminal
from gateway.cli.talk.chat_commands import COMMANDS, Leave, perform
from gateway.cli.talk.narration import Narration
from gateway.cli.talk.question import unseen_typing
from gateway.cli.talk.start_request import (
    ALWAYS,
    NEVER,
    ConversationOptions,
    create,
    new_id,
    start_request,
    working_directory,
)
from gateway.cli.talk.talk import INTERRUPTED, Talk
from gateway.cli.talk.temporary import found_or_started
from gateway.cli.talk.track import ENDED, Item, Said, UserSaid
from gateway.cli.terminal import asks, console
from gateway.cli.text import one_line
from supervisor.extras import missing

SHOWN_BEFORE: Final = 6
"""Messages shown when a conversation is continued: enough to remember where it stands."""

SHOWN_ID: Final = 8


def run(arguments: Namespace) -> int:
    """Run the chat until the user leaves. Returns the exit status. Raises Failure."""
    if not (asks() and sys.stdout.isatty()):
        raise BadInput("chat requires a terminal; use `ostler run` in scripts and pipes")
    if arguments.resume or arguments.latest:
        for option in ("agent", "cwd", "model"):
            if getattr(arguments, option) is not None:
                raise BadInput(
                    f"--{option} applies to new conversations only; leave it out to continue a conversation"
                )
    if (advice := missing("cli", "ostler chat")) is not None:
        raise Failure(f"{advice}; `ostler run` works without it")
    narration = Narration(console(sys.stdout))
    with found_or_started(
        arguments, os.environ, lambda: narration.note("starting a temporary server")
    ) as server:
        return Chat(server, arguments, narration).run()


class Chat:
    """A chat of a user with an agent. `talk` is None before the first message.

    `options` describes the next conversation.
    """

    def __init__(self, server: Server, arguments: Namespace, narration: Narration) -> None:
        self.server = server
        self.narration = narration
        self.talk: Talk | None = None
        self.options = ConversationOptions(
            cwd=working_directory(server, arguments),
            agent=arguments.agent,
            model=arguments.model,
            policy=NEVER if arguments.yes else ALWAYS,
        )
        self._policy_given = arguments.yes or arguments.ask
        self._asking = AskInTerminal(narration)
        self._resumed = arguments.resume
        self._latest = arguments.latest
        from gateway.cli.talk.line_editor import (
            LineEditor,  # late: not every installation has the library that it draws with
        )

        state: Path = state_directory(arguments.state, os.environ)
        self._editor = LineEditor(state, self._commands)

    def run(self) -> int:
        """Read and answer until the person leaves."""
        # During the whole chat: a Ctrl-D typed between two terminal modes would be lost.
        with unseen_typing():
            return self._run()

    def _run(self) -> int:
        leaving = False
        try:
            self._begin()
            while True:
                try:
                    text = self._editor.message()
                except KeyboardInterrupt:
                    if leaving:
                        return INTERRUPTED
                    leaving = True
                    self.narration.note("press Ctrl-C again, or Ctrl-D, to leave")
                    continue
                leaving = False
                self._take(text)
        except (EOFError, Leave):
            return 0
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            self.narration.end()
            self._take_leave()

    def send(self, text: str) -> None:
        """Send a message and wait for the answer. Raises Unreachable, KeyboardInterrupt."""
        try:
            talk = self.talk or Talk(self.server, new_id(), self.narration, self._asking)
            with talk.obeying_interrupts():
                if self.talk is None:
                    self._start(talk, text)
                else:
                    talk.say(text)
                if talk.outcome().status == "paused":
                    self.narration.note("interrupted")
        except Unreachable:
            raise
        except Failure as error:
            self.narration.line(f"ostler: {one_line(str(error))}", "bad")

    def forget(self) -> None:
        """Let the next message begin a new conversation."""
        self.talk = None
        self._asking.always = False

    def info(self) -> dict[str, Any] | None:
        """The conversation as the server has it; None before the first message. Raises Failure."""
        if self.talk is None:
            return None
        found: dict[str, Any] = self.server.get(f"/api/conversations/{self.talk.id}")
        return found

    # -- parts --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._resumed or self._latest:
            found = self.server.conversation_id(self._resumed) if self._resumed else self.server.newest()
            talk = Talk(self.server, found, self.narration, self._asking)
            before = talk.join()
            self.talk = talk
            info = self.info() or {}
            self.options = self.options._replace(cwd=info["workspace"]["working_dir"])
            if self._policy_given:
                talk.set_policy(self.options.policy)
            self.narration.note(
                f"{info.get('title') or 'conversation'} ({found[:SHOWN_ID]}) in {self.options.cwd}"
            )
            self._show(before)
            if talk.track.status not in (*ENDED, "idle", ""):
                with talk.obeying_interrupts():
                    talk.outcome()
            return
        agent = self.options.agent or agent_key(self.server.get("/api/settings")["agent_settings"]) or "agent"
        self.narration.line(f"{agent} in {self.options.cwd}")
        self.narration.note(
            "Enter sends, Alt-Enter begins a new line, /help lists the commands, Ctrl-D leaves."
        )

    def _show(self, items: list[Item]) -> None:
        said = [
            item for item in items if isinstance(item, UserSaid) or (isinstance(item, Said) and item.text)
        ]
        for item in said[-SHOWN_BEFORE:]:
            if isinstance(item, UserSaid):
                self.narration.line(f"> {item.text}", "quiet" if item.note else "bold")
            elif item.kind == "text":
                self.narration.line(item.text)

    def _take(self, text: str) -> None:
        if not text.strip():
            return
        if text.startswith("/"):
            try:
                if perform(self, text):
                    return
            except Unreachable:
                raise
            except Failure as error:
                self.narration.line(f"ostler: {one_line(str(error))}", "bad")
                return
        self.send(text)

    def _commands(self) -> list[tuple[str, str]]:
        own = [(command.name, command.summary) for command in COMMANDS.values()]
        return own + list(self.talk.track.commands if self.talk is not None else ())

    def _start(self, talk: Talk, text: str) -> None:
        """A new conversation that begins with this message. Raises Failure."""
        self.narration.installs = where_installed(self.server, self.options.agent)
        create(self.server, start_request(self.server, talk.id, self.options, text), self.options.agent)
        talk.begin(text)
        self.talk = talk

    def _take_leave(self) -> None:
        if self.talk is not None:
            try:
                self.server.get(f"/api/conversations/{self.talk.id}")
            except (Missing, Unreachable):
                return
            except Failure:
                pass
            self.narration.note(f"continue with: ostler chat --resume {self.talk.id[:SHOWN_ID]}")
