"""What a server is known by: the id of its state directory, and keys that its master key gives."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from supervisor.private_files import create_private

INSTANCE_FILE: Final = "server-instance"
"""In the state directory: the id that stays the same over restarts, and under another name."""

INSTANCE_BYTES: Final = 16

SERVERS_LABEL: Final = b"ostler servers"
"""For `Cipher.derived`: the key by which servers trust each other's requests."""


def instance_of(state: Path) -> str:
    """Return the id of the server of this state directory; the first call makes it. Blocks. Raises OSError.

    The caller holds the lock of the directory: a copy of it is another server under the same id.
    """
    path = state / INSTANCE_FILE
    try:
        return path.read_text("ascii").strip()
    except FileNotFoundError:
        create_private(path, secrets.token_hex(INSTANCE_BYTES).encode() + b"\n")
        return path.read_text("ascii").strip()
