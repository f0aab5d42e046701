"""The MCP servers of conversations: gathered, logged in to, tried out."""
