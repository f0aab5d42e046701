"""The progress of a conversation, written for a person to a terminal or a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.text import Text

from gateway.cli.talk.diff import MOST_LINES, Edit, edits, lines
from gateway.cli.talk.prose import Folding
from gateway.cli.talk.question import Question
from gateway.cli.talk.track import (
    Call,
    Called,
    CallEnded,
    Failed,
    Item,
    Planned,
    Said,
    State,
    UserSaid,
    block_text,
)
from gateway.cli.terminal import MEGABYTE, Installing, Waiting
from gateway.cli.text import clean, cut, one_line, without_codes

if TYPE_CHECKING:
    from gateway.cli.talk.markdown import Answer

TITLE_COLUMNS: Final = 100
OUTPUT_COLUMNS: Final = 160

ASKED_COLUMNS: Final = 4_000
ASKED_LINES: Final = 1_000
"""Limits of what is shown of a call that needs a confirmation: much larger, so that the user sees all of
it."""

SHOWN_SECONDS: Final = 0.1
"""Seconds from which on a duration is shown."""

PLAN_MARKS: Final = {"completed": ("✓", "good"), "in_progress": ("▸", ""), "pending": ("·", "quiet")}
BAD_MARK: Final = ("✗", "bad")
CALL_MARKS: Final = {
    "completed": ("✓", "good"),
    "failed": BAD_MARK,
    "rejected": BAD_MARK,
    "interrupted": BAD_MARK,
}
DIFF_STYLES: Final = {"+": "good", "-": "bad", "@": "quiet"}

THINKING: Final = "thinking"
AWAY: Final = "waiting for the server"

PHASES: Final = {
    "queued": "waiting for another agent to end",
    "installing": "installing the agent",
    "starting": "starting the agent",
    "restarting": "the agent ended; restarting it",
    "parked": "the agent crashed too often; `ostler restart` starts it again",
    "cancelling": "the agent is being interrupted",
}


class Narration:
    """Writes items in order. `quiet`: only what is necessary.

    `installs`: where the server on this machine installs agents, and which agent it is, to show the progress
    of an installation.
    """

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console = console
        self.installs: Callable[[], tuple[Path, str, int | None] | None] = lambda: None
        self._quiet = quiet
        self._waiting = Waiting(console)
        self._saying: str | None = None
        """The kind of the message that is open, None when none is."""
        self._answer: Answer | None = None
        """Where that is text on a terminal, what renders it."""
        self._folding: Folding | None = None
        self._on_screen = console.file.isatty()
        self._at_start = True
        """Whether the cursor is at the beginning of a line."""
        self._busy: str | None = None
        self._installing: Installing | None = None
        self._total: int | None = None
        self._missing = ""
        """The last line about MCP servers that the agent did not get."""
        self._running: dict[str, Call] = {}
        self._plan = Planned(())
        self._asked: set[str] = set()
        """The calls that a person was asked about: what they would do has been shown."""
        self._question: Question | None = None
        """The question that is open, None when none is."""
        self._about: list[tuple[object, ...]] = []
        """What the question has shown of its calls."""

    # -- progress ---------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Note that a turn begins."""
        self._busy = THINKING
        self._running.clear()
        self._asked.clear()
        self._plan = Planned(())
        self.tick()

    def end(self) -> None:
        """End the narration: finish the line, remove the activity line."""
        self._busy = None
        self._close()
        self._waiting.hide()

    def tick(self) -> None:
        """Show activity while nothing is written. Call it twice a second."""
        if self._answer is not None:
            self._answer.draw()
        if self._busy is None or self._quiet or not self._at_start:
            return
        if self._installing is not None:
            self._waiting.show(self._busy, done=self._installing.measured(), total=self._total)
        elif self._running and self._busy != AWAY:
            *others, last = self._running.values()
            self._waiting.show(one_line(last.title) + (f" (and {len(others)} more)" if others else ""))
        else:
            self._waiting.show(self._busy)

    def lose(self) -> None:
        """Show that the server is waited for, where a turn is under way."""
        if self._busy is not None:
            self._busy = AWAY

    def regain(self) -> None:
        """Show the turn again."""
        if self._busy == AWAY:
            self._busy = THINKING

    @property
    def thinks(self) -> bool:
        """Whether a turn is under way in which the agent does nothing that is seen, and asks nothing."""
        return self._busy == THINKING and not self._running and self._question is None

    def line(self, text: str, style: str = "") -> None:
        """Print a separate line."""
        self._close()
        self._print(Text(clean(text), style=style))

    def note(self, text: str) -> None:
        """Write a line that is not a part of the answer."""
        if not self._quiet:
            self.line(text, "quiet")

    # -- items ------------------------------------------------------------------------------------------

    def tell(self, item: Item) -> None:
        """Write an item."""
        match item:
            case Failed():
                self.line(without_codes(item.detail) or item.code, "bad")
            case _ if self._quiet:
                pass
            case Said():
                self._say(item)
            case UserSaid(note=True):
                self.line(without_codes(item.text), "quiet")
            case Called(call):
                self._close()
                if call.status != "asking":
                    self._running[call.id] = call
                    if not self.console.is_terminal:
                        self._print(Text(f"… {_title(call)}"))
            case CallEnded():
                self._ended(item.call)
            case Planned():
                self._planned(item)
            case State():
                self._state(item)
        self.tick()

    def ask(self, calls: Sequence[Call]) -> Question:
        """Ask the user about calls. An open question about the same calls stays open."""
        about: list[tuple[object, ...]] = [
            (call.id, call.title, call.raw_input, call.content) for call in calls
        ]
        if self._question is None or about != self._about:
            self._close()
            for call in calls:
                self._asking(call)
            if not calls:
                self._print(Text("? the agent asks for permission", style="asking"))
            # Before it is seen, so that a Ctrl-C that answers it finds it open and ends its line.
            self._question, self._about = Question(self.console), about
            self._at_start = False
            self._question.show()
        return self._question

    def answered(self) -> None:
        """Note that the question was answered; the user's Enter has ended the line."""
        self._question = None
        self._at_start = True

    def end_question(self) -> None:
        """End the open question, if any: another client has answered it."""
        if self._question is not None:
            self._close()

    def _asking(self, call: Call) -> None:
        """A call with all that is known of what it would do."""
        self._asked.add(call.id)
        self._print(Text.assemble(("? ", "asking"), (_title(call), "bold")))
        shown = edits(call.content, call.raw_input)
        if not shown and isinstance(call.raw_input, dict):
            for key, value in call.raw_input.items():
                self._print(Text(cut(f"    {one_line(str(key))}: {one_line(str(value))}", ASKED_COLUMNS)))
        for line in clean(block_text(call.content)).splitlines()[:ASKED_LINES]:
            self._print(Text(cut(f"    {line}", ASKED_COLUMNS)))
        for edit in shown:
            self._diff(edit, ASKED_LINES)

    def _planned(self, plan: Planned) -> None:
        """A new plan as a whole; for a changed one, the finished steps."""
        self._close()
        unchanged = [text for _, text in plan.entries] == [text for _, text in self._plan.entries]
        for entry in plan.entries:
            status, text = entry
            if unchanged and (entry in self._plan.entries or status != "completed"):
                continue
            mark, style = PLAN_MARKS.get(status, ("·", ""))
            self._print(Text(f"  {mark} {one_line(text)}", style=style))
        self._plan = plan

    def _say(self, item: Said) -> None:
        if item.ends:
            self._close()
            return
        if self._saying != item.kind:
            self._close()
            self._saying = item.kind
        self._waiting.hide()
        text = clean(item.text)
        if text and item.kind == "text" and self.console.is_terminal:
            if self._answer is None:
                from gateway.cli.talk.markdown import Answer  # late: it imports much

                self._answer = Answer(self.console)
            self._answer.feed(text)
            self._at_start = False
        elif text:
            if self._folding is None and self._on_screen:
                self._folding = Folding(self.console.width)
            self._write(text if self._folding is None else self._folding.feed(text))

    def _write(self, text: str) -> None:
        """A piece of a message as it is."""
        if text:
            self.console.print(Text(text, style="thought" if self._saying == "reasoning" else ""), end="")
            self._at_start = text.endswith("\n")

    def _failed(self, what: str, words: Any) -> None:
        self.line(cut(f"{what}: {without_codes(one_line(str(words)))}", ASKED_COLUMNS), "quiet")

    def _ended(self, call: Call) -> None:
        self._close()
        self._running.pop(call.id, None)
        mark, style = CALL_MARKS.get(call.status, ("✓", ""))
        taken = f" {call.seconds:.1f} s" if (call.seconds or 0) >= SHOWN_SECONDS else ""
        how = "" if call.status == "completed" else f" ({call.status})"
        self._print(Text.assemble((f"{mark} ", style), _title(call), (how, style), (taken, "quiet")))
        if call.status == "completed":
            for edit in edits(call.content, call.raw_input) if call.id not in self._asked else ():
                self._diff(edit)
        elif call.output:
            self._print(Text(cut(f"    {one_line(call.output)}", OUTPUT_COLUMNS), style="bad"))

    def _diff(self, edit: Edit, most: int = MOST_LINES) -> None:
        what = " (new)" if edit.old is None and edit.patch is None else ""
        self._print(Text(f"    {one_line(edit.path)}{what}", style="quiet"))
        for line in lines(edit, most):
            self._print(Text(f"    {line}", style=DIFF_STYLES.get(line[:1], "")))

    def _state(self, item: State) -> None:
        match item.key:
            case "agent_phase":
                self._phase(str(item.value))
            case "agent_retry":
                self._failed("the agent failed", item.value)
            case "model_call_failed" if isinstance(item.value, dict):
                often = _how_often(item.value)
                self._failed(f"the agent's call of its model failed{often}", item.value.get("words"))
            case "agent_exit" if isinstance(item.value, dict):
                code, number = item.value.get("code"), item.value.get("signal")
                how = f"by signal {number}" if number else f"with status {code}"
                self.line(f"the agent ended {how}", "bad")
            case "mcp_servers" if isinstance(item.value, dict):
                self._without_servers(item.value.get("dropped") or [])
            case "execution_status" if item.value == "running":
                self._busy = self._busy or THINKING

    def _without_servers(self, dropped: Sequence[Mapping[str, Any]]) -> None:
        """Say, once, which MCP servers the agent did not get."""
        missing = "; ".join(f"{each.get('name')} ({each.get('reason')})" for each in dropped)
        if missing and missing != self._missing:
            self.line(f"MCP servers that the agent did not get: {one_line(missing)}", "bad")
        self._missing = missing

    def _phase(self, phase: str) -> None:
        self._installing = None
        text = PHASES.get(phase)
        if text is None:
            if self._busy is not None:
                self._busy = THINKING
            return
        if self._busy is not None:
            self._busy = text
        place = self.installs() if phase == "installing" else None
        if place is not None:
            prefix, key, megabytes = place
            self._installing = Installing(prefix, key)
            self._total = None if megabytes is None else megabytes * MEGABYTE
        if not self.console.is_terminal and phase != "installing":  # the server's note says that
            self.line(text, "quiet")

    def _close(self) -> None:
        """End the line that is open."""
        self._waiting.hide()
        if self._answer is not None:
            self._answer.close()
            self._answer, self._at_start = None, True
        if self._folding is not None:
            self._write(self._folding.end())
            self._folding = None
        self._saying = None
        if self._question is not None:
            self._question.close()
            self._question = None
        elif not self._at_start:
            self.console.print()
        self._at_start = True

    def _print(self, text: Text) -> None:
        self._waiting.hide()
        self.console.print(text, soft_wrap=not self._on_screen)


def _how_often(failure: Mapping[str, Any]) -> str:
    """How often a call has failed, and when the next is: ` (3 times, attempt 3 of 5, next in 8 s)`."""
    times, attempt, attempts = (failure.get(key) for key in ("times", "attempt", "attempts"))
    seconds = failure.get("next_seconds")
    parts = [
        f"{times} times" if times not in (None, 1) else "",
        f"attempt {attempt}" + (f" of {attempts}" if attempts else "") if attempt else "",
        f"next in {seconds:g} s" if seconds is not None else "",
    ]
    said = ", ".join(filter(None, parts))
    return f" ({said})" if said else ""


def _title(call: Call) -> str:
    return cut(one_line(call.title) or call.kind or "tool", TITLE_COLUMNS)
