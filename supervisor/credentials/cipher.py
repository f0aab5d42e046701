"""Encrypts short texts with Fernet, as clients of this wire expect it. One key encrypts, several decrypt."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Final

from supervisor.credentials.secret import NotDecryptable

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

#: Of a Fernet key: the first half signs, the second encrypts.
SIGNING_BYTES: Final = 16

#: At the end of every token: HMAC-SHA256.
SIGNATURE_BYTES: Final = 32


class Cipher:
    """Encrypts and authenticates bytes under a key derived from a phrase of any length.

    The Fernet key is the SHA-256 of the phrase. That suits long random phrases; it does not
    strengthen short ones. With `opening` it also decrypts tokens of other keys.

    The first use imports `cryptography` (tens of milliseconds), which start-up does without.
    """

    def __init__(self, phrase: str) -> None:
        self._key = base64.urlsafe_b64encode(hashlib.sha256(phrase.encode()).digest())
        self._others: tuple[Cipher, ...] = ()
        self.wrapped: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "Cipher(...)"

    @cached_property
    def _fernet(self) -> Fernet:
        from cryptography.fernet import Fernet

        return Fernet(self._key)

    def encrypt(self, data: bytes) -> str:
        """Encrypt: returns a token in URL-safe ASCII, starting with `gAAAA`."""
        return self._fernet.encrypt(data).decode("ascii")

    def decrypt(self, token: str) -> bytes:
        """Decrypt a token. Raises NotDecryptable for a damaged token, or one of an unknown key."""
        from cryptography.fernet import Fernet, InvalidToken

        try:
            data = token.encode()
        except UnicodeError as error:
            raise NotDecryptable("the token is not text") from error
        try:
            return self._fernet.decrypt(data)
        except InvalidToken:
            pass
        for key in self._other_keys(strict=False):
            try:
                return Fernet(key).decrypt(data)
            except InvalidToken:
                continue
        raise NotDecryptable("the token was not made with this key")

    def opening(self, others: Iterable[Cipher] = (), wrapped: Iterable[str] = ()) -> Cipher:
        """Return a cipher that makes the same tokens and also decrypts those of other keys.

        These are the ciphers `others` and the keys `wrapped`, which come from `wrap`.
        """
        found = copy(self)
        found._others = tuple(others)
        found.wrapped = tuple(wrapped)
        return found

    def made(self, token: str) -> bool:
        """Whether this cipher's own key made the token. Needs the standard library alone."""
        try:
            data = base64.urlsafe_b64decode(token.encode("ascii"))
        except (UnicodeError, binascii.Error):
            return False
        signing = base64.urlsafe_b64decode(self._key)[:SIGNING_BYTES]
        signature = hmac.digest(signing, data[:-SIGNATURE_BYTES], "sha256")
        return hmac.compare_digest(signature, data[-SIGNATURE_BYTES:])

    def derived(self, label: bytes) -> str:
        """Return a key for another purpose, which tells nothing of this one: hexadecimal digits of the
        HMAC-SHA256 of `label`. Needs the standard library alone."""
        return hmac.digest(base64.urlsafe_b64decode(self._key), label, "sha256").hex()

    def wrap(self, other: Cipher) -> tuple[str, ...]:
        """Return every key that `other` decrypts with, each encrypted under this cipher's key, without that
        key.

        Raises NotDecryptable if one of them is damaged: it must not be lost unnoticed.
        """
        keys = dict.fromkeys((other._key, *other._other_keys(strict=True)))
        return tuple(self.encrypt(key) for key in keys if key != self._key)

    def knows(self, other: Cipher) -> bool:
        """Whether this cipher decrypts tokens of `other`'s own key."""
        return other._key == self._key or other._key in self._other_keys(strict=False)

    def same_key(self, other: Cipher) -> bool:
        """Whether both make tokens with the same key."""
        return other._key == self._key

    def _other_keys(self, *, strict: bool) -> list[bytes]:
        """The keys besides its own. Damaged ones are left out, or raise NotDecryptable."""
        from cryptography.fernet import InvalidToken

        keys = [key for each in self._others for key in (each._key, *each._other_keys(strict=strict))]
        for token in self.wrapped:
            try:
                keys.append(self._fernet.decrypt(token.encode()))
            except (InvalidToken, UnicodeError) as error:
                if strict:
                    raise NotDecryptable("an earlier key is damaged") from error
        return keys
