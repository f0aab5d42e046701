"""The MCP servers of conversations: gathered, logged in to, tested."""
