"""Where a conversation lives: its nursery, its state machine and the agent it owns."""
