"""`ostler chat`: an interactive conversation with an agent.

Ostler handles the slash commands of COMMANDS; those that the agent has named go to it.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from gateway.cli.agents.names import agent_key
from gateway.cli.client import ACTION_SECONDS, Server
from gateway.cli.failures import BadInput, Failure, Missing, Unreachable
from gateway.cli.locations import state_directory
from gateway.cli.operate.processes import stopped
from gateway.cli.suggest import did_you_mean
from gateway.cli.talk.enclosures import not_found, parts
from gateway.cli.talk.narration import Narration
from gateway.cli.talk.question import unseen_typing
from gateway.cli.talk.start_request import (
    ALWAYS,
    NEVER,
    ConversationOptions,
    continued,
    introduced,
    refuse_new_options,
)
from gateway.cli.talk.talk import INTERRUPTED, AskInTerminal, Talk
from gateway.cli.talk.temporary import found_or_started
from gateway.cli.talk.track import AT_REST, Item, Said, UserSaid
from gateway.cli.terminal import asks, console
from gateway.cli.text import SHORT_ID, one_line, used
from supervisor.extras import missing

SHOWN_BEFORE: Final = 6
"""Messages shown when a conversation is continued: enough to remember where it stands."""

SEPARATOR: Final = " · "

POLICIES: Final = {"ask": ALWAYS, "allow": NEVER}
POLICY_WORDS: Final = {
    "AlwaysConfirm": "ask: you are asked each time the agent asks for permission",
    "NeverConfirm": "allow: every request of the agent is allowed",
    "ConfirmRisky": "risky: you are asked about risky actions",
}


def run(arguments: Namespace) -> int:
    """Run the chat until the user leaves. Returns the exit status. Raises Failure."""
    if not (asks() and sys.stdout.isatty()):
        raise BadInput("chat requires a terminal; use `ostler run` in scripts and pipes")
    refuse_new_options(arguments)
    if (advice := missing("cli", "ostler chat")) is not None:
        raise Failure(f"{advice}; `ostler run` works without it")
    narration = Narration(console(sys.stdout))
    with found_or_started(arguments, os.environ, narration.note) as server:
        return Chat(server, arguments, narration).run()


class Leave(Exception):
    """The user leaves."""


class Chat:
    """A chat. `_talk` is None before the first message; `_options` describes the next conversation."""

    def __init__(self, server: Server, arguments: Namespace, narration: Narration) -> None:
        self._server = server
        self._narration = narration
        self._talk: Talk | None = None
        self._unused = False
        """Whether the conversation was opened for a choice, and has no message yet."""
        self._options = ConversationOptions.of(server, arguments)
        self._policy_given = arguments.yes or arguments.ask
        self._asking = AskInTerminal(narration)
        self._arguments = arguments
        self._images: list[str] = arguments.image
        """Of the next message."""
        # Late: not every installation has the library that it draws with.
        from gateway.cli.talk.line_editor import line_editor

        self._ask_for_message = line_editor(
            state_directory(arguments.state, os.environ),
            commands=self._commands,
            directory=self._directory,
            next_mode=self._next_mode,
            above=self._standing,
        )

    def run(self) -> int:
        """Read and answer until the user leaves."""
        # During the whole chat: a Ctrl-D typed between two terminal modes would be lost.
        with unseen_typing():
            try:
                self._begin()
                return self._converse()
            except (EOFError, Leave):
                return 0
            except KeyboardInterrupt:
                return INTERRUPTED
            finally:
                self._narration.end()
                self._take_leave()

    def _converse(self) -> int:
        leaving = False
        while True:
            try:
                text = self._ask_for_message()
            except KeyboardInterrupt:
                if leaving:
                    return INTERRUPTED
                leaving = True
                self._narration.note("press Ctrl-C again, or Ctrl-D, to leave")
                continue
            leaving = False
            try:
                if text.strip() and not (text.startswith("/") and self._perform(text)):
                    self._send(text)
            except Unreachable:
                raise
            except Failure as error:
                self._narration.line(f"ostler: {one_line(str(error))}", "bad")

    def _send(self, text: str) -> None:
        """Send a message and wait for the answer. Raises Failure, KeyboardInterrupt."""
        talk = self._talk or Talk(self._server, None, self._narration, self._asking)
        message = parts(text, self._images, self._directory())
        if missing_files := not_found(text, self._directory()):
            self._narration.note(f"there is no file {', '.join(missing_files)}: only the words are sent")
        with talk.obeying_interrupts():
            if self._talk is None:
                talk.begin(self._options, message)
                self._talk = talk
            else:
                talk.say(message)
            self._images, self._unused = [], False
            if talk.outcome().status == "paused":
                self._narration.note("interrupted")
            talk.follow_up()

    def _info(self) -> dict[str, Any] | None:
        """The conversation as the server has it; None before the first message. Raises Failure."""
        if self._talk is None:
            return None
        found: dict[str, Any] = self._server.get(f"/api/conversations/{self._talk.id}")
        return found

    def _begin(self) -> None:
        found = continued(self._server, self._arguments)
        if found is not None:
            talk = Talk(self._server, found, self._narration, self._asking)
            talk.recall()
            before = talk.join()
            self._talk = talk
            info = self._info() or {}
            self._options = self._options._replace(cwd=info["workspace"]["working_dir"])
            if self._policy_given:
                talk.set_policy(self._options.policy)
            self._narration.note(introduced(info))
            talk.link()
            self._show(before)
            if talk.track.status not in AT_REST:
                with talk.obeying_interrupts():
                    talk.outcome()
            return
        agent = (
            self._options.agent or agent_key(self._server.get("/api/settings")["agent_settings"]) or "agent"
        )
        self._narration.line(f"{agent} in {self._options.cwd}")
        self._narration.note(
            "Enter sends, Alt-Enter begins a new line, /help lists the commands, Ctrl-D leaves."
        )

    def _show(self, items: list[Item]) -> None:
        said = [
            item for item in items if isinstance(item, UserSaid) or (isinstance(item, Said) and item.text)
        ]
        for item in said[-SHOWN_BEFORE:]:
            if isinstance(item, UserSaid) and not item.note:
                self._narration.line(f"> {item.text}", "bold")
            elif isinstance(item, UserSaid):
                self._narration.tell(item)
            elif item.kind == "text":
                self._narration.tell(item)
                self._narration.tell(Said("text", "", ends=True))

    def _directory(self) -> Path:
        """Where `@PATH` is looked for: the agent's directory, if that is on this machine."""
        path = Path(self._options.cwd)
        return path if self._server.local and path.is_dir() else Path.cwd()

    def _standing(self) -> str:
        """The line above the input: model, mode, and what the conversation has used."""
        if self._talk is None:
            return ""
        track = self._talk.track
        return SEPARATOR.join(filter(None, (track.model, track.modes[0], used(track.stats))))

    def _next_mode(self) -> None:
        current, offered = self._talk.track.modes if self._talk is not None else ("", [])
        values = [value for value, _ in offered]
        if self._talk is None or not values:
            self._narration.note("the agent has named no modes yet; it does when it starts")
            return
        number = values.index(current) + 1 if current in values else 0
        try:
            with unseen_typing():
                self._talk.switch("mode", values[number % len(values)])
        except Failure as error:
            self._narration.line(f"ostler: {one_line(str(error))}", "bad")

    def _commands(self) -> list[tuple[str, str]]:
        own = [(name, command.summary) for name, command in COMMANDS.items()]
        return own + list(self._talk.track.commands if self._talk is not None else ())

    def _take_leave(self) -> None:
        self._discard()
        if self._talk is not None:
            try:
                self._server.get(f"/api/conversations/{self._talk.id}")
            except (Missing, Unreachable):
                return
            except Failure:
                pass
            self._narration.note(f"continue with: ostler chat --resume {self._talk.id[:SHORT_ID]}")

    # -- slash commands -----------------------------------------------------------------------------------

    def _perform(self, text: str) -> bool:
        """Run a line with a slash. Returns False if it is a message for the agent. Raises Leave, Failure."""
        name, _, rest = text[1:].partition(" ")
        if not name.strip() or "/" in name:
            return False  # a path, not a command
        command = COMMANDS.get(name.strip())
        if command is not None:
            if command.perform is None:
                return False
            command.perform(self, rest.strip())
            return True
        name = name.split()[0]
        theirs = self._theirs()
        hint = did_you_mean(name, [*COMMANDS, *theirs])
        if not (theirs or hint):
            # Only the agent knows; it may have named them since.
            if self._talk is None:
                self._open()
            else:
                self._talk.follow_up()
            theirs = self._theirs()
            hint = did_you_mean(name, theirs)
        if name in theirs:
            return False
        said = (
            f"there is no command /{name}{hint}"
            if hint
            else f"the agent has no command /{name}; /help lists them"
        )
        self._narration.line(said, "bad")
        return True

    def _theirs(self) -> list[str]:
        return [each for each, _ in self._talk.track.commands] if self._talk is not None else []

    def _help(self, rest: str) -> None:
        for name, command in COMMANDS.items():
            self._narration.line(f"  /{name:<12} {command.summary}")
        if self._talk is not None and self._talk.track.commands:
            self._narration.line("commands of the agent:")
            for name, summary in self._talk.track.commands:
                self._narration.line(f"  /{name:<12} {summary}")
        self._narration.note(
            "Enter sends; Alt-Enter, or a backslash at the end of a line, begins a new one. @PATH sends a "
            "file along. Shift-Tab chooses the agent's next mode."
        )

    def _exit(self, rest: str) -> None:
        raise Leave

    def _discard(self) -> None:
        """Delete the conversation where it has no message."""
        if self._talk is not None and self._unused:
            with suppress(Failure):
                path = f"/api/conversations/{self._talk.id}"
                self._server.call("DELETE", path, seconds=ACTION_SECONDS)
            self._talk, self._unused = None, False

    def _new(self, rest: str) -> None:
        self._discard()
        self._talk = None
        self._asking.always = False
        self._narration.note("a new conversation begins with the next message")
        if rest:
            self._send(rest)

    def _stop(self, rest: str) -> None:
        if self._talk is None or not stopped(self._server, self._talk.id):
            self._narration.note("no agent is running")
            return
        self._narration.note("the agent is stopped; the next message starts it again")

    def _interrupt(self, rest: str) -> None:
        info = self._info()
        if self._talk is None or info is None or info["execution_status"] in AT_REST:
            self._narration.note("no turn is running")
            return
        self._server.post(f"/api/conversations/{self._talk.id}/interrupt")
        self._narration.note("interrupted")

    def _model(self, rest: str) -> None:
        if rest:
            self._switch("model", rest)
            return
        info = self._info() or {}
        models = [
            (str(each["model_id"]), str(each.get("name") or ""))
            for each in info.get("available_models") or ()
        ]
        self._list("model", info.get("current_model_id") or self._options.model, models)

    def _mode(self, rest: str) -> None:
        if rest:
            self._switch("mode", rest)
            return
        current, offered = self._talk.track.modes if self._talk is not None else ("", [])
        self._list("mode", current or self._options.mode, offered)

    def _list(self, what: str, current: str | None, offered: list[tuple[str, str]]) -> None:
        self._narration.line(f"{what}: {current or 'default of the agent'}")
        for value, words in offered:
            self._narration.line(f"  {value:<24} {words}")
        self._narration.note(f"/{what} NAME chooses another one")

    def _open(self) -> Talk:
        """Start the agent before the first message, for what it offers. Raises Failure."""
        self._narration.note("starting the agent, which knows what there is")
        talk = Talk(self._server, None, self._narration, self._asking)
        talk.open(self._options)
        self._talk, self._unused = talk, True
        return talk

    def _switch(self, what: Literal["mode", "model"], value: str) -> None:
        # Only the agent knows what it offers.
        talk = self._talk or self._open()
        talk.switch(what, value)
        self._options = (
            self._options._replace(mode=value) if what == "mode" else self._options._replace(model=value)
        )
        self._narration.note(f"{what} {value}")

    def _permissions(self, rest: str) -> None:
        if rest:
            policy = POLICIES.get(rest)
            if policy is None:
                self._narration.line("usage: /permissions ask, or /permissions allow", "bad")
                return
            self._options = self._options._replace(policy=policy)
            if self._talk is not None:
                self._talk.set_policy(policy)
        info = self._info()
        kind = str((self._options.policy if info is None else info["confirmation_policy"]).get("kind"))
        self._narration.line(POLICY_WORDS.get(kind, kind))


class Command(NamedTuple):
    """A command of Ostler. `perform` gets the text after its name; None: the server answers it."""

    summary: str
    perform: Callable[[Chat, str], None] | None


COMMANDS: Final = {
    "help": Command("list the commands", Chat._help),
    "exit": Command("leave", Chat._exit),
    "new": Command("begin a new conversation", Chat._new),
    "stop": Command("stop the agent; the next message starts it again", Chat._stop),
    "interrupt": Command("interrupt the running turn, even one that another client started", Chat._interrupt),
    "model": Command("show the models, or choose one", Chat._model),
    "mode": Command("show the agent's modes, or choose one", Chat._mode),
    "permissions": Command("show or choose the permission policy: ask, allow", Chat._permissions),
    "mcp": Command("show the MCP servers of this conversation", None),
}
"""By name."""
