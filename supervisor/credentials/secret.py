"""A secret value that never prints itself, the rules for names and values, and the errors of stored secrets.

No message of an error ever holds a value.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

#: Names double as environment variable names of the agent, so they follow those.
SECRET_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")

NAME_RULE: Final = "a secret name starts with a letter and has at most 64 letters, digits and underscores"

#: What clients are shown instead of a value, and may send back by mistake.
REDACTED: Final = "**********"


#: Linux takes no string longer than 32 pages of 4 KiB in an environment, `NAME=` and a NUL included.
MAX_VALUE_BYTES: Final = 32 * 4096 - 64 - 2


class CredentialsFailure(Exception):
    """Base of the errors of credentials. Its text is safe to show to a client and to log."""


class InvalidSecretName(CredentialsFailure):
    """A secret name does not match `SECRET_NAME`."""


class InvalidSecretValue(CredentialsFailure):
    """A secret value is blank, a redacted placeholder, or cannot stand in an environment."""


class SecretsCorrupt(CredentialsFailure):
    """The secret file is damaged. It is left unchanged, for a person to repair."""

    def __init__(self, where: object, reason: str) -> None:
        super().__init__(
            f"secret file {where} is not usable: {reason}; "
            "restore it from a backup, or move it away and set the secrets again"
        )


class WrongMasterKey(CredentialsFailure):
    """The master key in use is not the one that the secret file was written with. Nothing was changed."""

    def __init__(self, where: str, source: str) -> None:
        super().__init__(
            f"secret file {where} was encrypted with another master key than the one from {source}; "
            "give the key that it was encrypted with"
        )


class MasterKeyUnavailable(CredentialsFailure):
    """The master key is in the OS keyring, which cannot be read. Nothing was changed."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(
            f"the master key of secret file {where} is in the OS keyring: {reason}; "
            "make the keyring readable and start Ostler again"
        )


class SecretsUnavailable(CredentialsFailure):
    """The secrets cannot be read now; that passes."""


class CannotRotate(CredentialsFailure):
    """No new master key is set. Nothing was changed."""


class NotDecryptable(CredentialsFailure):
    """A token was not made with this key, or was damaged."""


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
