"""MCP servers: their configuration, what an agent gets of it, and connections to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.first_use import names_of

if TYPE_CHECKING:
    from supervisor.mcp.forward import Forwarded, Resolve, forward_servers, resolver, to_acp_servers
    from supervisor.mcp.server import MCPServer, MCPServerError, decode_server, server_errors
else:
    homes = {
        "forward": "Forwarded Resolve forward_servers resolver to_acp_servers",
        "server": "MCPServer MCPServerError decode_server server_errors",
    }
    __getattr__ = names_of(__name__, homes)

__all__ = [
    "Forwarded",
    "MCPServer",
    "MCPServerError",
    "Resolve",
    "decode_server",
    "forward_servers",
    "resolver",
    "server_errors",
    "to_acp_servers",
]
