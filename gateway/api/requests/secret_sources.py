"""Secrets that a request brings or refers to, as plain values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from supervisor.credentials.lookup import LOOKUP_REFUSED, Lookups
from supervisor.credentials.source import (
    LookupSecret,
    SecretSourceError,
    StoreReference,
    decode_secret_source,
)
from supervisor.credentials.store import SecretStore
from supervisor.reading.model import ErrorDetail, Errors, Location


async def resolve_secrets(
    secrets: Mapping[str, Any],
    store: SecretStore,
    own_origins: Collection[str],
    errors: Errors,
    lookups: Lookups,
) -> dict[str, str | LookupSecret]:
    """Resolve values, and references to this server's own secrets, to plain values. References to other
    servers stay as they are: they are fetched at each start of the agent.

    A source without a value, from a client that saw only the redacted form, is left out. Errors are added:
    wrong shapes, unknown secrets of this server, and hosts that the operator does not permit.
    """
    values: dict[str, str | LookupSecret] = {}
    for name, given in secrets.items():
        try:
            value = await _value(given, store, own_origins, ("body", "secrets", name), lookups)
            if value is not None:
                values[name] = value
        except SecretSourceError as error:
            errors.note(error.errors)
    return values


async def _value(
    given: Any, store: SecretStore, own_origins: Collection[str], loc: Location, lookups: Lookups
) -> str | LookupSecret | None:
    source = decode_secret_source(given, loc=loc, own_origins=own_origins)
    if isinstance(source, LookupSecret):
        if not lookups.allows(source.url):
            raise SecretSourceError(
                (ErrorDetail((*loc, "url"), f"Value error, {LOOKUP_REFUSED}", "value_error"),)
            )
        return source
    if isinstance(source, StoreReference):
        found = (await store.found()).get(source.name)
        if found is None:
            msg = f"Value error, there is no secret {source.name}"
            raise SecretSourceError((ErrorDetail((*loc, "url"), msg, "value_error"),))
        return found.value.reveal()
    return None if source.value is None else source.value.reveal()
