"""The cipher: tokens that clients of this wire know, and only the right key opens them."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys

import pytest
from cryptography.fernet import Fernet

from supervisor.credentials.cipher import Cipher
from supervisor.credentials.secret import NotDecryptable


def test_key_is_the_hash_of_the_phrase() -> None:
    key = base64.urlsafe_b64encode(hashlib.sha256(b"phrase").digest())
    token = Cipher("phrase").encrypt(b"data")
    assert token.startswith("gAAAA")
    assert Fernet(key).decrypt(token.encode()) == b"data"


@pytest.mark.parametrize(
    "token",
    ["", "gAAAA", "not a token", "é", pytest.param(Cipher("other").encrypt(b"data"), id="another key's")],
)
def test_other_tokens_are_refused(token: str) -> None:
    with pytest.raises(NotDecryptable):
        Cipher("phrase").decrypt(token)


def test_phrase_is_not_in_repr() -> None:
    assert "phrase" not in repr(Cipher("phrase"))


def test_importing_the_room_does_not_import_cryptography() -> None:
    check = "import sys, supervisor.credentials; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


def test_it_is_told_without_the_library_whose_token_it_is() -> None:
    token = Cipher("phrase").encrypt(b"data")
    assert Cipher("phrase").made(token)
    assert not Cipher("phrase").made(token[:-8] + "AAAAAAA=")
    for other in ("", "gAAAA", "é", "x" * 200, Cipher("other").encrypt(b"data")):
        assert not Cipher("phrase").made(other)
    check = "import sys; from supervisor.credentials.cipher import Cipher; "
    check += f"assert Cipher('phrase').made({token!r})"
    check += "; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


def test_what_other_keys_made_is_opened_and_nothing_is_made_with_them() -> None:
    first, second, third = Cipher("first"), Cipher("second"), Cipher("third")
    tokens = [cipher.encrypt(b"data") for cipher in (first, second, third)]
    both = second.opening([first])
    ring = third.opening(wrapped=third.wrap(both))
    assert [ring.decrypt(token) for token in tokens] == [b"data"] * 3
    assert third.made(ring.encrypt(b"x"))
    assert ring.knows(first)
    assert not third.knows(first)
    with pytest.raises(NotDecryptable):
        third.decrypt(tokens[0])
    with pytest.raises(NotDecryptable):
        ring.decrypt(Cipher("fourth").encrypt(b"data"))


def test_a_damaged_key_spoils_nothing_else_and_is_not_wrapped_away() -> None:
    first, second = Cipher("first"), Cipher("second")
    ring = second.opening(wrapped=("gAAAA-damaged", *second.wrap(first)))
    assert ring.decrypt(first.encrypt(b"data")) == b"data"
    with pytest.raises(NotDecryptable):
        Cipher("third").wrap(ring)
