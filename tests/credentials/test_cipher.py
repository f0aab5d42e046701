"""The cipher: tokens that clients of this wire know, and only the right key opens them."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys

import pytest
from cryptography.fernet import Fernet

from supervisor.credentials import Cipher, NotDecryptable


def test_key_is_the_hash_of_the_phrase() -> None:
    key = base64.urlsafe_b64encode(hashlib.sha256(b"phrase").digest())
    token = Cipher("phrase").encrypt(b"data")
    assert token.startswith("gAAAA")
    assert Fernet(key).decrypt(token.encode()) == b"data"


@pytest.mark.parametrize("token", ["", "gAAAA", "not a token", "é", Cipher("other").encrypt(b"data")])
def test_other_tokens_are_refused(token: str) -> None:
    with pytest.raises(NotDecryptable):
        Cipher("phrase").decrypt(token)


def test_phrase_is_not_in_repr() -> None:
    assert "phrase" not in repr(Cipher("phrase"))


def test_importing_the_room_does_not_import_cryptography() -> None:
    check = "import sys, supervisor.credentials; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
