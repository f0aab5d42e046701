"""`ostler mcp`: the MCP servers whose tools agents can use."""
