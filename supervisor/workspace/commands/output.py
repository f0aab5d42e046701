"""Turns a command's output into events: its beginning while it arrives, then its end. No I/O."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Final

from supervisor.acp.output import OutputRing, Seen
from supervisor.credentials.masking import Masker
from supervisor.workspace.commands.log import OUTPUT_CHARACTERS

TAIL_BYTES: Final = 512 * 1024
"""Bytes kept of the end of each stream of a command that exceeds its limit."""

LINE_CHARACTERS: Final = 8 * 1024
"""Where in the kept end the first whole line is looked for: half a line may be half a secret."""

Emit = Callable[[str | None, str | None], None]
"""Called with a part of standard output or of standard error."""


class Output:
    """Both streams of one command. The first `most_bytes` are emitted as they arrive, in parts of
    OUTPUT_CHARACTERS; of the rest only the end is kept.

    `emit` is called with each full part.
    """

    def __init__(self, mask: Masker, most_bytes: int, emit: Emit) -> None:
        self._room = most_bytes
        self._stdout = _Stream(mask, lambda text: emit(text, None))
        self._stderr = _Stream(mask, lambda text: emit(None, text))

    def add(self, data: bytes, *, error: bool) -> None:
        """Add the next bytes of standard output, or of standard error."""
        stream = self._stderr if error else self._stdout
        if self._room > 0:
            self._room -= len(data)
            stream.feed(data)
        else:
            stream.keep(data)

    @property
    def large(self) -> bool:
        """Whether `ends` takes so long that it must run in a thread."""
        return self._stdout.overflown or self._stderr.overflown

    def ends(self) -> tuple[str, str]:
        """The remaining text of both streams, masked. Call it once, in any thread."""
        return self._stdout.end(), self._stderr.end()

    def finish(self, ends: tuple[str, str]) -> tuple[str | None, str | None]:
        """Emit the full parts of the texts that `ends` returned. Returns the last, partial ones."""
        self._stdout.append(ends[0])
        self._stderr.append(ends[1])
        return self._stdout.text() or None, self._stderr.text() or None


class _Stream:
    def __init__(self, mask: Masker, emit: Callable[[str], None]) -> None:
        self._mask = mask
        self._stream = mask.stream()
        self._emit = emit
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._texts: list[str] = []
        self._characters = 0
        self._ring: OutputRing | None = None
        self._beyond = 0

    @property
    def overflown(self) -> bool:
        return self._ring is not None

    def feed(self, data: bytes) -> None:
        self.append(self._stream.feed(self._decoder.decode(data)))

    def append(self, text: str) -> None:
        self._texts.append(text)
        self._characters += len(text)
        if self._characters <= OUTPUT_CHARACTERS:
            return
        whole = "".join(self._texts)
        # What is left may be the last of all, which goes with the exit code.
        while len(whole) > OUTPUT_CHARACTERS:
            self._emit(whole[:OUTPUT_CHARACTERS])
            whole = whole[OUTPUT_CHARACTERS:]
        self._texts, self._characters = [whole], len(whole)

    def keep(self, data: bytes) -> None:
        if self._ring is None:
            self._ring = OutputRing(TAIL_BYTES)
            begun, _ = self._decoder.getstate()  # the first bytes of a character
            self._decoder.reset()
            data = begun + data
        self._ring.add(data)
        self._beyond += len(data)

    def text(self) -> str:
        return "".join(self._texts)

    def end(self) -> str:
        """Takes some tens of milliseconds where there is a ring."""
        if self._ring is None:
            last = self._decoder.decode(b"", True)
        elif self._ring.truncated:
            # The text that the mask holds back may begin a secret that continues in the dropped part.
            return self._tail(self._ring.seen())
        else:
            last = self._ring.text(final=True)
        return self._stream.feed(last) + self._stream.flush()

    def _tail(self, seen: Seen) -> str:
        text = seen.text(final=True)
        text = text[text.find("\n", 0, LINE_CHARACTERS) + 1 :]
        dropped = self._beyond - len(text.encode("utf-8", "replace"))
        note = f"\n[Ostler dropped {dropped} bytes of output here: OSTLER_BASH_OUTPUT_BYTES]\n"
        return note + self._mask.text(text)
