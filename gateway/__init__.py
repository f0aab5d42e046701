"""HTTP, WebSocket and the `ostler` command, in front of the supervisor. Thin: decode, call, encode."""
