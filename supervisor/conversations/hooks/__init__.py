"""The hooks of a conversation: run as processes, recorded as events."""
