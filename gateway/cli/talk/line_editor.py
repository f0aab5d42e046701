"""The input line of a chat: several lines long, with history and completion."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter, merge_completers
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.styles import Style

from gateway.cli.text import cut, one_line

HISTORY_FILE: Final = "chat-history"

HELP_COLUMNS: Final = 60

FILES_OFFERED: Final = 1_000
"""The most files of a directory offered for completion: a longer list does not help, and is slow."""

Commands = Callable[[], Iterable[tuple[str, str]]]
"""The commands there are now, without the slash, and what each does."""


def line_editor(
    state: Path,
    *,
    commands: Commands,
    directory: Callable[[], Path],
    next_mode: Callable[[], None],
    above: Callable[[], str],
) -> Callable[[], str]:
    """Return what asks for one message after another. The history is in `state`, readable by this user alone.

    `directory`: where `@PATH` is looked for. `next_mode`: what Shift-Tab does; it may write, and take its
    time. `above`: the line above the input; empty for none.

    It raises KeyboardInterrupt (Ctrl-C) and EOFError (Ctrl-D on an empty line).
    """
    completer = merge_completers([_CommandCompleter(commands), _FileCompleter(directory)])
    session: PromptSession[str] = PromptSession(
        history=_history(state / HISTORY_FILE),
        completer=completer,
        complete_while_typing=True,
        key_bindings=_bindings(completer, next_mode),
        multiline=True,
        prompt_continuation="  ",
    )

    def prompt() -> FormattedText:
        text = one_line(above())
        return FormattedText([("class:above", f"{text}\n" if text else ""), ("", "> ")])

    return partial(session.prompt, prompt, style=Style.from_dict({"above": "ansibrightblack"}))


def _history(path: Path) -> History:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def _bindings(completer: Completer, next_mode: Callable[[], None]) -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline()
        else:
            buffer.validate_and_handle()

    @bindings.add("tab")
    def complete(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        found = list(completer.get_completions(buffer.document, CompleteEvent(completion_requested=True)))
        if buffer.complete_state is not None:
            buffer.complete_next()
        elif len(found) == 1:
            buffer.apply_completion(found[0])
        else:
            buffer.start_completion(select_first=False)

    @bindings.add("s-tab")
    def choose_next_mode(event: KeyPressEvent) -> None:
        if event.current_buffer.complete_state is not None:
            event.current_buffer.complete_previous()
        else:
            run_in_terminal(next_mode, in_executor=True)

    @bindings.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline()

    return bindings


class _FileCompleter(Completer):
    """The files behind an @."""

    def __init__(self, directory: Callable[[], Path]) -> None:
        self._paths = PathCompleter(get_paths=lambda: [str(directory())], expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        word = document.get_word_before_cursor(WORD=True)
        if word.startswith("@"):
            yield from islice(self._paths.get_completions(Document(word[1:]), complete_event), FILES_OFFERED)


class _CommandCompleter(Completer):
    def __init__(self, commands: Commands) -> None:
        self._commands = commands

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        text = document.text
        if not text.startswith("/") or any(character.isspace() for character in text):
            return
        for name, summary in self._commands():
            if name.startswith(text[1:]):
                shown = cut(one_line(summary), HELP_COLUMNS)
                yield Completion(f"/{name}", start_position=-len(text), display_meta=shown)
