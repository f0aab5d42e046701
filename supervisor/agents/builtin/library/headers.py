"""Which headers of a model's requests are credentials, by their names. Pure.

The server judges them alike (settings/variables.py); a test compares the two. Other headers identify the
client and the request: hiding their values, which are ordinary words, would make all text unreadable.
"""

from __future__ import annotations

import re

ANYWHERE = frozenset(
    {"apikey", "bearer", "credential", "credentials", "jwt", "key", "keys", "passphrase", "passwd"}
    | {"password", "passwords", "secret", "secrets", "token"}
)
AT_THE_END = frozenset({"auth", "authorization", "cookie", "pass", "pat", "pin", "private", "pwd"})
"""Words that mark a credential at the end of a name."""

GLUED = ("token", "secret", "password", "passwd", "apikey", "secretkey", "accesskey", "credentials")
"""The same words as endings of joined words."""

HARMLESS = frozenset(
    {"count", "dir", "directory", "file", "helper", "limit", "max", "mode", "name", "path", "timeout", "ttl"}
    | {"type", "url"}
)
"""Last words of names that describe a credential without holding it."""


WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[A-Z]|\d+")


def is_credential(name: str) -> bool:
    """Whether a header of this name holds a credential."""
    words = [word.lower() for word in WORD.findall(name)]
    whole = [part.lower() for part in re.split(r"[-_]", name) if part]
    if not words or words[-1] in HARMLESS:
        return False
    return (
        not ANYWHERE.isdisjoint((*words, *whole))
        or words[-1] in AT_THE_END
        or any(part.endswith(GLUED) for part in whole)
    )
