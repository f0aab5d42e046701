"""The Agent Client Protocol: bytes to typed messages and back. Knows no conversation and no process."""

from __future__ import annotations

from . import schema
from .connection import Connection, open_connection
from .errors import (
    AcpError,
    ConnectionLost,
    FrameTooLarge,
    RequestTimeout,
    RpcError,
    UnsupportedProtocolVersion,
    classify_error,
    error_text,
)
from .files import Jail
from .framing import MAX_FRAME_BYTES, FrameSplitter, Oversize
from .handler import Handler, Result
from .schema import *  # noqa: F403 - the typed messages are this room's vocabulary
from .schema import Usage as TokenUsage
from .services import Services, TerminalPlaces
from .tally import Sum
from .trace import SHOWN_CHARS, Trace, TraceLine, shorten_session_id

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
    "Oversize",
    "RequestTimeout",
    "Result",
    "RpcError",
    "Services",
    "Sum",
    "TerminalPlaces",
    "TokenUsage",
    "Trace",
    "TraceLine",
    "UnsupportedProtocolVersion",
    "classify_error",
    "error_text",
    "open_connection",
    "shorten_session_id",
]
__all__ += schema.__all__
