"""`ostler run`: run one prompt, show its progress, and print the answer."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from gateway.cli.client import Server
from gateway.cli.failures import BadInput, Missing
from gateway.cli.talk.enclosures import parts
from gateway.cli.talk.narration import Narration
from gateway.cli.talk.start_request import ALWAYS, NEVER, ConversationOptions, refuse_new_options
from gateway.cli.talk.talk import Ask, AskInTerminal, Outcome, RefuseAll, Talk
from gateway.cli.talk.temporary import found_or_started
from gateway.cli.terminal import asks, console
from gateway.cli.text import clean

MOST_BYTES: Final = 8 * 1024 * 1024
"""Bytes read from standard input: four times what fits into a request."""

SHOWN_FRAMES: Final = frozenset({"durable", "item_started", "delta", "tool_output", "item_aborted", "error"})
"""Types of frames that `--json` prints; the others are internal."""


def run(arguments: Namespace) -> int:
    """Run one turn; its exit status (`talk.Outcome`). Raises Failure."""
    prompt = read_prompt(arguments.prompt)
    if arguments.ask and not asks():
        raise BadInput("--ask requires a terminal on standard input")
    refuse_new_options(arguments)
    on_terminal = sys.stdout.isatty() and not arguments.json
    narration = Narration(
        console(sys.stdout if on_terminal else sys.stderr), quiet=arguments.quiet or arguments.json
    )
    with found_or_started(arguments, os.environ, narration.note) as server:
        outcome = _turn(server, arguments, prompt, narration)
        _report(outcome, arguments, narration, on_terminal)
    return outcome.exit_status


def read_prompt(words: list[str]) -> str:
    """Read the prompt: the words, and standard input for a `-` at the end or instead. Raises BadInput."""
    from_input = words[-1:] == ["-"] or (not words and not asks())
    text = " ".join(words[:-1] if words[-1:] == ["-"] else words)
    if from_input:
        data = b"" if sys.stdin is None else sys.stdin.buffer.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise BadInput(f"standard input holds more than {MOST_BYTES // 1024 // 1024} MiB")
        text = f"{text}\n\n{data.decode(errors='replace')}" if text else data.decode(errors="replace")
    if not text.strip():
        raise BadInput('give a prompt: ostler run "What is in this directory?"')
    return text


def _turn(server: Server, arguments: Namespace, prompt: str, narration: Narration) -> Outcome:
    existing = None
    if arguments.resume:
        existing = server.conversation_id(arguments.resume)
    elif arguments.latest:
        existing = server.newest()
    message = parts(prompt, arguments.image)
    ask: Ask = AskInTerminal(narration) if asks() else RefuseAll(narration)
    talk = Talk(server, existing, narration, ask, _print_frame if arguments.json else None)
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
        return talk.outcome()


def _print_frame(frame: Mapping[str, Any]) -> None:
    if frame.get("type") in SHOWN_FRAMES:
        print(json.dumps(frame, ensure_ascii=False), flush=True)


def _report(outcome: Outcome, arguments: Namespace, narration: Narration, on_terminal: bool) -> None:
    if arguments.json:
        print(json.dumps(outcome.dump(), ensure_ascii=False), flush=True)
        return
    if (not on_terminal or arguments.quiet) and outcome.status == "finished":
        print(clean(outcome.response), flush=True)
    how = {"paused": "interrupted", "stuck": "the agent is stuck", "error": "failed"}.get(
        outcome.status, outcome.status
    )
    count = f", {outcome.rejected} refused" if outcome.rejected else ""
    again = f"ostler run --resume {outcome.conversation_id[:8]}"
    narration.note(f"{how} after {outcome.seconds:.1f} s{count}; continue with: {again}")
