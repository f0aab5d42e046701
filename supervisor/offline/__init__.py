"""What commands do without a server: agents and MCP servers are tried as a server with that state would."""
