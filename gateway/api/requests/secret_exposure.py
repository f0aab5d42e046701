"""How clients see secrets, and how encrypted ones are decrypted when clients send them back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import trio

from gateway.api.errors import ApiError
from gateway.api.requests.reading import InvalidRequest
from gateway.api.services import Services
from supervisor.credentials.cipher import Cipher
from supervisor.credentials.secret import CredentialsFailure, NotDecryptable
from supervisor.reading.model import ErrorDetail, Location
from supervisor.settings.built_in import KIND, decrypted, is_built_in
from supervisor.settings.exposure import EXPOSE_HEADER, Expose, holds_token, unseal
from supervisor.settings.merge import too_deep

EXPOSE: Final = "X-Expose-Secrets"

ONE_SERVER: Final = ("mcp_config", "one")
"""Where an MCP server stands in agent settings."""

ONE_MODEL: Final = ("llm",)
"""Where a language model stands there."""


def expose_of(header: str | None) -> Expose:
    """What `X-Expose-Secrets` asks for. Raises ApiError(400)."""
    found = EXPOSE_HEADER.get(header if header is None else header.strip().lower())
    if found is None:
        raise ApiError(400, f"Unknown value of {EXPOSE}. Use encrypted, true or plaintext.")
    return found


def cipher_of(services: Services) -> Cipher | None:
    """What encrypts for clients; None while its key is missing."""
    try:
        return services.secrets.cipher
    except CredentialsFailure:
        return None


async def opened(services: Services, value: Any, place: Location, loc: Location) -> Any:
    """A part of agent settings, with the secrets decrypted that this server had encrypted for the client.

    `place` is its location in agent settings (empty: it is all of them), `loc` its location in the request.

    Raises InvalidRequest for a token of another server, and CredentialsFailure for tokens while the key is
    missing: a token must not be stored as if it were the secret.
    """
    if not isinstance(value, Mapping):
        return value
    whole = _wrapped(value, place)
    if not holds_token(whole):
        return value
    # In a thread: the first decryption loads a large library.
    found = await trio.to_thread.run_sync(_clear, unseal, whole, services.secrets.cipher, loc)
    for key in place:
        found = found[key]
    return found


async def opened_agent(services: Services, value: Any, loc: Location) -> Any:
    """As `opened`, for an agent of a start request, of either kind: a built-in agent has its secrets
    elsewhere than its settings. Raises as `opened`."""
    if (
        isinstance(value, Mapping)
        and (value.get("kind") == KIND or is_built_in(value))
        and not too_deep(value)
    ):
        cipher = cipher_of(services)
        if cipher is not None:
            return await trio.to_thread.run_sync(_clear, decrypted, value, cipher, loc)
    return await opened(services, value, (), loc)


def _clear(
    open_: Callable[[Mapping[str, Any], Cipher], Any], value: Mapping[str, Any], cipher: Cipher, loc: Location
) -> Any:
    try:
        return open_(value, cipher)
    except NotDecryptable:
        msg = "Value error, a secret was not encrypted by this server"
        raise InvalidRequest(ErrorDetail(loc, msg, "value_error")) from None


def _wrapped(value: Mapping[str, Any], place: Location) -> Mapping[str, Any]:
    for key in reversed(place):
        value = {str(key): value}
    return value
