"""The source of a conversation's secret, as a start request spells it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import attrs

from supervisor.credentials.errors import CredentialsFailure, InvalidSecretValue
from supervisor.credentials.secret import REDACTED, SECRET_NAME, Secret, check_exportable
from supervisor.events import ErrorDetail

Location = tuple[str | int, ...]

#: The route under which this server hands out its own secrets.
STORE_ROUTE: Final = "/api/settings/secrets/"

#: Schemes that a secret may be fetched over.
LOOKUP_SCHEMES: Final = frozenset({"http", "https"})


@attrs.frozen
class StaticSecret:
    """A value given in the request. None: the client sent none, or only the redacted placeholder."""

    value: Secret | None
    description: str | None = None


@attrs.frozen
class LookupSecret:
    """A value to be fetched with GET at the time of use. URL and headers may carry keys themselves."""

    url: str = attrs.field(repr=False)
    headers: Mapping[str, str] = attrs.field(repr=False, factory=dict)
    description: str | None = None


@attrs.frozen
class StoreReference:
    """A secret of this server's own store."""

    name: str
    description: str | None = None


SecretSource = StaticSecret | LookupSecret | StoreReference


class SecretSourceError(CredentialsFailure):
    """A secret source is not shaped as it must be. No message quotes a value."""

    def __init__(self, errors: tuple[ErrorDetail, ...]) -> None:
        super().__init__("; ".join(f"{'.'.join(map(str, error.loc))}: {error.msg}" for error in errors))
        self.errors = errors


def decode_secret_source(
    obj: object, *, loc: Location = ("body", "secrets"), own_origins: Collection[str] = ()
) -> SecretSource:
    """A secret source from its JSON: a plain string, a `StaticSecret` or a `LookupSecret`.

    Without `kind` a `url` makes it a lookup. A URL that is relative, or whose origin
    (`http://host:port`) is one of `own_origins`, must name a secret of this server's store and
    becomes a StoreReference: no request to ourselves, and no session key to keep. Unknown keys are
    ignored. Raises SecretSourceError; `loc` is where `obj` stands in the request.
    """
    if isinstance(obj, str):
        return StaticSecret(_present(obj, loc))
    if not isinstance(obj, Mapping):
        raise _error(loc, "Input should be a string or an object", "dict_type")
    kind = obj.get("kind", "LookupSecret" if "url" in obj else "StaticSecret")
    description = _optional_string(obj, "description", loc)
    if kind == "StaticSecret":
        value = _optional_string(obj, "value", loc)
        return StaticSecret(None if value is None else _present(value, (*loc, "value")), description)
    if kind == "LookupSecret":
        return _decode_lookup(obj, description, loc, own_origins)
    raise _error((*loc, "kind"), "Input should be 'StaticSecret' or 'LookupSecret'", "union_tag_invalid")


def _decode_lookup(
    obj: Mapping[str, Any], description: str | None, loc: Location, own_origins: Collection[str]
) -> SecretSource:
    url = obj.get("url")
    if url is None:
        raise _error((*loc, "url"), "Field required", "missing")
    if not isinstance(url, str):
        raise _error((*loc, "url"), "Input should be a valid string", "string_type")
    headers = obj.get("headers")
    headers = {} if headers is None else headers
    if not isinstance(headers, Mapping):
        raise _error((*loc, "headers"), "Input should be a valid dictionary", "dict_type")
    for name, value in headers.items():
        if not isinstance(value, str):
            raise _error((*loc, "headers", name), "Input should be a valid string", "string_type")
    try:
        name = _store_name(url, own_origins)
    except ValueError as error:
        raise _error((*loc, "url"), f"Value error, {error}", "value_error") from None
    if name is not None:
        return StoreReference(name, description)
    return LookupSecret(url, dict(headers), description)


def _store_name(url: str, own_origins: Collection[str]) -> str | None:
    """The secret of our own store that `url` names; None when it leads elsewhere. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme or parts.netloc:
        if parts.scheme not in LOOKUP_SCHEMES or not parts.hostname:
            raise ValueError("an absolute URL must be http or https and name a host")
        if f"{parts.scheme}://{parts.netloc}" not in own_origins:
            return None
    name = unquote(parts.path.removeprefix(STORE_ROUTE))
    if not parts.path.startswith(STORE_ROUTE) or not SECRET_NAME.fullmatch(name):
        raise ValueError(f"a URL of this server must be {STORE_ROUTE}<NAME>")
    return name


def _present(value: str, loc: Location) -> Secret | None:
    if value in ("", REDACTED):
        return None
    try:
        return Secret(check_exportable(value))
    except InvalidSecretValue as error:
        raise _error(loc, f"Value error, {error}", "value_error") from None


def _optional_string(obj: Mapping[str, Any], key: str, loc: Location) -> str | None:
    value = obj.get(key)
    if value is not None and not isinstance(value, str):
        raise _error((*loc, key), "Input should be a valid string", "string_type")
    return value


def _error(loc: Location, msg: str, kind: str) -> SecretSourceError:
    return SecretSourceError((ErrorDetail(loc=loc, msg=msg, type=kind),))
