"""The Agent Client Protocol: bytes to typed messages and back. Knows no conversation and no process."""
