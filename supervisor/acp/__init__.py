"""The Agent Client Protocol: bytes to typed messages and back. Independent of conversations and processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.acp import schema
from supervisor.first_use import names_of

if TYPE_CHECKING:
    from supervisor.acp.connection import *  # noqa: F403
    from supervisor.acp.errors import *  # noqa: F403
    from supervisor.acp.files import *  # noqa: F403
    from supervisor.acp.framing import *  # noqa: F403
    from supervisor.acp.handler import *  # noqa: F403
    from supervisor.acp.output import *  # noqa: F403
    from supervisor.acp.repeats import *  # noqa: F403
    from supervisor.acp.schema import *  # noqa: F403
    from supervisor.acp.services import *  # noqa: F403
    from supervisor.acp.terminal import *  # noqa: F403
    from supervisor.acp.trace import *  # noqa: F403
else:
    homes = {
        "connection": "Connection open_connection",
        "errors": (
            "AcpError ConnectionLost FrameTooLarge RequestTimeout RpcError UnsupportedProtocolVersion "
            "classify_error error_text"
        ),
        "files": "Jail",
        "framing": "MAX_FRAME_BYTES FrameSplitter Oversize",
        "handler": "Handler Result",
        "output": "Seen",
        "repeats": "Repeats",
        "schema": " ".join(schema.__all__),
        "services": "Services TerminalSlots",
        "terminal": "OutputWatch",
        "trace": "SHOWN_CHARS Trace TraceLine shorten_session_id",
    }
    __all__ = " ".join(homes.values()).split()
    __getattr__ = names_of(__name__, homes)
