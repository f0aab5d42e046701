"""Plain variables for an agent: what is not a secret, is shown, and is never masked. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Final

from supervisor.reading.model import Flaw
from supervisor.reading.rules import NO_NUL, Limit, Names, Properties, Size

VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
SAID: Final = (
    "a variable's name starts with a letter or _ and has at most 128 letters, digits and underscores"
)

MAX_VARIABLES: Final = 100
MAX_BYTES: Final = 64 * 1024
"""Of all variables, as JSON: they are part of every look at the conversation."""

RESERVED_PREFIXES: Final = ("OSTLER_", "OH_")
RESERVED: Final = frozenset({"SESSION_API_KEY", "CLAUDECODE"})
"""The server's own, which no agent gets (supervisor/agents/environment.py)."""

HOME: Final = "HOME"

ANYWHERE: Final = frozenset(
    {"KEY", "KEYS", "TOKEN", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE",
     "CREDENTIAL", "CREDENTIALS", "BEARER", "JWT", "APIKEY"}
)  # fmt: skip
"""Words of a name, split at underscores and capitals, that indicate a credential."""

AT_THE_END: Final = frozenset({"AUTH", "AUTHORIZATION", "COOKIE", "PASS", "PAT", "PIN", "PWD", "PRIVATE"})
"""The same, as the last word."""

GLUED: Final = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "APIKEY", "SECRETKEY", "ACCESSKEY", "CREDENTIALS")
"""The same, as the end of several words written as one: `AUTHTOKEN`."""

HARMLESS: Final = frozenset(
    {"COUNT", "DIR", "DIRECTORY", "FILE", "HELPER", "LIMIT", "MAX", "MODE", "NAME", "PATH", "TIMEOUT", "TTL",
     "TYPE", "URL"}
)  # fmt: skip
"""Last words of names that are not credentials themselves, but properties of one."""

NOT_WORDS: Final = frozenset({"PWD", "OLDPWD"})
"""Names that mean something else."""

PASSWORD_IN_URL: Final = re.compile(r"\w://[^/\s:@]*:[^/\s@]+@")

Variables = Annotated[
    Mapping[str, Annotated[str, NO_NUL]],
    Properties(max_length=MAX_VARIABLES),
    Size(MAX_BYTES),
    Names(VARIABLE, SAID),
]
Meant = tuple[Annotated[str, Limit(max_length=128), NO_NUL], ...]


def looks_like_credential(name: str) -> bool:
    """Whether a variable of this name would hold a credential."""
    if name.upper() in NOT_WORDS:
        return False
    words = [
        word.upper()
        for part in name.split("_")
        for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[A-Z]|\d+", part)
    ]
    whole = [part.upper() for part in name.split("_") if part]
    every = {*words, *whole}
    if not every or words[-1] in HARMLESS:
        return False
    return (
        not ANYWHERE.isdisjoint(every)
        or words[-1] in AT_THE_END
        or any(word.endswith(GLUED) for word in whole)
    )


def judge_variables(field: str, variables: Mapping[str, str], meant: Collection[str]) -> Iterator[Flaw]:
    """The errors of the variables of `field`; `meant` are those declared not to be credentials, despite their
    names."""
    for name, value in variables.items():
        if name in RESERVED or name.startswith(RESERVED_PREFIXES):
            yield (field, name), "value_error", f"{name} is the server's own; agents do not get it"
        elif name == HOME:
            yield (field, name), "value_error", "the home is chosen by acp_home (own or shared)"
        elif name not in meant and looks_like_credential(name):
            yield (
                (field, name),
                "value_error",
                f"{name} looks like a credential, and these variables are shown to everybody. "
                f"Store it as a secret, or name it in {field}_plain if it is none",
            )
        elif name not in meant and PASSWORD_IN_URL.search(value):
            yield (
                (field, name),
                "value_error",
                f"the value holds a password, and these variables are shown to everybody. "
                f"Store it as a secret, or name {name} in {field}_plain if it is none",
            )
