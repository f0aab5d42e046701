"""HTTP and WebSocket machinery below the interface: connections, their bounds, who may call."""
