"""MCP server configuration and what of it is forwarded to an agent."""
