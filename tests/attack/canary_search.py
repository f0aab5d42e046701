"""Looking for secrets in whatever a server wrote or sent: every form of them, and pieces."""

from __future__ import annotations

import base64
import json
import urllib.parse
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

SHORTEST = 8  # characters of a base64 form: what is promised
FRAGMENT = 12  # characters of a value that nothing else holds by chance
STEP = 4  # characters from one piece that is looked for to the next
HIDDEN = "<secret-hidden>"  # what stands for a secret
AROUND = 40  # characters of context in a report


def forms_of(value: str) -> dict[str, str]:
    """What a value may look like, by the name of the form; each once."""
    raw = value.encode()
    found = {
        "raw": value,
        "JSON": json.dumps(value)[1:-1],
        "JSON, not ASCII": json.dumps(value, ensure_ascii=False)[1:-1],
        "JSON, twice": json.dumps(json.dumps(value)[1:-1])[1:-1],
        "URL": urllib.parse.quote(value, safe=""),
        "URL, path": urllib.parse.quote(value),
        "URL, form": urllib.parse.quote_plus(value),
    }
    for before in range(3):
        for name, encode in (("base64", base64.b64encode), ("base64url", base64.urlsafe_b64encode)):
            # Without the groups that hold something of what stands before or behind.
            whole = encode(b"\0" * before + raw).decode()
            inner = whole[-(-before // 3) * 4 : (before + len(raw)) // 3 * 4]
            assert len(inner) >= SHORTEST
            found[f"{name} +{before}"] = inner
    distinct: dict[str, str] = {}
    for name, form in found.items():
        if form not in distinct.values():
            distinct[name] = form
    return distinct


@attrs.frozen
class Leak:
    """A form of a secret in a place. `kind` is the kind of place, `where` the place itself."""

    kind: str
    where: str
    secret: str
    form: str
    context: str


@attrs.define
class Search:
    """Collects leaks of these secrets, by name."""

    secrets: Mapping[str, str]
    leaks: list[Leak] = attrs.field(factory=list)
    looked_at: Counter[str] = attrs.field(factory=Counter)  # bytes by kind of place
    hidden: Counter[str] = attrs.field(factory=Counter)  # secrets that were masked, by kind of place
    _forms: list[tuple[str, str, str]] = attrs.field(init=False)
    _pieces: list[tuple[str, str]] = attrs.field(init=False)
    _clean: set[str] = attrs.field(factory=set)  # texts in which nothing was found: most come many times

    def __attrs_post_init__(self) -> None:
        self._forms = [
            (secret, name, form)
            for secret, value in self.secrets.items()
            for name, form in forms_of(value).items()
        ]
        self._pieces = [
            (secret, value[start : start + FRAGMENT])
            for secret, value in self.secrets.items()
            for start in range(0, len(value) - FRAGMENT + 1, STEP)
        ]

    def document(self, kind: str, where: str, data: bytes) -> None:
        """Look through something that was read or sent: as it is, and decoded where it is JSON."""
        self.looked_at[kind] += len(data)
        text = data.decode(errors="replace")
        self.hidden[kind] += text.count(HIDDEN)
        self._look(kind, where, text)
        for line in [text] if _json(text) is not None else text.splitlines():
            decoded = _json(line)
            if decoded is not None:
                for leaf in leaves(decoded):
                    self._look(kind, f"{where}, decoded", leaf)

    def joined(self, kind: str, where: str, pieces: Iterable[str]) -> None:
        """Look through a text that came in pieces."""
        self.document(kind, f"{where}, put together", "".join(pieces).encode())

    def _look(self, kind: str, where: str, text: str) -> None:
        if text in self._clean:
            return
        hit = set()
        for secret, form, needle in self._forms:
            at = text.find(needle)
            if at >= 0:
                hit.add(secret)
                self._found(kind, where, secret, form, text, at, len(needle))
        for secret, piece in self._pieces:
            if secret not in hit and (at := text.find(piece)) >= 0:
                hit.add(secret)
                self._found(kind, where, secret, "a piece", text, at, len(piece))
        if not hit:
            self._clean.add(text)

    def _found(self, kind: str, where: str, secret: str, form: str, text: str, at: int, size: int) -> None:
        context = text[max(0, at - AROUND) : at + size + AROUND]
        self.leaks.append(Leak(kind, where, secret, form, context))

    def report(self, kind: str, secrets: Iterable[str] | None = None) -> str:
        """One line for each place, secret and form; empty when there is none."""
        wanted = set(self.secrets if secrets is None else secrets)
        found: dict[tuple[str, str, str], list[Leak]] = {}
        for leak in self.leaks:
            if leak.kind == kind and leak.secret in wanted:
                found.setdefault((leak.where, leak.secret, leak.form), []).append(leak)
        return "\n".join(
            f"{where}: {secret} as {form}, {len(leaks)}x: {leaks[0].context!r}"
            for (where, secret, form), leaks in sorted(found.items())
        )


def leaves(value: Any) -> Iterator[str]:
    """Every string in a JSON value, keys too, and what is JSON inside of strings."""
    if isinstance(value, str):
        yield value
        inner = _json(value)
        if inner is not None:
            yield from leaves(inner)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(key)
            yield from leaves(each)
    elif isinstance(value, list):
        for each in value:
            yield from leaves(each)


def _json(text: str) -> Any:
    if text[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None
