"""A secret value that never prints itself, and the rules for names and values."""

from __future__ import annotations

import re
from typing import Final

import attrs

from supervisor.credentials.errors import InvalidSecretName, InvalidSecretValue

#: Names double as environment variable names of the agent, so they follow those.
SECRET_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")

NAME_RULE: Final = "a secret name starts with a letter and has at most 64 letters, digits and underscores"

#: What clients are shown instead of a value, and may send back by mistake.
REDACTED: Final = "**********"


#: Linux takes no string longer than 32 pages of 4 KiB in an environment, `NAME=` and a NUL included.
MAX_VALUE_BYTES: Final = 32 * 4096 - 64 - 2


@attrs.frozen(repr=False)
class Secret:
    """A secret string. `reveal()` is the only way to its value; repr, str and format hide it."""

    _value: str

    def reveal(self) -> str:
        """The value, for the code that passes it on."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({REDACTED})"

    __str__ = __repr__


@attrs.frozen
class SecretInfo:
    """The parts of a secret that may be listed."""

    name: str
    description: str | None = None


def check_name(name: str) -> str:
    """Return `name` or raise InvalidSecretName."""
    if not SECRET_NAME.fullmatch(name):
        raise InvalidSecretName(NAME_RULE)
    return name


def check_value(value: str) -> str:
    """Return `value` or raise InvalidSecretValue, which never quotes it."""
    if not value.strip():
        raise InvalidSecretValue("a secret value must not be blank")
    if value.strip() == REDACTED:
        raise InvalidSecretValue("the redacted placeholder is not a secret value")
    return check_exportable(value)


def check_exportable(value: str) -> str:
    """Return `value`, or raise InvalidSecretValue if no environment variable can hold it.

    Otherwise the agent's exec would fail later.
    """
    if "\0" in value:
        raise InvalidSecretValue("a secret value must not contain a NUL character")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidSecretValue("a secret value must be text that UTF-8 can encode") from None
    if size > MAX_VALUE_BYTES:
        raise InvalidSecretValue(f"a secret value must have at most {MAX_VALUE_BYTES} bytes")
    return value
