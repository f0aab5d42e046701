"""The settings of a remote agent: its address, and headers with the names of secrets. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from supervisor.reading.model import Flaw
from supervisor.reading.rules import NO_NUL, Form, Limit, Names, Properties, Size
from supervisor.settings.variables import looks_like_credential

RELAY_COMMAND: Final = ("python", "-m", "supervisor.agents.remote")
"""What clients see as the command: Ostler's own relay, which is the process of a remote agent."""

SCHEMES: Final = ("ws", "wss", "http", "https")

MAX_HEADERS: Final = 50
MAX_BYTES: Final = 16 * 1024
"""Of all headers, as JSON. Servers refuse more."""

ADDRESS_CHARACTERS: Final = 2048

HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
SAID: Final = "a header's name has letters, digits and - alone, at most 128"

VALUE: Final = re.compile(r"[^\x00-\x1f\x7f]*")

REFERENCE: Final = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")
"""Stands for a secret (`supervisor.mcp.configured.resolve`)."""

OF_THE_HANDSHAKE: Final = frozenset({"connection", "content-length", "host", "transfer-encoding", "upgrade"})


def _address(text: str) -> str:
    try:
        parts = urlsplit(text)
        whole = parts.scheme in SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if not whole or re.search(r"[\s\x00-\x1f]", text):
        raise ValueError("it must be an address such as wss://agents.example.com/acp")
    if parts.username is not None or parts.password is not None:
        raise ValueError("it must not hold credentials; name a secret in acp_headers")
    return text


Address = Annotated[str, NO_NUL, Limit(max_length=ADDRESS_CHARACTERS), Form(_address, {"format": "uri"})]

Headers = Annotated[
    Mapping[str, Annotated[str, Limit(pattern=VALUE)]],
    Properties(max_length=MAX_HEADERS),
    Size(MAX_BYTES),
    Names(HEADER, SAID),
]


def judge_headers(field: str, headers: Mapping[str, Any]) -> Iterator[Flaw]:
    """The errors of headers: those of the handshake, and credentials that are not named."""
    for name, value in headers.items():
        if name.lower() in OF_THE_HANDSHAKE or name.lower().startswith("sec-websocket-"):
            yield (field, name), "value_error", f"{name} belongs to the connection itself"
        elif looks_like_credential(name.replace("-", "_")) and not REFERENCE.search(value):
            yield (
                (field, name),
                "value_error",
                f"{name} looks like a credential, and these headers are shown to everybody. "
                "Store it as a secret, and name that: ${NAME}",
            )
