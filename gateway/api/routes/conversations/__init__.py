"""Routes of conversations: their life, their events, their hooks."""
