"""What can go wrong with settings and profiles. No message quotes a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, overload

from supervisor.reading.decode import attempt
from supervisor.reading.model import Check, ErrorDetail, Errors, Invalid, Location, Model

M = TypeVar("M", bound=Model)


class SettingsFailure(Exception):
    """Base of this room's errors. Its text is safe to show to a client and to log."""


class SettingsError(SettingsFailure, Invalid):
    """Something is not shaped as it must be; `errors` say where and how (HTTP 422)."""


class SettingsEmpty(SettingsFailure):
    """A change that changes nothing (HTTP 400)."""


class SettingsCorrupt(SettingsFailure):
    """A file cannot be read as such. It is left as it is, for a person to look at (HTTP 409)."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"settings file {where} is not usable: {reason}; mend it, or move it away")


class UnknownProfile(SettingsFailure):
    """No profile or provider connection has this name or id (HTTP 404)."""


class ProfileExists(SettingsFailure):
    """Another profile has this name already (HTTP 409)."""


class ProfileReferenced(SettingsFailure):
    """Something names this LLM profile or provider connection (HTTP 409)."""


class TooManyProfiles(SettingsFailure):
    """The server keeps as many profiles or provider connections as it will (HTTP 409)."""


class EncryptionUnavailable(SettingsFailure):
    """Secrets were asked for encrypted, there are some, and there is no key (HTTP 503)."""


def problem(loc: Location, msg: str, kind: str) -> SettingsError:
    """A SettingsError of one error."""
    return SettingsError((ErrorDetail(loc=loc, msg=msg, type=kind),))


def refuse(errors: Errors) -> None:
    """Raise SettingsError unless there is no error."""
    if errors:
        raise SettingsError(errors.reported())


@overload
def read(model: type[M], obj: object, loc: Location, checks: Mapping[str, Check] | None = None) -> M: ...


@overload
def read(model: Any, obj: object, loc: Location, checks: Mapping[str, Check] | None = None) -> Any: ...


def read(model: Any, obj: object, loc: Location, checks: Mapping[str, Check] | None = None) -> Any:
    """`obj` as a `model`; `checks` are those that its description leaves to others. Raises
    SettingsError with every error."""
    errors = Errors(checks)
    found = attempt(model, obj, loc, errors)
    refuse(errors)
    return found
