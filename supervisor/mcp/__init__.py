"""MCP servers: their configuration, what an agent gets of it, and connections to them."""

from __future__ import annotations

from supervisor.mcp.forward import Forwarded, Resolve, forward_servers, resolver, to_acp_servers
from supervisor.mcp.server import MCPServer, MCPServerError, decode_server, server_errors

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
