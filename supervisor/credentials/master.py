"""The master key: where it comes from, and its own file when nobody gave one."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from supervisor.credentials.cipher import Cipher
from supervisor.credentials.errors import SecretsCorrupt, WrongMasterKey
from supervisor.credentials.files import create_private

#: Looked at in this order. The second is the name that peers of this wire use.
KEY_VARIABLES: Final = ("OSTLER_MASTER_KEY", "OH_SECRET_KEY")

#: Beside the secrets, when no variable is set.
KEY_FILE: Final = "master.key"

#: Random bytes of a created key: as many as SHA-256 keeps.
KEY_BYTES: Final = 32


@attrs.frozen
class MasterKey:
    """A key at hand. ``source`` names the variable or the file; ``created`` says that the file is new."""

    cipher: Cipher
    source: str
    created: bool = False


def find_master_key(state: Path, environ: Mapping[str, str], *, needed_by: Path) -> MasterKey:
    """The master key by ``KEY_VARIABLES``, else from ``<state>/master.key``, which is created once.

    A file that is created holds a phrase, so its content may later move into a variable.
    ``needed_by`` is the file with the secrets: while it exists, a missing key is not replaced by a
    fresh one, under which nothing could be read; that raises WrongMasterKey. An empty key file
    raises SecretsCorrupt. Blocks on the disk: call it in a thread.
    """
    for variable in KEY_VARIABLES:
        if phrase := environ.get(variable, "").strip():
            return MasterKey(Cipher(phrase), variable)
    path = state / KEY_FILE
    created = False
    if not path.exists():
        if needed_by.exists():
            raise WrongMasterKey(needed_by, f"{path}, which is missing")
        phrase = base64.urlsafe_b64encode(os.urandom(KEY_BYTES)).decode("ascii")
        created = create_private(path, phrase.encode() + b"\n")
    # Read back even after creating: when two servers start at once, the file decides.
    try:
        phrase = path.read_text("ascii").strip()
    except (OSError, UnicodeError) as error:
        raise SecretsCorrupt(path, "the key file cannot be read") from error
    if not phrase:
        raise SecretsCorrupt(path, "the key file is empty")
    return MasterKey(Cipher(phrase), str(path), created)
