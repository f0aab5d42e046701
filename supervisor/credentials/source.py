"""The source of a conversation's secret, as a start request spells it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Final
from urllib.parse import unquote, urlsplit

import attrs

from supervisor.credentials.secret import (
    REDACTED,
    SECRET_NAME,
    CredentialsFailure,
    InvalidSecretValue,
    Secret,
    check_exportable,
)
from supervisor.reading.decode import attempt
from supervisor.reading.model import ErrorDetail, Errors, Invalid, Location, Model, described
from supervisor.reading.rules import NO_NUL

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


class SecretSourceError(CredentialsFailure, Invalid):
    """A secret source is not shaped as it must be. No message quotes a value."""


@attrs.frozen(kw_only=True)
class StaticSource(Model):
    """A `StaticSecret` as clients spell it."""

    TAG: ClassVar[str | None] = "kind"
    kind: ClassVar[str] = "StaticSecret"
    SCHEMA: ClassVar[Mapping[str, Any]] = {
        "anyOf": [{"required": ["kind"]}, {"properties": {"url": {"not": {}}}}]
    }

    value: Annotated[str, NO_NUL] | None = attrs.field(default=None, repr=False)
    description: str | None = None


HEADERS: Final = "Sent with it; to this server none is, since the secret is read from the store"


@attrs.frozen(kw_only=True)
class LookupSource(Model):
    """A `LookupSecret` as clients spell it."""

    TAG: ClassVar[str | None] = "kind"
    kind: ClassVar[str] = "LookupSecret"

    url: str = attrs.field(
        repr=False,
        metadata=described(
            "Asked with GET whenever the agent starts; of this server: /api/settings/secrets/<name>"
        ),
    )
    headers: Mapping[str, str] | None = attrs.field(
        default=None,
        repr=False,
        metadata=described(HEADERS),
    )
    description: str | None = None


#: Without `kind` a `url` makes it a lookup.
ObjectSource = StaticSource | LookupSource


def decode_secret_source(
    obj: object, *, loc: Location = ("body", "secrets"), own_origins: Collection[str] = ()
) -> SecretSource:
    """A secret source from its JSON: a plain string, a `StaticSecret` or a `LookupSecret`.

    A URL that is relative, or whose origin (`http://host:port`) is one of `own_origins`, must name a
    secret of this server's store and becomes a StoreReference: that needs no request to this server itself,
    and no stored session key. Unknown keys are ignored. Raises SecretSourceError; `loc` is the location of
    `obj` in the request.
    """
    if isinstance(obj, str):
        return StaticSecret(_present(obj, loc))
    if not isinstance(obj, Mapping):
        raise _error(loc, "Input should be a string or an object", "dict_type")
    errors = Errors()
    found: StaticSource | LookupSource | None = attempt(ObjectSource, obj, loc, errors)
    if found is None or errors:
        raise SecretSourceError(errors.reported())
    if isinstance(found, StaticSource):
        value = None if found.value is None else _present(found.value, (*loc, "value"))
        return StaticSecret(value, found.description)
    try:
        name = _store_name(found.url, own_origins)
    except ValueError as error:
        raise _error((*loc, "url"), f"Value error, {error}", "value_error") from None
    if name is not None:
        return StoreReference(name, found.description)
    return LookupSecret(found.url, dict(found.headers or {}), found.description)


def _store_name(url: str, own_origins: Collection[str]) -> str | None:
    """The secret of our own store that `url` names; None when it leads elsewhere. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme or parts.netloc:
        if parts.scheme not in LOOKUP_SCHEMES or not parts.hostname:
            raise ValueError("an absolute URL must be http or https and name a host")
        _ = parts.port  # raises ValueError for one that is none
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


def _error(loc: Location, msg: str, kind: str) -> SecretSourceError:
    return SecretSourceError((ErrorDetail(loc=loc, msg=msg, type=kind),))
