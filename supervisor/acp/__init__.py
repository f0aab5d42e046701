"""The Agent Client Protocol: bytes to typed messages and back. Independent of conversations and processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.acp import schema
from supervisor.first_use import names_of

if TYPE_CHECKING:
    from supervisor.acp.connection import Connection, open_connection
    from supervisor.acp.errors import (
        AcpError,
        ConnectionLost,
        FrameTooLarge,
        RequestTimeout,
        RpcError,
        UnsupportedProtocolVersion,
        classify_error,
        error_text,
    )
    from supervisor.acp.files import Jail
    from supervisor.acp.framing import MAX_FRAME_BYTES, FrameSplitter, Oversize
    from supervisor.acp.handler import Handler, Result
    from supervisor.acp.output import Seen
    from supervisor.acp.repeats import Repeats
    from supervisor.acp.schema import *  # noqa: F403 - re-exports the typed messages
    from supervisor.acp.services import Services, TerminalPlaces
    from supervisor.acp.terminal import OutputWatch
    from supervisor.acp.trace import SHOWN_CHARS, Trace, TraceLine, shorten_session_id
else:
    homes = {
        "connection": "Connection open_connection",
        "errors": (
            "AcpError ConnectionLost FrameTooLarge RequestTimeout RpcError UnsupportedProtocolVersion "
            "classify_error error_text"
        ),
        "files": "Jail",
        "framing": "FrameSplitter MAX_FRAME_BYTES Oversize",
        "handler": "Handler Result",
        "output": "Seen",
        "repeats": "Repeats",
        "schema": " ".join(schema.__all__),
        "services": "Services TerminalPlaces",
        "terminal": "OutputWatch",
        "trace": "SHOWN_CHARS Trace TraceLine shorten_session_id",
    }
    __getattr__ = names_of(__name__, homes)

__all__ = [
    "MAX_FRAME_BYTES",
    "SHOWN_CHARS",
    "AcpError",
    "Connection",
    "ConnectionLost",
    "FrameSplitter",
    "FrameTooLarge",
    "Handler",
    "Jail",
    "OutputWatch",
    "Oversize",
    "Repeats",
    "RequestTimeout",
    "Result",
    "RpcError",
    "Seen",
    "Services",
    "TerminalPlaces",
    "Trace",
    "TraceLine",
    "UnsupportedProtocolVersion",
    "classify_error",
    "error_text",
    "open_connection",
    "shorten_session_id",
]
__all__ += schema.__all__
