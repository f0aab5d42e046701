"""The turns of a conversation: prompts, permissions, silence, cancellation."""
