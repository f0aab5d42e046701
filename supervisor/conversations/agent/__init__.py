"""One conversation's agent: admitted, started, restarted, hibernated and stopped."""
