"""Routes of what is configured: settings, profiles, secrets, credentials, MCP servers."""
