"""Markdown on a terminal, while it streams. It imports much, so import it with the first answer."""

from __future__ import annotations

import time
from typing import ClassVar, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import Segment

from gateway.cli.talk.prose import Blocks

REDRAW_SECONDS: Final = 0.1
"""Seconds between two drawings of the block that is open."""

REDRAW_SHARE: Final = 4
"""The next drawing waits this many times as long as the last one took."""

KEPT_LINES: Final = 2
"""Lines of the terminal that an open block leaves: one that scrolled away could not be drawn again."""


class Answer:
    """One message: whole blocks are printed, the open one is drawn again as it grows. Give it clean text."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._blocks = Blocks()
        self._live: Live | None = None
        self._next = 0.0
        self._printed = False

    def feed(self, text: str) -> None:
        """Add text."""
        whole = self._blocks.feed(text)
        if whole:
            self._erase()
            for block in whole:
                self._print(block)
        if self._blocks.open.strip() and time.monotonic() >= self._next:
            self.draw()

    def draw(self) -> None:
        """Draw the open block as it is now."""
        if not self._blocks.open.strip():
            return
        began = time.monotonic()
        most = max(1, self._console.height - KEPT_LINES)
        tail = _Rendered(self._blocks.open, spaced=self._printed, most=most)
        if self._live is None:
            self._live = Live(
                tail, console=self._console, auto_refresh=False, transient=True,
                redirect_stdout=False, redirect_stderr=False, vertical_overflow="crop",
            )  # fmt: skip
            self._live.start(refresh=True)
        else:
            self._live.update(tail, refresh=True)
        now = time.monotonic()
        self._next = now + max(REDRAW_SECONDS, (now - began) * REDRAW_SHARE)

    def close(self) -> None:
        """Print what is open: the message is whole."""
        self._erase()
        if self._blocks.open.strip():
            self._print(self._blocks.open)
        self._blocks = Blocks()

    def _erase(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _print(self, block: str) -> None:
        self._console.print(_Rendered(block, spaced=self._printed), soft_wrap=False, end="")
        self._printed = True


class _Heading(Heading):
    """A line in bold, at the left."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = self.text.copy()
        text.justify = "left"
        text.stylize("bold")
        yield text


class _Markdown(Markdown):
    """Shows every character that the agent wrote: its line breaks, and what looks like HTML."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _Heading}

    def __init__(self, text: str) -> None:
        # A link shows its address: one behind other words could be any.
        super().__init__(text, code_theme="ansi_dark", hyperlinks=False)
        for token in self.parsed:
            if token.type == "html_block":
                token.type, token.info = "fence", "html"
            for child in token.children or ():
                if child.type == "image":
                    child.type, child.content = "text", f"![{child.content}]({child.attrs.get('src', '')})"
                child.type = {"html_inline": "text", "softbreak": "hardbreak"}.get(child.type, child.type)


class _Rendered:
    """A block without the blank lines around it, after one if `spaced`; its last `most` lines."""

    def __init__(self, block: str, *, spaced: bool, most: int | None = None) -> None:
        self._block = block
        self._spaced = spaced
        self._most = most

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(_Markdown(self._block), options, pad=False)
        filled = [number for number, line in enumerate(lines) if "".join(part.text for part in line).strip()]
        # What is no more than a definition is rendered as nothing.
        shown = lines[filled[0] : filled[-1] + 1] if filled else [[Segment(self._block.strip())]]
        if self._spaced:
            shown.insert(0, [])
        for line in shown[-self._most if self._most else 0 :]:
            yield from line
            yield Segment.line()
