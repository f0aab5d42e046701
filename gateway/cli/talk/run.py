"""`ostler run`: run one prompt, show its progress, and print the answer."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

from rich.console import Console

from gateway.cli.client import ACTION_SECONDS, Server
from gateway.cli.failures import BadInput, Failure, Missing
from gateway.cli.locations import read_known, state_directory
from gateway.cli.operate.notify import Caller
from gateway.cli.present import warn
from gateway.cli.suggest import did_you_mean
from gateway.cli.talk.enclosures import Parts, parts
from gateway.cli.talk.narration import Narration
from gateway.cli.talk.start_request import (
    ALWAYS,
    NEVER,
    ConversationOptions,
    continued,
    introduced,
    refuse_new_options,
)
from gateway.cli.talk.talk import Ask, AskInTerminal, Outcome, RefuseAll, Talk
from gateway.cli.talk.temporary import found_or_started
from gateway.cli.talk.track import Called, Failed, Item, Said
from gateway.cli.tasks import ENDING, handling, heard
from gateway.cli.terminal import asks, console
from gateway.cli.text import SHORT_ID, clean

MOST_BYTES: Final = 8 * 1024 * 1024
"""Bytes read from standard input: four times what fits into a request."""

INPUT_SECONDS: Final = 3.0
"""Seconds in which a pipe has to bring something where there is a prompt, too: a program writes at once or
after some work, and a pipe that only stays open would be waited for in vain."""

LEAVE_SECONDS: Final = 4.0
"""Seconds for each of two requests of a command that is to end: container runtimes kill after ten."""

MODELS_NAMED: Final = 20
"""Models that a message names: some agents have hundreds."""

SHOWN_FRAMES: Final = frozenset({"durable", "item_started", "delta", "tool_output", "item_aborted", "error"})
"""Types of frames that `--json` prints; the others are internal."""


def run(arguments: Namespace) -> int:
    """Run one turn; its exit status (`talk.Outcome`). Raises Failure."""
    message = parts(read_prompt(arguments.prompt), arguments.image)
    if arguments.ask and not (asks() or arguments.detach):
        raise BadInput("--ask requires a terminal on standard input")
    refuse_new_options(arguments)
    if arguments.detach:
        if arguments.notify is not None:
            raise BadInput("--detach does not wait; `ostler wait ID --notify COMMAND` does")
        return _detach(arguments, message)
    on_terminal = sys.stdout.isatty() and not arguments.json
    quiet = arguments.quiet or arguments.json
    narration = (
        Narration(console(sys.stdout), quiet=quiet)
        if on_terminal
        else WithoutAnswer(console(sys.stderr), quiet=quiet)
    )
    with found_or_started(arguments, os.environ, narration.note) as server:
        existing = continued(server, arguments)
        lived = existing is not None and _lives(server, existing)
        ask: Ask = AskInTerminal(narration) if asks() else RefuseAll(narration)
        talk = Talk(server, existing, narration, ask, partial(_seen, arguments))
        talk.caller = Caller(arguments.notify)
        talk.again = f"send the message again with `ostler run --resume {talk.id[:SHORT_ID]}`"
        ours = not (server.temporary or lived)
        with _ending(talk, narration, ours=ours):
            outcome = _turn(talk, existing, arguments, message)
            _report(outcome, arguments, narration)
        if ours:
            _end_agent(server, outcome.conversation_id, narration)
    return outcome.exit_status


class _Ended(SystemExit):
    """A signal asks the command to end."""


@contextmanager
def _ending(talk: Talk, narration: Narration, *, ours: bool) -> Iterator[None]:
    """On SIGTERM and SIGHUP interrupt the turn, and end the agent if it is `ours`; then exit, with status 128
    and the number."""

    def end(number: int, frame: object) -> None:
        raise _Ended(128 + number)

    try:
        with handling(heard(signal.SIGTERM, signal.SIGHUP), end):
            yield
    except _Ended:
        with handling(ENDING, signal.SIG_IGN):
            done = _cut_short(talk, ours=ours)
            with suppress(OSError):  # the terminal may be gone
                narration.end()
                narration.note(f"ended by a signal: {done}")
        raise


def _cut_short(talk: Talk, *, ours: bool) -> str:
    """Interrupt the turn and stop its agent, each within a bound. Returns what was done."""
    short = talk.id[:SHORT_ID]
    steps = [f"/api/conversations/{talk.id}/interrupt"]
    if ours:
        steps.append(f"/api/agents/{talk.id}/stop")  # also where the agent does not obey the first
    failure: Failure | None = None
    for path in steps:
        try:
            talk.server.call("POST", path, seconds=LEAVE_SECONDS)
        except Missing:
            return "the turn has not begun"
        except Failure as error:
            failure = error
        else:
            failure = None
    if failure is not None:
        return f"the turn may continue, `ostler stop {short}` ends it: {failure}"
    done = "the turn is interrupted, and its agent stopped" if ours else "the turn is interrupted"
    return f"{done}; continue with: ostler run --resume {short}"


def _detach(arguments: Namespace, message: Parts) -> int:
    """Begin the turn on a server that stays, and print the conversation's id. Raises Failure."""
    env = {**os.environ, **({"OSTLER_STATE": arguments.state} if arguments.state else {})}
    server = Server.of_state(arguments.url, env)
    named = arguments.url or env.get("OSTLER_URL")
    if not named and read_known(state_directory(arguments.state, env)) is not None:
        raise Failure(
            "--detach requires a server that stays, not a temporary one; start it with `ostler serve`"
        )
    narration = Narration(console(sys.stderr), quiet=arguments.quiet or arguments.json)
    existing = continued(server, arguments)
    talk = Talk(server, existing, narration, RefuseAll(narration))
    if existing is None:
        talk.begin(ConversationOptions.of(server, arguments), message)
    else:
        if arguments.yes or arguments.ask:
            talk.set_policy(NEVER if arguments.yes else ALWAYS)
        talk.say(message)
    print(json.dumps({"conversation_id": talk.id}) if arguments.json else talk.id, flush=True)
    short = talk.id[:SHORT_ID]
    narration.note(f"`ostler wait {short}` waits for it, `ostler attach {short}` shows it and its questions")
    return 0


class WithoutAnswer(Narration):
    """Holds the agent's last message back: it is the answer, which standard output gets."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        super().__init__(console, quiet=quiet)
        self._held = ""
        self._whole = False

    def tell(self, item: Item) -> None:
        """Write an item, and before it the message that it shows not to be the last."""
        if isinstance(item, Said) and item.kind == "text":
            if self._whole and item.text:
                self.release()
            self._held += item.text
            self._whole = item.ends
            return
        if isinstance(item, Said | Called | Failed):
            self.release()
        super().tell(item)

    def release(self, answer: str = "") -> None:
        """Write what is held, unless it is the answer."""
        held, self._held, self._whole = self._held, "", False
        if held.strip() != answer.strip():
            super().tell(Said("text", held))
            super().tell(Said("text", "", ends=True))


def read_prompt(words: list[str]) -> str:
    """Read the prompt: the words, and what standard input has. A `-` at the end waits for it. Raises
    BadInput."""
    waits = words[-1:] == ["-"] or not (words or asks())
    text = " ".join(words[:-1] if words[-1:] == ["-"] else words)
    given = _standard_input() if waits or (not asks() and _ready()) else ""
    text = f"{text}\n\n{given}" if text and (given.strip() or waits) else text or given
    if not text.strip():
        raise BadInput('give a prompt: ostler run "What is in this directory?"')
    return text


def _standard_input() -> str:
    data = b"" if sys.stdin is None else sys.stdin.buffer.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise BadInput(f"standard input holds more than {MOST_BYTES // 1024 // 1024} MiB")
    return data.decode(errors="replace")


def _ready() -> bool:
    """Whether standard input has something, or its end. A service's may be a pipe in which nothing ever
    comes."""
    try:
        readable, _, _ = select.select([sys.stdin], [], [], INPUT_SECONDS)
    except (ValueError, OSError, TypeError):  # it is closed, or was from the beginning
        return False
    if not readable:
        warn(f"standard input is not read: nothing came within {INPUT_SECONDS:g} s; a `-` at the end waits")
    return bool(readable)


def _turn(talk: Talk, existing: str | None, arguments: Namespace, message: Parts) -> Outcome:
    server = talk.server
    if existing is not None:
        talk.narration.note(f"continuing {introduced(server.get(f'/api/conversations/{existing}'))}")
        talk.link()
    with talk.obeying_interrupts():
        if existing is None:
            talk.begin(ConversationOptions.of(server, arguments), message)
        else:
            talk.join()
            if arguments.yes or arguments.ask:
                talk.set_policy(NEVER if arguments.yes else ALWAYS)
            if arguments.yes and talk.track.status == "waiting_for_confirmation":
                with suppress(Missing):
                    server.post(
                        f"/api/conversations/{talk.id}/events/respond_to_confirmation", {"accept": True}
                    )
            talk.say(message)
        try:
            return talk.outcome()
        except ModelRefused as refused:
            raise BadInput(_undo(server, talk.id, arguments.model, str(refused))) from None


def _lives(server: Server, conversation_id: str) -> bool:
    """Whether the conversation's agent runs already, for another client."""
    agents = server.get("/api/agents")["agents"]
    return any(each["conversation_id"] == conversation_id and each["pid"] for each in agents)


def _end_agent(server: Server, conversation_id: str, narration: Narration) -> None:
    """End the agent, which would stay for half an hour; not where it is in use, or would lose its memory."""
    path = f"/api/agents/{conversation_id}"
    with suppress(Failure):
        agent = server.get(path)
        if agent["pid"] is None:
            return
        if agent["idle"] is not None and agent.get("restorable"):
            server.post(f"{path}/stop")
        else:
            short = conversation_id[:SHORT_ID]
            narration.note(f"its agent stays until it was idle for a while; `ostler stop {short}` ends it")


class ModelRefused(Exception):
    """The agent does not take the model that was asked for, and would continue with another one."""


def _seen(arguments: Namespace, frame: Mapping[str, Any]) -> None:
    match frame:
        case {"event": {"key": "agent_option_refused", "value": {"option": "model", **refused}}}:
            if refused.get("value") == arguments.model:
                raise ModelRefused(refused.get("reason"))
    if arguments.json and frame.get("type") in SHOWN_FRAMES:
        print(json.dumps(frame, ensure_ascii=False), flush=True)


def _undo(server: Server, conversation_id: str, model: str, reason: str) -> str:
    """Delete the conversation, which has just begun. Returns the message, with the models that there are."""
    path = f"/api/conversations/{conversation_id}"
    models = [str(each["model_id"]) for each in server.get(path)["available_models"] or ()]
    server.call("DELETE", path, seconds=ACTION_SECONDS)
    what = f"the agent does not take the model {model!r}"
    if not models:
        return f"{what}: {reason}"
    more = ", ..." if len(models) > MODELS_NAMED else ""
    return f"{what}{did_you_mean(model, models)}; it has: {', '.join(models[:MODELS_NAMED])}{more}"


def _report(outcome: Outcome, arguments: Namespace, narration: Narration) -> None:
    if arguments.json:
        print(json.dumps(outcome.dump(), ensure_ascii=False), flush=True)
        return
    separate = isinstance(narration, WithoutAnswer)
    answered = (separate or arguments.quiet) and outcome.status == "finished"
    if isinstance(narration, WithoutAnswer):
        narration.release(outcome.response if answered else "")
    if answered:
        print(clean(outcome.response), flush=True)
    how = {"paused": "interrupted", "stuck": "the agent is stuck", "error": "failed"}.get(
        outcome.status, outcome.status
    )
    count = f", {outcome.rejected} refused" if outcome.rejected else ""
    again = f"ostler run --resume {outcome.conversation_id[:8]}"
    narration.note(f"{how} after {outcome.seconds:.1f} s{count}; continue with: {again}")
