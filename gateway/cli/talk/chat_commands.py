"""Slash commands of a chat. Ostler handles those listed here; all others go to the agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from gateway.cli.client import Server
from gateway.cli.suggest import did_you_mean
from gateway.cli.talk.narration import Narration
from gateway.cli.talk.start_request import ALWAYS, NEVER, ConversationOptions
from gateway.cli.talk.talk import Talk

POLICIES: Final = {"ask": ALWAYS, "allow": NEVER}
POLICY_WORDS: Final = {
    "AlwaysConfirm": "ask: you are asked each time the agent asks for permission",
    "NeverConfirm": "allow: every request of the agent is allowed",
    "ConfirmRisky": "risky: you are asked about risky actions",
}


class Chat(Protocol):
    """What the commands use of a chat: `chat.Chat`."""

    server: Server
    narration: Narration
    talk: Talk | None
    options: ConversationOptions

    def info(self) -> dict[str, Any] | None:
        """The conversation as the server has it; None before there is one."""

    def forget(self) -> None:
        """End the conversation; the next message begins another."""

    def send(self, text: str) -> None:
        """Send a message and wait for the answer."""


class Leave(Exception):
    """The person leaves."""


class Command(NamedTuple):
    """A command of Ostler. `perform` gets the text after its name; None: the server answers it."""

    name: str
    summary: str
    perform: Callable[[Chat, str], None] | None


def perform(chat: Chat, text: str) -> bool:
    """Run a line with a slash. Returns False if it is a message for the agent. Raises Leave, Failure."""
    name, _, rest = text[1:].partition(" ")
    command = COMMANDS.get(name.strip())
    if command is not None:
        if command.perform is None:
            return False
        command.perform(chat, rest.strip())
        return True
    theirs = [each for each, _ in chat.talk.track.commands] if chat.talk is not None else []
    hint = did_you_mean(name, [*COMMANDS, *theirs])
    if name.split("\n")[0] in theirs or not (theirs or hint):
        return False  # it may be one of the agent's commands, which it has not announced yet
    hint = hint or "; /help lists them"
    chat.narration.line(f"there is no command /{name}{hint}", "bad")
    return True


def _help(chat: Chat, rest: str) -> None:
    for command in COMMANDS.values():
        chat.narration.line(f"  /{command.name:<12} {command.summary}")
    if chat.talk is not None and chat.talk.track.commands:
        chat.narration.line("commands of the agent:")
        for name, summary in chat.talk.track.commands:
            chat.narration.line(f"  /{name:<12} {summary}")
    chat.narration.note("Enter sends; Alt-Enter, or a backslash at the end of a line, begins a new one.")


def _exit(chat: Chat, rest: str) -> None:
    raise Leave


def _new(chat: Chat, rest: str) -> None:
    chat.forget()
    chat.narration.note("a new conversation begins with the next message")
    if rest:
        chat.send(rest)


def _stop(chat: Chat, rest: str) -> None:
    if chat.talk is None:
        chat.narration.note("no agent is running yet")
        return
    chat.server.post(f"/api/agents/{chat.talk.id}/stop")
    chat.narration.note("the agent is stopped; the next message starts it again")


def _interrupt(chat: Chat, rest: str) -> None:
    if chat.talk is None:
        chat.narration.note("no turn is running")
        return
    chat.server.post(f"/api/conversations/{chat.talk.id}/interrupt")
    chat.narration.note("interrupted")


def _model(chat: Chat, rest: str) -> None:
    info = chat.info() or {}
    if rest:
        chat.options = chat.options._replace(model=rest)
        _for_the_next(chat, f"model {rest}")
        return
    current = info.get("current_model_id") or chat.options.model
    chat.narration.line(f"model: {current or 'default of the agent'}")
    for model in info.get("available_models") or ():
        chat.narration.line(f"  {model['model_id']:<24} {model.get('name') or ''}")
    chat.narration.note("/model NAME chooses one for the next conversation")


def _mode(chat: Chat, rest: str) -> None:
    if rest:
        chat.options = chat.options._replace(mode=rest)
        _for_the_next(chat, f"mode {rest}")
        return
    option = next((each for each in _options(chat) if each.get("category") == "mode"), None)
    chat.narration.line(
        f"mode: {(option or {}).get('currentValue') or chat.options.mode or 'default of the agent'}"
    )
    for choice in (option or {}).get("options") or ():
        if isinstance(choice, dict) and choice.get("value"):
            chat.narration.line(
                f"  {choice['value']:<24} {choice.get('description') or choice.get('name') or ''}"
            )
    chat.narration.note("/mode NAME chooses one for the next conversation")


def _options(chat: Chat) -> list[dict[str, Any]]:
    options = chat.talk.track.options if chat.talk is not None else []
    return [each for each in options if isinstance(each, dict)]


def _for_the_next(chat: Chat, what: str) -> None:
    if chat.talk is None:
        chat.narration.note(f"{what}, beginning with the first message")
    else:
        chat.narration.note(
            f"{what} in the next conversation; this one keeps its own. /new begins a new conversation"
        )


def _permissions(chat: Chat, rest: str) -> None:
    if rest:
        policy = POLICIES.get(rest)
        if policy is None:
            chat.narration.line("usage: /permissions ask, or /permissions allow", "bad")
            return
        chat.options = chat.options._replace(policy=policy)
        if chat.talk is not None:
            chat.talk.set_policy(policy)
    info = chat.info()
    kind = str((chat.options.policy if info is None else info["confirmation_policy"]).get("kind"))
    chat.narration.line(POLICY_WORDS.get(kind, kind))


COMMANDS: Final = {
    command.name: command
    for command in (
        Command("help", "list the commands", _help),
        Command("exit", "leave", _exit),
        Command("new", "begin a new conversation", _new),
        Command("stop", "stop the agent; the next message starts it again", _stop),
        Command("interrupt", "interrupt the running turn, even one that another client started", _interrupt),
        Command("model", "show the models, or choose one", _model),
        Command("mode", "show the agent's modes, or choose one", _mode),
        Command("permissions", "show or choose the permission policy: ask, allow", _permissions),
        Command("mcp", "show the MCP servers of this conversation", None),
    )
}
"""By name."""
