"""External agents: those that speak plain ACP."""
