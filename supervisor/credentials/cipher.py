"""Encryption of short texts with one key: Fernet, as clients of this wire know it."""

from __future__ import annotations

import base64
import hashlib
from functools import cached_property
from typing import TYPE_CHECKING

from supervisor.credentials.errors import NotDecryptable

if TYPE_CHECKING:
    from cryptography.fernet import Fernet


class Cipher:
    """Encrypts and authenticates bytes under a key derived from a phrase of any length.

    The Fernet key is the SHA-256 of the phrase. That suits long random phrases; it does not
    strengthen short ones.

    The first use imports ``cryptography`` (tens of milliseconds), which start-up does without.
    """

    def __init__(self, phrase: str) -> None:
        self._key = base64.urlsafe_b64encode(hashlib.sha256(phrase.encode()).digest())

    def __repr__(self) -> str:
        return "Cipher(...)"

    @cached_property
    def _fernet(self) -> Fernet:
        from cryptography.fernet import Fernet

        return Fernet(self._key)

    def encrypt(self, data: bytes) -> str:
        """A token in URL-safe ASCII, starting with ``gAAAA``."""
        return self._fernet.encrypt(data).decode("ascii")

    def decrypt(self, token: str) -> bytes:
        """The bytes in a token. Raises NotDecryptable for another key's token or a damaged one."""
        from cryptography.fernet import InvalidToken

        try:
            return self._fernet.decrypt(token.encode())
        except (InvalidToken, UnicodeError) as error:
            raise NotDecryptable("the token was not made with this key") from error
