"""Commands that show events: `attach`, `events`, and what others follow a conversation with."""
