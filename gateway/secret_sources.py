"""Secrets that a request brings or refers to, as plain values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gateway.reading import Invalid
from supervisor.credentials import (
    InvalidSecretName,
    LookupSecret,
    SecretSourceError,
    SecretStore,
    StoreReference,
    decode_secret_source,
)
from supervisor.credentials.secret import check_name
from supervisor.reading import ErrorDetail


async def resolve_secrets(
    secrets: Mapping[str, Any], store: SecretStore, own_origins: Collection[str]
) -> dict[str, str]:
    """Plain values of secrets given as values or as references to this server's own.

    A source without a value (what a client that knows only the redacted form sends) is left out. Raises
    Invalid for wrong names and shapes, for a reference to a secret that does not exist, and for a reference
    to another server: Ostler sends no requests with keys that it was given for safekeeping.
    """
    problems: list[ErrorDetail] = []
    values: dict[str, str] = {}
    for name, given in secrets.items():
        loc = ("body", "secrets", name)
        try:
            value = await _value(check_name(name), given, store, own_origins, loc)
            if value is not None:
                values[name] = value
        except InvalidSecretName as error:
            problems.append(ErrorDetail(loc, f"Value error, {error}", "value_error"))
        except SecretSourceError as error:
            problems.extend(error.errors)
    if problems:
        raise Invalid(*problems)
    return values


async def _value(
    name: str, given: Any, store: SecretStore, own_origins: Collection[str], loc: tuple[str | int, ...]
) -> str | None:
    source = decode_secret_source(given, loc=loc, own_origins=own_origins)
    if isinstance(source, LookupSecret):
        msg = "Value error, only secrets of this server can be looked up"
        raise SecretSourceError((ErrorDetail((*loc, "url"), msg, "value_error"),))
    if isinstance(source, StoreReference):
        found = (await store.found()).get(source.name)
        if found is None:
            msg = f"Value error, there is no secret {source.name}"
            raise SecretSourceError((ErrorDetail((*loc, "url"), msg, "value_error"),))
        return found.value.reveal()
    return None if source.value is None else source.value.reveal()
