"""MCP servers: their configuration, what an agent gets of it, and connections to them."""
