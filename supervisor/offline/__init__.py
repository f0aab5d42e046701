"""Lets commands try agents and MCP servers without a running server, as one with that state would."""
