"""How clients see secrets, and how those that they were shown encrypted come back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import trio

from gateway.errors import ApiError
from gateway.reading import InvalidRequest
from gateway.services import Services
from supervisor.credentials import Cipher, CredentialsFailure, NotDecryptable
from supervisor.reading import ErrorDetail
from supervisor.settings import EXPOSE_HEADER, Expose, unseal

EXPOSE: Final = "X-Expose-Secrets"


def expose_of(header: str | None) -> Expose:
    """What `X-Expose-Secrets` asks for. Raises ApiError(400)."""
    found = EXPOSE_HEADER.get(header if header is None else header.strip().lower())
    if found is None:
        raise ApiError(400, f"{EXPOSE} must be encrypted or plaintext")
    return found


def cipher_of(services: Services) -> Cipher | None:
    """What encrypts for clients; None while its key is missing."""
    try:
        return services.secrets.cipher
    except CredentialsFailure:
        return None


async def opened(services: Services, value: Any, key: str, *loc: str | int) -> Any:
    """A part of agent settings (`key` names it there; empty: all of them) with every value in the clear that
    we had shown encrypted.

    `loc` is where it stands in the body, below `key`. Raises InvalidRequest.
    """
    cipher = cipher_of(services)
    if cipher is None or not isinstance(value, Mapping):
        return value
    try:
        # In a thread: the first decryption loads a large library.
        if not key:
            return await trio.to_thread.run_sync(unseal, value, cipher)
        return (await trio.to_thread.run_sync(unseal, {key: value}, cipher))[key]
    except NotDecryptable:
        msg = "Value error, a secret was not encrypted by this server"
        place = loc or ((key,) if key else ())
        raise InvalidRequest(ErrorDetail(("body", *place), msg, "value_error")) from None
