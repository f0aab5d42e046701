"""Masks known secret values in what an agent says, in every form that they are likely to take. Pure.

A value is looked for as it is, as it stands in JSON, in a URL, and in base64, at any alignment. Of values
that are JSON documents or several lines, the parts that are secrets by themselves count too.
"""

from __future__ import annotations

import base64
import html
import itertools
import json
import os
import re
import threading
import urllib.parse
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import orjson

from supervisor.credentials.common import SHORTEST, too_common
from supervisor.tight import tight

HIDDEN: Final = "<secret-hidden>"
"""The replacement for a secret, as in other servers of this wire."""

SHORTEST_PART: Final = 20
"""Shorter parts of a document, and shorter lines, are not masked: they are names and ordinary words."""

_ODD_ESCAPES: Final = re.compile(rb"\\[u/]")
"""JSON escapes that need not be: they can stand for any character of a secret."""


_SCHEME: Final = re.compile(r"(?P<name>[A-Za-z][\w-]*)[ =:]+(?P<credential>\S+)")
"""The value of a header for authorization: its scheme, and what is the secret of it."""

NESTED: Final = 3
"""How many times over a secret is looked for as a string in a string, of JSON or of Python."""


PIECE: Final = 64 * 1024
"""Characters or bytes searched at once. A search holds the GIL until it ends: some 30 ms per megabyte."""


class Masker:
    """Finds the secrets that it was made with. One compiled expression; safe to share.

    Of `secrets` those do not count that are too common (`common.too_common`); those of `always` do.
    """

    _longest: int
    _escaped: bool
    _bytes: re.Pattern[bytes]
    _first: re.Pattern[str]

    def __init__(self, secrets: Iterable[str], always: Iterable[str] = ()) -> None:
        values = _uncommon(secrets)
        values.update(part for secret in always for part in _parts(secret))
        self._lock = threading.Lock()
        self._text: re.Pattern[str] | None = None
        self._look_for(values)

    def add(self, secrets: Iterable[str]) -> None:
        """Add secrets, for all users of this object. In a thread: it takes some milliseconds."""
        with self._lock:
            new = _uncommon(secrets) - self._values
            if new:
                self._look_for(self._values | new)

    def _look_for(self, values: set[str]) -> None:
        self._values = values
        self._forms = sorted({form for value in values for form in _forms(value) if len(form) >= SHORTEST})
        self._longest = max(map(len, self._forms), default=0)
        # Nested documents are escaped repeatedly: these are parsed to be sure.
        self._escaped = any(json.dumps(value, ensure_ascii=False)[1:-1] != value for value in values)
        if self._forms:
            self._bytes = re.compile(_expression(self._forms).encode("utf-8", "surrogatepass"))
            self._first = re.compile("[" + "".join(re.escape(c) for c in {f[0] for f in self._forms}) + "]")
            self._text = re.compile(_expression(self._forms))  # the last: it says that there is any

    def __bool__(self) -> bool:
        """Whether there is any secret to mask."""
        return self._text is not None

    @property
    def known(self) -> object:
        """An object that stands for the secrets that it looks for: another one when there are more."""
        return self._text

    def text(self, text: str) -> str:
        """Return `text` with every form of a secret replaced."""
        if self._text is None:
            return text
        if len(text) <= PIECE:
            return self._text.sub(HIDDEN, text)
        stream = self.stream()
        pieces = [stream.feed(text[start : start + PIECE]) for start in range(0, len(text), PIECE)]
        return "".join((*pieces, stream.flush()))

    def beginning(self, text: str) -> str:
        """Mask a text that is cut off: a secret that its end may be a part of is masked, too."""
        return self.text(text[: self._safe(text)])

    def value(self, value: Any) -> Any:
        """Mask a JSON value: every string in it, keys too; a number that is a secret becomes text.

        It is the same object where there are no secrets.
        """
        if self._text is None:
            return value
        kind = type(value)
        if kind is str:
            return self.text(value)
        if kind is dict:
            return {self.text(key): self.value(item) for key, item in value.items()}
        if kind is list:
            return [self.value(item) for item in value]
        if kind is int or kind is float:
            return value if self.text(repr(value)) == repr(value) else HIDDEN
        return value

    def suspects(self, document: bytes) -> bool:
        """Whether a JSON text may hold a secret. Quick, since almost none does."""
        if self._text is None:
            return False
        return (
            self._found(document)
            or (
                _ODD_ESCAPES.search(document) is not None
                if len(document) <= PIECE
                else any(_ODD_ESCAPES.search(document, at, at + PIECE + 1) for at in _starts(document))
            )
            or (self._escaped and b"\\\\" in document)
        )

    def _found(self, content: bytes) -> bool:
        """Whether the text contains one of the secrets, in plain form."""
        if len(content) <= PIECE:
            return self._bytes.search(content) is not None
        # Of a form that is cut by the end of one piece all is in the next: they overlap by that much.
        step = PIECE + 4 * self._longest
        return any(self._bytes.search(content, at, at + step) for at in _starts(content))

    def document(self, document: bytes) -> bytes:
        """Mask a JSON text."""
        return (
            tight(orjson.dumps(self.value(orjson.loads(document)))) if self.suspects(document) else document
        )

    def content(self, content: bytes) -> bytes:
        """Mask bytes where they are text."""
        if self._text is None or not self._found(content):
            return content
        if len(content) <= PIECE:
            return self._bytes.sub(HIDDEN.encode(), content)
        text = content.decode("utf-8", "surrogateescape")
        return self.text(text).encode("utf-8", "surrogateescape")

    def stream(self) -> StreamMask:
        """Return a mask for a streamed text."""
        return StreamMask(self)

    def _safe(self, text: str) -> int:
        """How much of `text` can be shown already: its end may be the beginning of a secret."""
        if self._text is None:
            return len(text)
        # Only so many characters at the end can be a form that is not complete yet.
        begin = max(0, len(text) - self._longest + 1)
        for found in self._first.finditer(text, begin):
            if self._begins_a_form(text[found.start() :]):
                break
        else:
            return len(text)
        for match in self._text.finditer(text):
            if match.start() < found.start() < match.end():
                # It begins within a form that is complete, which is held back and masked as one.
                return match.start()
        return found.start()

    def _begins_a_form(self, text: str) -> bool:
        at = bisect_left(self._forms, text)
        if at < len(self._forms) and self._forms[at] == text:
            at += 1
        return at < len(self._forms) and self._forms[at].startswith(text)


def _uncommon(secrets: Iterable[str]) -> set[str]:
    hidden = (secret for secret in secrets if not too_common(secret))
    return {part for secret in hidden for part in _parts(secret) if not too_common(part)}


def _starts(content: bytes) -> range:
    """Where the pieces of it begin that are searched one by one."""
    return range(0, len(content), PIECE)


class StreamMask:
    """Masks a streamed text: an end that may begin a secret is held back until the next piece."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._held = ""

    def feed(self, piece: str) -> str:
        """Feed a piece. Returns what can be shown now, masked; possibly nothing."""
        text = self._held + piece
        safe = self._masker._safe(text)
        self._held = text[safe:]
        return self._masker.text(text[:safe])

    def flush(self) -> str:
        """Return the text held back, at the end of the stream."""
        held, self._held = self._held, ""
        return self._masker.text(held)


NOTHING: Final = Masker(())
"""Masks nothing."""


def _parts(secret: str) -> Iterator[str]:
    """What of a secret is a secret by itself: it, the strings of a JSON document, the lines of a text, what
    follows the scheme of an authorization."""
    yield secret
    scheme = _SCHEME.fullmatch(secret)
    if scheme is not None:
        yield scheme["credential"]
        if scheme["name"].lower() == "basic":
            yield from _basic(scheme["credential"])
    if secret.lstrip().startswith(("{", "[")):
        try:
            document = orjson.loads(secret)
        except orjson.JSONDecodeError:
            document = None
        for text in _strings(document):
            if len(text) >= SHORTEST_PART and not text.startswith(("http://", "https://")):
                yield text
                yield from _lines(text)
    else:
        yield from _lines(secret)


def _basic(credential: str) -> Iterator[str]:
    """The password of a basic authorization (RFC 7617)."""
    try:
        _, _, password = base64.b64decode(credential, validate=True).decode().partition(":")
    except ValueError:
        return
    yield password


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from itertools.chain.from_iterable(map(_strings, value.values()))
    elif isinstance(value, list):
        yield from itertools.chain.from_iterable(map(_strings, value))


def _lines(text: str) -> Iterator[str]:
    lines = text.split("\n")
    if len(lines) > 1:
        yield from (line.strip() for line in lines if len(line.strip()) >= SHORTEST_PART)


def _forms(value: str) -> Iterator[str]:
    forms = within = {value}
    for _ in range(NESTED):
        within = {
            quoted[1:-1]
            for form in within
            for quoted in (json.dumps(form), json.dumps(form, ensure_ascii=False), repr(form))
        } - forms
        forms = forms | within
    yield from forms
    yield html.escape(value)
    for apostrophe in ("'\\''", "'\"'\"'"):  # within the single quotes of a shell
        yield value.replace("'", apostrophe)
    raw = value.encode("utf-8", "surrogatepass")
    for safe in ("", "/", "-_.!~*'()"):  # the last is what JavaScript leaves as it is
        quoted = urllib.parse.quote(raw, safe=safe)
        yield quoted
        yield re.sub("%..", lambda match: match[0].lower(), quoted)
    yield urllib.parse.quote_plus(raw)
    for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
        for before in range(3):
            # Of what is encoded, only the groups of three bytes that hold nothing but the value are sure.
            whole = (before + len(raw)) // 3
            first = -(-before // 3)
            encoded = alphabet(b"\0" * before + raw).decode()
            yield encoded[first * 4 : whole * 4]


def _expression(words: Sequence[str]) -> str:
    """A regular expression for the longest of `words` (sorted, distinct). Common prefixes are tried once."""
    common = os.path.commonprefix([words[0], words[-1]])  # noqa: RUF071 - of characters, not of directories
    rest = [word[len(common) :] for word in words]
    branches = [
        _expression(list(group)) for first, group in itertools.groupby(rest, lambda word: word[:1]) if first
    ]
    if not branches:
        return re.escape(common)
    return f"{re.escape(common)}(?:{'|'.join(branches)}){'' if rest[0] else '?'}"
