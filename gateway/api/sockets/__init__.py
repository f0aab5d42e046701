"""WebSocket endpoints."""
